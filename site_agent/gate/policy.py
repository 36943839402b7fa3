"""Decides from the policy in hospital.yaml which announced plans are allowed.

The policy overrides any plan, approved or not, and every broken rule is reported. permission.py asks when a plan is
announced, and again for the door of its run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.contributors import kinds_of, smallest_set
from protos.plan.manifest import Manifest, most_bytes
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from site_agent.hospital import Policy

_TIERS: Final = ("receiving", "statistics", "evaluation", "training")  # each allows the tiers before it


def refusals(policy: Policy, plan: Plan, manifest: Manifest, *, site: str, identity: str | None) -> tuple[str, ...]:
    """Return a short text about every rule of this hospital's policy that a plan breaks, without repetition.

    Args:
        manifest: computed from the plan here.
        identity: the fingerprint of this site's identity key; None checks only that the plan lists the name.
    """
    return tuple(dict.fromkeys((*listing_refusals(plan, site, identity), *_reasons(policy, plan, manifest, site))))


def listing_refusals(plan: Plan, site: str, identity: str | None) -> tuple[str, ...]:
    """Return a short text if the plan does not list this site with its identity key, otherwise nothing."""
    if (listed := {entry.name: entry.identity for entry in plan.sites}.get(site)) is None:
        known = "" if identity is None else f". This site's identity key is {identity}"
        return (f"the plan does not list {site}{known}",)
    if identity is None or listed == identity:
        return ()
    return (f"the plan lists {site} with the identity key {listed}. This site's identity key is {identity}",)


def _reasons(policy: Policy, plan: Plan, manifest: Manifest, site: str) -> Iterator[str]:
    tier, training = plan.tier_of(site), plan.training_count
    if _TIERS.index(tier) > _TIERS.index(policy.tier):
        yield f"the plan requires the tier {tier} from this site, and the policy allows at most {policy.tier}"
    if tier != "statistics" and plan.method_name not in policy.methods:
        yield f"the policy does not allow the method {plan.method_name}, it allows {', '.join(policy.methods)}"
    if tier == "receiving":
        return  # nothing is sent, so the limits do not apply
    if policy.secure_aggregation == "required" and not plan.masking.required:
        yield "the policy requires masking (secure_aggregation), and the plan turns it off"
    if training < policy.smallest_sites:
        added = f"{training} site{'s' * (training != 1)}"
        yield f"the plan sums the updates of {added}, and the policy requires at least {policy.smallest_sites}"
    if plan.rounds > policy.largest_rounds:
        yield f"the plan has {plan.rounds} rounds, and the policy allows {policy.largest_rounds}"
    megabytes = most_bytes(plan, manifest) / 1e6
    if megabytes > policy.largest_megabytes:
        yield f"{megabytes:.3g} MB would be sent, and the policy allows {policy.largest_megabytes:g} MB"
    if plan.masking.clipping_range > policy.largest_clipping_range:
        asked, allowed = plan.masking.clipping_range, policy.largest_clipping_range
        yield f"the plan's clipping range is {asked:g}, and the policy allows {allowed:g}"
    if manifest.tensors and plan.masking.largest_clipped_share > policy.largest_clipped_share:
        asked, allowed = plan.masking.largest_clipped_share, policy.largest_clipped_share
        yield f"{asked:.2%} of the values of an update could be clipped, and the policy allows {allowed:.2%}"
    if isinstance(plan, AnnouncingPlan) and plan.fewest_sites < policy.smallest_sites:
        yield f"some sums are over only {plan.fewest_sites} sites, and the policy requires {policy.smallest_sites}"
    if isinstance(plan, StatisticsPlan) and plan.privacy is None and plan.smallest_cell < policy.smallest_cell:
        yield f"the plan's smallest cell is {plan.smallest_cell}, and the policy requires {policy.smallest_cell}"
    if plan.privacy is not None and policy.privacy is None:
        yield f"the plan spends epsilon {plan.privacy.epsilon:g}, and the policy has no epsilon limits (key privacy)"
    if plan.privacy is None and policy.privacy is not None and (manifest.tensors or manifest.scalars):
        yield "the policy limits epsilon, and the plan sends numbers without noise, for which no epsilon exists"
    if isinstance(plan, NetworkPlan) and plan.starting_file is not None and policy.starting_file == "refuse":
        yield "the plan's network starts from a file, and the policy does not allow this (its key starting_file)"
    yield from _of_numbers(policy, plan)


def _of_numbers(policy: Policy, plan: Plan) -> Iterator[str]:
    if not plan.masking.required:
        return
    if isinstance(plan.site_weights, RowWeights) and plan.site_weights.exact:
        if policy.exact_rows == "refuse":
            yield "exact counts of training rows would be sent in a sum, and the policy refuses them (exact_rows)"
        elif policy.smallest_cell < 2:
            yield "exact counts of two studies could differ by one patient, because the policy's smallest_cell is 1"
    fewest = smallest_set(plan, policy.smallest_sites)
    for kind, sites in kinds_of(plan).items():
        if len(sites) < fewest:
            number = f"{len(sites)} site{' contributes' if len(sites) == 1 else 's contribute'}"
            yield f"{number} to {kind}, and at least {fewest} are required"
