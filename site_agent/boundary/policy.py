"""What this hospital allows, decided from its own file and the announced plan; pure.

The policy wins over any plan, approved or not; the first rule that a plan breaks is the answer.
"""

from __future__ import annotations

from protos.manifest import Manifest
from protos.methods import method_names
from protos.plan import Plan
from protos.volume import most_bytes
from site_agent.config import Policy


def refuse_plan(policy: Policy, plan: Plan, manifest: Manifest, *, site: str, identity: str) -> str | None:
    """Why this site does not take part under a plan, in one clause, or None.

    Args:
        policy: from this hospital's own file.
        plan: as announced.
        manifest: computed from the plan here.
        site: this site's name.
        identity: the fingerprint of this site's identity key.
    """
    listed = {entry.name: entry.identity for entry in plan.sites}
    megabytes = most_bytes(plan, manifest) / 1e6
    forbidden = [name for name in method_names(plan.method) if name not in policy.methods]
    reasons = (
        (listed.get(site) != identity, "the plan does not list this site with this identity key"),
        (bool(forbidden), f"the policy does not allow the method {' or '.join(forbidden)}"),
        (
            policy.secure_aggregation == "required" and plan.secure_aggregation != "required",
            "the policy requires secure aggregation, and the plan has it off",
        ),
        (
            plan.two_sites is not None and policy.two_sites is None,
            "each of the plan's two sites would see the other's change, and the policy does not allow it",
        ),
        (plan.quorum < policy.smallest_sites, f"the plan adds up {plan.quorum} sites, the policy wants more"),
        (plan.rounds > policy.largest_rounds, "the plan has more rounds than the policy allows"),
        (megabytes > policy.largest_megabytes, f"{megabytes:.1f} MB would leave, more than the policy allows"),
        (
            plan.encoding.clipping_range > policy.largest_clipping_range,
            "the plan's clipping range is wider than the policy allows",
        ),
    )
    return next((text for is_reason, text in reasons if is_reason), None)
