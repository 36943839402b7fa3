"""A coordinator that offers plans which the hospital does not allow: weaker, old, or approved by nobody. The
coordinator writes the plan, and each hospital may refuse it. The hospital's own file decides, whatever a person has
approved. The attacker wants a site's contribution under such a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import site_agent.gate.permission
from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import Announcement, Join, Refusal, SiteReason
from site_agent.approving import approve, withdraw
from site_agent.gate.consent import Consent
from tests.federation import Site, masked_plan, of_kind, settle, sites_of
from tests.hostile.attack import Attack, as_attack, patched, played
from tests.hostile.masking_coordinator import agree, ask_for
from tests.protos.examples import table_one_of
from tests.rehearsal.study import made_up_identity


@dataclass(frozen=True, kw_only=True)
class WeakPlan:
    """A plan that breaks one rule of the policy. `reason` is the reason in the site's record. `trains` is false if the
    plan has no round of training to ask for."""

    reason: str
    sites: str = "abc"
    plan: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True


_STATISTICS: Mapping[str, Any] = table_one_of({"name": "sex", "codes": ["F", "M"]}) | {"smallest_cell": 3}


WEAK_PLANS: Mapping[str, WeakPlan] = {
    "no masking": WeakPlan(
        plan={"masking": {"required": False}},
        reason="the policy requires masking (secure_aggregation), and the plan turns it off",
    ),
    "a wide range": WeakPlan(
        plan={"masking": {"required": True, "clipping_range": 1024.0}},
        reason="the plan's clipping range is 1024, and the policy allows 8",
    ),
    "too few sites": WeakPlan(
        policy={"smallest_sites": 4}, reason="the plan sums the updates of 3 sites, and the policy requires at least 4"
    ),
    "another method": WeakPlan(
        policy={"methods": ("global-layers",)},
        reason="the policy does not allow the method fedavg, it allows global-layers",
    ),
    "more rounds": WeakPlan(policy={"largest_rounds": 2}, reason="the plan has 3 rounds, and the policy allows 2"),
    "more bytes": WeakPlan(
        policy={"largest_megabytes": 1e-5}, reason="MB would be sent, and the policy allows 1e-05 MB"
    ),
    "training at a site for evaluation": WeakPlan(
        policy={"tier": "evaluation"},
        reason="the plan requires the tier training from this site, and the policy allows at most evaluation",
    ),
    "small cells": WeakPlan(
        plan=_STATISTICS,
        policy={"smallest_cell": 4},
        reason="the plan's smallest cell is 3, and the policy requires 4",
        trains=False,
    ),
}


def _without_the_policy() -> AbstractContextManager[None]:
    return patched(site_agent.gate.permission, refusals=lambda *facts, **more: ())


def weak_plan(weakened: bool, kind: str) -> bool:
    """Announce a plan that breaks the policy and ask for a round; a person has approved it."""
    weak = WEAK_PLANS[kind]
    plan = masked_plan(weak.sites, **weak.plan)
    policy = dict(weak.policy)
    if weakened:  # which sets are large enough is also the masking's question, and no part of this attack
        policy["smallest_sites"] = min(policy.get("smallest_sites", 3), len(weak.sites))

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder, policy)
        await settle()
        said = [await site.tell(Announcement(plan.run_name, plan.canonical)) for site in sites]
        if any(of_kind(answer, Join) for answer in said):
            return await _contribute(plan, sites) if weak.trains else True
        for site, answer in zip(sites, said, strict=True):
            assert [entry.reason for entry in of_kind(answer, Refusal)] == [SiteReason.POLICY_FORBIDS]
            (record,) = site.records("plan_refused")
            assert weak.reason in record["reason"], record["reason"]
            assert site.error is not None
            assert site.chunks == []
        return False

    return played(scene, weakened, _without_the_policy)


@as_attack(_without_the_policy)
async def another_key_in_the_sites_place(folder: Path) -> bool:
    """Announce an approved plan that lists another identity key under the site's name."""
    document = json.loads(masked_plan("abc").canonical)
    document["sites"][0]["identity"] = made_up_identity("somebody else")
    plan = plan_from_json(json.dumps(document))
    site = Site("a", plan, folder)
    await settle()
    if of_kind(await site.tell(Announcement(plan.run_name, plan.canonical)), Join):
        return True
    (record,) = site.records("plan_refused")
    assert record["reason"].startswith("the plan lists a with the identity key ")
    return False


async def _contribute(plan: Plan, sites: list[Site]) -> bool:
    if plan.masking.required:
        await agree(sites)
    return all([await ask_for(site, 0, 0, plan.site_names) for site in sites])


def without_the_approval() -> AbstractContextManager[None]:
    """A site does not check for the approval of its persons."""
    return patched(Consent, why_not=lambda self: None)


@as_attack(without_the_approval)
async def unapproved_plan(folder: Path) -> bool:
    """Announce another plan under the study's name and version: it has a tensor more, and nobody has approved it."""
    approved, other = masked_plan("abc"), masked_plan("abc", parameters=20)
    assert (other.study, other.version) == (approved.study, approved.version)
    sites = sites_of(approved, folder)
    await settle()
    for site in sites:
        site.plan = other
        await site.tell(Announcement(other.run_name, other.canonical))
        if not of_kind(site.said, Join):
            (awaited,) = site.records("approval_awaited")
            assert awaited["plan"] == other.digest.hex()
            assert site.trainer.trained == []
            return False
    return await _contribute(other, sites)


@as_attack(without_the_approval)
async def one_approver_of_two(folder: Path) -> bool:
    """Have a plan followed that one person has approved, where the policy requires two."""
    plan = masked_plan("abc")
    sites = sites_of(plan, folder, {"approvers": 2})
    await settle()
    for site in sites:
        await site.tell(Announcement(plan.run_name, plan.canonical))
        if not of_kind(site.said, Join):
            (record,) = site.records("approval_awaited")
            assert record["because"] == "1 of 2 persons have approved it"
            return False
    return await _contribute(plan, sites)


@as_attack(without_the_approval)
async def round_after_withdrawal(folder: Path) -> bool:
    """Ask for a contribution after the persons at the sites have withdrawn."""
    plan = masked_plan("abc")
    sites = sites_of(plan, folder)
    await settle()
    for site in sites:
        await site.tell(Announcement(plan.run_name, plan.canonical))
    await agree(sites)
    for site in sites:
        withdraw(site.directory, plan, by="A. Jones", at=datetime.now(UTC))
    uploads = [await ask_for(site, 0, 0, plan.site_names) for site in sites]
    if not all(uploads):
        assert uploads == [[], [], []]
        assert all(site.records("participation_ended")[0]["reason"] == "withdrawn" for site in sites)
    return all(uploads)


def _without_the_age_of_a_plan() -> AbstractContextManager[None]:
    return patched(site_agent.gate.permission, refuse_replay=lambda *facts: None)


@as_attack(_without_the_age_of_a_plan)
async def old_version(folder: Path) -> bool:
    """Announce version 1 again, after the persons have approved version 2."""
    old, new = masked_plan("abc"), masked_plan("abc", version=2)
    sites = sites_of(old, folder)
    for site in sites:
        approve(site.directory, new, by="A. Jones", at=datetime(2026, 1, 2, tzinfo=UTC))
    await settle()
    for site in sites:
        if not of_kind(await site.tell(Announcement(old.run_name, old.canonical)), Join):
            (record,) = site.records("plan_refused")
            assert record["reason"] == "version 2 of this study was approved here later"
            return False
    return await _contribute(old, sites)


ATTACKS = (
    *(
        Attack(
            name=f"weak-plan-{kind.replace(' ', '-').replace(chr(39), '')}",
            tries=f"the coordinator announces an approved plan that breaks the policy: {kind}",
            without="the policy",
            run=partial(weak_plan, kind=kind),
        )
        for kind in WEAK_PLANS
    ),
    Attack(name="another-key-in-the-sites-place", without="the policy", run=another_key_in_the_sites_place),
    Attack(name="unapproved-plan", without="the approval", run=unapproved_plan),
    Attack(name="one-approver-of-two", without="the approval", run=one_approver_of_two),
    Attack(name="round-after-withdrawal", without="the approval", run=round_after_withdrawal),
    Attack(name="old-version-of-a-plan", without="the age of a plan", run=old_version),
)
