"""Fits a model to the rows of one site alone, by the arithmetic for all sites. Its own people read the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from protos.plan.analyses import AnnouncedPart, Arithmetic, Frame, StudySize

_MOST_ROUNDS: Final = 25


def estimates_alone(make: Callable[[StudySize], Arithmetic], frame: Frame, largest_rows: int) -> dict[str, Any]:
    """Return by term the estimate with the limits of its interval, from this frame only.

    `make` returns the arithmetic of the model for a study of this size.

    Raises:
        Unanswerable: these rows alone have no estimate.
    """
    one = StudySize(
        sites=1, fewest_sites=1, largest_rows=largest_rows, smallest_cell=1, smallest_part=1, rows_per_unknown=0.0
    )
    arithmetic, own = make(one), replace(frame, smallest_cell=1)
    sums = AnnouncedPart(first=arithmetic.first_values(own))
    while not arithmetic.has_converged(sums) and len(sums.newton) < _MOST_ROUNDS:
        sums = AnnouncedPart(first=sums.first, newton=(*sums.newton, arithmetic.newton_values(own, sums)))
    sums = AnnouncedPart(first=sums.first, newton=sums.newton, last=arithmetic.last_values(own, sums))
    terms = arithmetic.result(sums)["terms"]
    return {
        term["term"]: {key: term[key] for key in ("estimate", "low", "high")}
        for term in terms
        if term["low"] is not None
    }
