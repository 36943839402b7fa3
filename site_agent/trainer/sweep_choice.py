"""Stores the chosen alternative of a sweep, which the coordinator announces with the last result.

One file in the trainer's folder is for all alternatives, because earlier runs already have their reports. The choice
changes no model: a person adopts a model.
"""

from __future__ import annotations

from pathlib import Path

from protos.plan.plan import Plan
from site_agent.trainer.trainer_files import write_whole


def keep_choice(state: Path, plan: Plan, number: int) -> None:
    """Write which alternative of the plan's sweep was chosen, counted from 0."""
    write_whole(_path(state, plan), str(number).encode())


def choice_in_words(state: Path, plan: Plan) -> str | None:
    """Return the choice as a sentence for a report, or None for a plan without a sweep."""
    if plan.sweep is None:
        return None
    runs = [each.run_name for each in plan.alternatives]
    this = f"This run is alternative {plan.sweep.at + 1} of {len(runs)} of a sweep."
    try:
        number = int(_path(state, plan).read_bytes()[:8])
        chosen, values = runs[number], plan.sweep.text_of(number)
    except (OSError, ValueError, IndexError):
        return f"{this} No alternative was chosen so far."
    which = "It" if runs[plan.sweep.at] == chosen else f"The run {chosen}"
    return f"{this} {which} has the lowest validation loss over all sites ({values}), according to the coordinator."


def _path(state: Path, plan: Plan) -> Path:
    return state / "reports" / f"{plan.alternatives[0].run_name}.sweep"
