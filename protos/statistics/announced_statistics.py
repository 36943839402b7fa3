"""Reads the announced sums of a statistics plan, decides when its Newton rounds end, and returns what is printed.

If a site could not answer an analysis on an occasion, its sums from then on are void for everybody: no site answers it
again, and the result has a sentence in place of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from protos.numbers.newton_sums import Float32, OutOfBound, read_announced
from protos.plan.analyses import AnnouncedPart, Arithmetic, Float64, Number, Unanswerable
from protos.plan.statistics_plan import StatisticsPlan


class AnnouncedStatistics:
    """The sums that a coordinator announced up to a round."""

    def __init__(self, plan: StatisticsPlan, vector: Float32, rounds: int, *, is_over: bool = False) -> None:
        """Decode the sums of the first round, of `rounds` Newton rounds and, if the run `is_over`, of the last round.

        Args:
            vector: float32 of shape (4 * plan.words,).

        Raises:
            OutOfBound: the numbers are not announced sums of this plan.
        """
        if vector.shape != (4 * plan.words,):
            raise OutOfBound("another number of announced sums")
        words = read_announced(vector)
        self._plan, self._words = plan, words
        first, newton, last = plan.numbers_by_round
        self._first = _divided(words[plan.place(0, rounds)], first)
        self._newton = [_divided(words[plan.place(number, rounds)], newton) for number in range(1, rounds + 1)]
        self._last = _divided(words[plan.place(rounds + 1, rounds)], last) if is_over and last else None

    def part(self, place: int) -> tuple[AnnouncedPart, bool]:
        """Return the valid sums of the analysis at this place of the plan, and whether a site could not answer it."""
        arithmetic, slices = self._plan.arithmetics[place], _slices(self._plan.arithmetics, place)
        found = AnnouncedPart(first=self._first[slices[0]][1:])
        if self._first[slices[0]][0] > 0:  # the sums are random
            return AnnouncedPart(first=np.zeros_like(found.first)), True
        for values in self._newton:
            if arithmetic.has_converged(found):
                break  # sites have sent zeros since then
            if values[slices[1]][0] > 0:
                return found, True
            found = replace(found, newton=(*found.newton, values[slices[1]][1:]))
        if self._last is None or slices[2].start == slices[2].stop:
            return found, False
        if self._last[slices[2]][0] > 0:
            return found, True
        return replace(found, last=self._last[slices[2]][1:]), False

    @property
    def has_converged(self) -> bool:
        """Return whether no analysis needs another Newton round."""
        return all(self.is_ready(place) for place in range(len(self._plan.analyses)))

    def is_ready(self, place: int) -> bool:
        """Return whether an analysis needs no other Newton round, or has none."""
        part, is_void = self.part(place)
        return is_void or self._plan.arithmetics[place].has_converged(part)

    def results(self) -> list[dict[str, Any]]:
        """Return for each analysis its name with what is printed, or with the reason under the key `refused`."""
        plan = self._plan
        if plan.private_tables is not None:
            return plan.private_tables.results(self._words, float(len(plan.site_names) * plan.noise_variance))
        return [{"name": one.name} | self._result(place) for place, one in enumerate(self._plan.analyses)]

    def _result(self, place: int) -> dict[str, Any]:
        part, is_void = self.part(place)
        generic = (
            "At least one hospital could not answer, and its own page has the reason. Often few of its rows would "
            "decide a sum: remove terms, join codes, or leave out rare outcomes."
        )
        if is_void and not part.first.any():
            return {"refused": generic}
        try:
            found = self._plan.arithmetics[place].result(part)
        except Unanswerable as refused:
            return {"refused": str(refused)}
        return {"refused": generic} if is_void else found


def _divided(words: Sequence[int], numbers: tuple[Number, ...]) -> Float64:
    return np.array(words, np.float64) / np.array([number.scale for number in numbers], np.float64)


def _slices(arithmetics: tuple[Arithmetic, ...], place: int) -> list[slice]:
    found = []
    for numbers in zip(*((one.first, one.newton, one.last) for one in arithmetics), strict=True):
        wide = [len(one) + (len(one) > 0) for one in numbers]
        found.append(slice(sum(wide[:place]), sum(wide[: place + 1])))
    return found
