"""Sites that only receive: the real engine, real agents and real masks, and the refusals of each side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from host.audit_log import AuditLog
from protos.plan.contributors import kinds_of, smallest_set
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import (
    Announcement,
    Bind,
    Chunk,
    Join,
    KeyAdvert,
    KeySessionOpen,
    Offer,
    Refusal,
    SiteMessage,
    SiteReason,
    Stage,
)
from protos.wire.positions import parameters_digest
from site_agent.gate.consent import Consent
from site_agent.gate.permission import Permission
from site_agent.hospital import Policy
from tests.federation import Federation, Site, hospital, identity_of, played, recorded, settle
from tests.for_each import for_each
from tests.rehearsal.gates import NOON


def receiving_plan(contributors: str = "abcd", receivers: str = "e", **changes: Any) -> Plan:
    """A masked plan with federated-prior in which some sites only receive."""
    tiers = dict.fromkeys(contributors, "training") | dict.fromkeys(receivers, "receiving")
    content = {
        "kind": "prior",
        "study": "receiving",
        "version": 1,
        "newton_rounds": 2,
        "concepts": [
            {"kind": "number", "name": name, "definition": "A number.", "low": 0.0, "high": 1.0} for name in ("x", "y")
        ],
        "sites": [{"name": name, "identity": identity_of(name), "tier": tier} for name, tier in tiers.items()],
        **changes,
    }
    return plan_from_json(json.dumps(content))


def a_whole_run(folder: Path, plan: Plan, receivers: str) -> dict[str, Site]:
    """All sites of a plan to the end of the run."""
    sites: dict[str, Site] = {}

    async def scene(network: Federation) -> None:
        for name in plan.listed_names:
            network.add(name, **({"tier": "receiving"} if name in receivers else {}))
        await network.finish()
        sites.update(network.sites)

    played(folder, plan, scene)
    return sites


def test_a_receiver_sends_nothing_gets_the_sums_and_changes_no_bit_of_them(tmp_path: Path) -> None:
    """With and without two receivers the announced sums are equal; the receivers hold them and released nothing."""
    alone = a_whole_run(tmp_path / "alone", receiving_plan(receivers=""), "")
    joined = a_whole_run(tmp_path / "joined", receiving_plan(receivers="ef"), "ef")

    first, second = recorded(tmp_path / "alone"), recorded(tmp_path / "joined")
    assert first["is_complete"]
    assert second["is_complete"]
    assert first["shared_parameters_sha256"] == second["shared_parameters_sha256"]
    expected = alone["a"].trainer.concluded
    for name in "ef":
        site = joined[name]
        assert (site.trainer.trained, site.chunks, site.records("contribution_released")) == ([], [], [])
        assert site.records("run_joined")[0]["tier"] == "receiving"
        assert len(site.records("run_finished")) == 1
        assert site.records("key_session_agreed") == []
        assert expected is not None
        assert site.trainer.concluded is not None
        np.testing.assert_array_equal(site.trainer.concluded, expected)
        assert {type(message) for message in site.said} <= {type(m) for m in joined["a"].said} - {Chunk}


def test_a_receiver_that_comes_after_the_last_round_still_gets_the_result(tmp_path: Path) -> None:
    """The end of the run waits for it as long as for a contributor's answer."""
    plan = receiving_plan()

    async def scene(network: Federation) -> None:
        for name in "abcd":
            network.add(name)
        await network.pass_time(300.0)
        assert not network.engine.finished.is_set()
        site = network.add("e", tier="receiving")
        await network.finish()
        assert len(site.records("run_finished")) == 1

    played(tmp_path, plan, scene)


@pytest.mark.parametrize("kind", ["chunk", "key"])
def test_a_receiver_that_sends_a_number_or_a_key_is_cut_off(tmp_path: Path, kind: str) -> None:
    """The coordinator ends its stream; the sum is that of the contributors, and their run is complete."""
    plan = receiving_plan()
    sent: dict[str, SiteMessage] = {
        "chunk": Chunk(0, 0, 0, bytes(64)),
        "key": KeyAdvert("e", 1, bytes(32), bytes(32), bytes(32), bytes(64)),
    }

    async def scene(network: Federation) -> None:
        def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
            return [message, sent[kind]] if site == "e" and isinstance(message, Join) else [message]

        network.meddle = meddle
        for name in "abcd":
            network.add(name)
        network.add("e", tier="receiving")
        await network.finish()
        assert ("e", "a contribution of a site that only receives") in network.ended

    played(tmp_path, plan, scene)

    assert recorded(tmp_path)["is_complete"]


@pytest.mark.parametrize("asked", ["offer", "bind", "keys"])
async def test_a_coordinator_that_asks_a_receiver_to_contribute_is_refused(tmp_path: Path, asked: str) -> None:
    """The gate answers with a refusal and a record; its trainer is never asked for a number."""
    plan = receiving_plan()
    prior = plan
    assert prior is not None
    start = parameters_digest(np.zeros(prior.tensor.number_count, np.float32))
    question = {
        "offer": Offer(0, 0, start, Stage.STATISTICS, b"", None),
        "bind": Bind(0, 0, ("a", "b", "c", "d", "e"), 0),
        "keys": KeySessionOpen(1, ("a", "b", "c", "d", "e")),
    }[asked]

    site = Site("e", plan, tmp_path / "e", tier="receiving")
    await settle()
    said = await site.tell(Announcement(plan.run_name, plan.canonical))
    assert any(isinstance(message, Join) for message in said)
    said = await site.tell(question)
    assert Refusal(plan.run_name, SiteReason.COORDINATOR_MISBEHAVED) in said
    assert len(site.records("coordinator_refused")) == 1
    assert (site.trainer.trained, site.chunks) == ([], [])
    await site.stop()


def test_the_gates_limits_let_nothing_of_a_receiver_out(tmp_path: Path) -> None:
    """Even a contribution that some other part had built is refused."""
    plan = receiving_plan()
    policy = hospital("e", Path("/nowhere"), tier="receiving").policy
    bind, log = Bind(0, 0, ("a", "b", "c", "d"), 0), AuditLog(tmp_path / "gate.sqlite", site="e", now=lambda: NOON)

    def forbidden(site: str, rules: Policy) -> tuple[str, ...]:
        consent = Consent(tmp_path, plan, approvers=1, now=lambda: NOON)
        given = Permission(plan, manifest_of(plan), site=site, policy=rules, consent=consent, audit=log, ledger=None)
        return given.forbidden(bind)

    assert forbidden("e", policy)
    assert not forbidden("a", hospital("a", Path("/nowhere")).policy)
    log.close()


@for_each("seed", range(40))
def test_receivers_never_count_towards_the_smallest_set(seed: int) -> None:
    """However many receive: contributors, kinds of numbers and the smallest set are those without them."""
    generator = np.random.default_rng(seed)
    letters = "abcdefghijklmnop"
    contributors = letters[: int(generator.integers(4, 9))]
    receivers = letters[len(contributors) : len(contributors) + int(generator.integers(1, 7))]

    plain, wider = receiving_plan(contributors, ""), receiving_plan(contributors, receivers)

    assert wider.site_names == plain.site_names
    assert wider.training_count == plain.training_count
    assert kinds_of(wider) == kinds_of(plain)
    assert smallest_set(wider, 3) == smallest_set(plain, 3)
    assert manifest_of(wider).scalars == manifest_of(plain).scalars
    assert wider.digest != plain.digest


@pytest.mark.parametrize(
    ("contributors", "receivers", "changes", "reason"),
    [("abc", "d", {}, "but fewest_sites is 4"), ("ab", "cde", {}, "sites must contribute")],
)
def test_a_plan_cannot_fill_its_numbers_with_receivers(
    contributors: str, receivers: str, changes: dict[str, Any], reason: str
) -> None:
    """Neither the fewest sites of a plan nor a concept's fewest sites is reached by sites that send nothing."""
    with pytest.raises(ValidationError, match=reason):
        receiving_plan(contributors, receivers, **changes)
