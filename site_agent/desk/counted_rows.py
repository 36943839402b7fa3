"""Stores the number of rows in each part of a site's table, which `data check` counts for `review`.

The file has three counts and their time. It is in a folder that only the trainer's account can open. If a reviewer
cannot read it, `review` reports that nothing was compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protos.plan.plan import Plan
from protos.plan.schedules import too_few_rows
from protos.plan.weighting import RowWeights
from site_agent.hospital import Policy

_FILE: Final = Path("data") / "rows.json"
_LARGEST_BYTES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class CountedRows:
    """The number of rows in each part of the split, and the time of the count with its time zone."""

    training: int
    validation: int
    test: int
    at: str

    @property
    def content(self) -> bytes:
        """Return the file's content: the counts as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def counted_rows_path(state: Path) -> Path:
    """Return the path of the file with the numbers of rows, in the state folder."""
    return state / _FILE


def find_counted_rows(state: Path) -> CountedRows | None:
    """Return the stored numbers of rows, or None if this user account cannot read these numbers."""
    try:
        with counted_rows_path(state).open("rb") as file:
            found = json.loads(file.read(_LARGEST_BYTES))
        counts = [int(found[name]) for name in ("training", "validation", "test")]
        return CountedRows(training=counts[0], validation=counts[1], test=counts[2], at=str(found["at"])[:40])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # `review` then reports that nothing was compared


def lacking_rows(policy: Policy, plan: Plan, site: str, rows: CountedRows) -> tuple[str, ...]:
    """Return why this site has too few rows to train under a plan, as parts of sentences."""
    if plan.statistics is not None:
        return ()
    found = []
    asked = too_few_rows(plan.schedule, rows.training)
    if asked is not None:
        found.append(f"the plan asks for {asked}, and this site has {rows.training} training rows")
    if plan.tier_of(site) == "training" and rows.training < policy.smallest_training_rows:
        found.append(
            f"this site has {rows.training} training rows, and its policy requires {policy.smallest_training_rows}"
        )
    weighting = plan.weighting
    if isinstance(weighting, RowWeights) and plan.tier_of(site) == "training" and rows.training < weighting.fewest_rows:
        found.append(f"this site has {rows.training} training rows, and the plan requires {weighting.fewest_rows}")
    return tuple(found)
