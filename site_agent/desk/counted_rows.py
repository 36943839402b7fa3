"""Stores the numbers of training, validation and test rows, which `data check` counts and `review` shows.

The file has three counts and their time. It is in a folder that only the trainer's account can open. If a reviewer
cannot read it, `review` reports that nothing was compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from protos.plan.documents import Document
from protos.plan.plan import Plan
from protos.plan.schedules import too_few_rows
from protos.plan.weighting import RowWeights
from site_agent.hospital import Policy

_FILE: Final = Path("data") / "rows.json"
_LARGEST_BYTES: Final = 1000


class CountedRows(Document):
    """The number of rows in each part of the split, and the time of the count with its time zone."""

    training: int
    validation: int
    test: int
    at: str = Field(max_length=40)


def counted_rows_path(state: Path) -> Path:
    """Return the path of the file that stores the numbers of rows of this site's table, in the state folder."""
    return state / _FILE


def find_counted_rows(state: Path) -> CountedRows | None:
    """Return the stored numbers of rows of this site's table. Return None if this user account cannot read them."""
    try:
        with counted_rows_path(state).open("rb") as file:
            return CountedRows.model_validate_json(file.read(_LARGEST_BYTES))
    except (OSError, ValidationError):
        return None  # `review` then reports that nothing was compared


def lacking_rows(policy: Policy, plan: Plan, site: str, rows: CountedRows) -> tuple[str, ...]:
    """Return the reasons why this site has too few rows to train under a plan, as parts of sentences."""
    if plan.statistics is not None:
        return ()
    found, here = [], f"this site has {rows.training} training rows"
    asked, trains = too_few_rows(plan.schedule, rows.training), plan.tier_of(site) == "training"
    if asked is not None:
        found.append(f"the plan requires {asked}, and {here}")
    if trains and rows.training < policy.smallest_training_rows:
        found.append(f"{here}, and its policy requires {policy.smallest_training_rows}")
    weighting = plan.weighting
    if trains and isinstance(weighting, RowWeights) and rows.training < weighting.fewest_rows:
        found.append(f"{here}, and the plan requires {weighting.fewest_rows}")
    return tuple(found)
