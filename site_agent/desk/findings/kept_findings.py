"""Reads what the trainer stored for people at this site: suspicious columns, and the chosen alternative of a plan.

A finding is a sentence with the names of columns, as in the report. The choice of a sweep changes no model: a person
adopts a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protos.plan.plan import Plan
from site_agent.trainer.trainer_files import SUSPICIONS, choice_path

_LARGEST_BYTES: Final = 1 << 16


def find_suspicions(state: Path) -> tuple[str, ...]:
    """Return the newest findings about suspicious columns. Return none if this user account may not read the file."""
    try:
        with (state / SUSPICIONS).open("rb") as file:
            found = json.loads(file.read(_LARGEST_BYTES))
        return tuple(f"In the run {found['run']}, {sentence}" for sentence in found["sentences"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def choice_in_words(state: Path, plan: Plan) -> str | None:
    """Return which of a plan's alternatives was chosen, as sentences for a report. Return None without alternatives."""
    if plan.sweep is None:
        return None
    runs = [each.run_name for each in plan.alternatives]
    this = f"The plan compares {len(runs)} alternative settings, and this run is alternative {plan.sweep.at + 1}."
    try:
        number = int(choice_path(state, plan).read_bytes()[:8])
        chosen, values = runs[number], plan.sweep.text_of(number)
    except (OSError, ValueError, IndexError):
        return f"{this} The best alternative has not been chosen yet."
    which = "This run" if runs[plan.sweep.at] == chosen else f"The run {chosen}"
    return f"{this} {which} has the lowest validation loss over all sites ({values}), according to the coordinator."
