"""Computes from the plan the largest number of rounds in a run, and the largest number of bytes that a site sends.

Early stopping makes fewer rounds, so these are upper bounds. The computation does not loop
over rounds, because a plan can have two billion.
"""

from __future__ import annotations

from protos.numbers.chunk_layout import Layout
from protos.plan.manifest import Manifest, Occasion
from protos.plan.plan import Plan


def rounds_with(plan: Plan, occasion: Occasion) -> int:
    """Return the largest number of rounds in which sites send the scalars of this occasion."""
    schedule = plan.schedule
    if occasion is Occasion.STATISTICS:
        return int(plan.statistics is not None or plan.prior is not None)
    if plan.statistics is not None:
        return 0
    if occasion is Occasion.NEWTON:
        return plan.training_rounds if plan.prior is not None else 0
    if occasion is Occasion.GUARD:
        return int(plan.prior is not None and plan.privacy is None)
    if occasion is Occasion.PROBE:
        return int(plan.has_probe)
    if occasion is Occasion.MEASURED:
        return (schedule.rounds - 1) // schedule.rounds_per_measurement + plan.has_validation_round
    return schedule.rounds


def most_bytes(plan: Plan, manifest: Manifest) -> int:
    """Return the largest number of bytes that a site sends in the run. Repeated transmissions are not counted."""
    trained = 0 if plan.statistics is not None else plan.training_rounds
    updates = 0 if plan.privacy is not None else manifest.parameters
    training = trained * Layout(updates, 0).total_bytes
    others = (plan.rounds - trained) * Layout(0, 0).total_bytes
    scalars = sum(scalar.bits // 8 * rounds_with(plan, scalar.occasion) for scalar in manifest.scalars)
    return training + others + scalars
