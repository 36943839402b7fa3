"""Answers the rounds of a statistics plan at one site, from the rows of its table.

It has the same methods as Study. The rules:

* all analyses describe the same rows (complete_rows in protos/plan/analyses.py);
* announced sums are final: other sums for an earlier round are refused;
* what own rows forbid is a masked count: the site sends 1 as the number of sites that did not answer, and secret random
  integers for the analysis. Zeros would make its sum that of the other sites, and a second sum would show this site's
  numbers. Nothing else that leaves depends on it. Its own people read the reason (`reasons`);
* an analysis that needs no further round, or that some site did not answer, is answered with zeros.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

import numpy as np

from protos.numbers.newton_sums import OutOfBound
from protos.plan.analyses import (
    Analysis,
    AnnouncedPart,
    Float64,
    Frame,
    Number,
    TableOneAnalysis,
    Unanswerable,
    complete_rows,
    concept_named,
    concepts_used,
)
from protos.plan.canonical import pack
from protos.plan.concepts import NumberConcept
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.announced_statistics import AnnouncedStatistics
from protos.statistics.private_tables import PrivateTables
from protos.wire.messages import MalformedMessage, Stage
from site_agent.trainer.disk import SavedStudy
from site_agent.trainer.prior.concept_columns import compared_means
from site_agent.trainer.prior.site_sums import FinalSums, summed_terms, voids
from site_agent.trainer.requests import Answer, Asked, PlannedStudy, Vector
from site_agent.trainer.statistics.concept_frame import nearly_equal


class StatisticsStudy(PlannedStudy):
    """Runs the analyses of a statistics plan at this site."""

    def __init__(self, plan: StatisticsPlan, frame: Frame, *, site: str, secret: bytes, digest: str = "") -> None:
        """Prepare the numbers that the plan names.

        `frame` has all rows of the site's table with this `digest`. Voids are drawn from the site's `secret`, so that a
        restarted trainer sends the same ones.
        """
        self._secret = hmac.digest(secret, pack("voids of statistics", plan.digest, site), "sha256")
        self.plan, self.site, self.manifest, self.rows = plan, site, manifest_of(plan), 0
        self.data_digest, self.training_rows, self.column_count = digest, frame.rows, len(frame.columns)
        self.remember: Callable[[], None] = lambda: None  # before the first answer, which values it depends on
        self.reasons: dict[str, str] = {}  # by the name of an analysis, why this site did not answer it
        self.cut: tuple[str, ...] = ()  # how many values the plan's ranges replaced, for this site's own people
        self._frame, self._exchanges = frame.only(complete_rows(plan.analyses, frame)), Exchanges(plan, self.manifest)
        self._alike = nearly_equal(plan, self._frame) if plan.privacy is None else frozenset()
        self._groups = {one.table_one.by for one in plan.analyses if isinstance(one, TableOneAnalysis)}
        self._sums = FinalSums(plan)
        self._made, self._final = 0, b""

    def train(self, asked: Asked, received: Vector) -> Answer:
        """Return the values of the requested round. Raise MalformedMessage if received ones can't be sums."""
        self.exchange(asked)
        received = self._sums.whole(asked.round, received)
        if self.plan.private_tables is not None:
            return Answer(scalars=self._private(self.plan.private_tables))
        scalars: list[int] = []
        sums = None if asked.stage is Stage.STATISTICS else _announced(self.plan, received, asked.round - 1)
        for place in range(len(self.plan.analyses)):
            scalars += self._integers(place, asked, sums)
        self.remember()  # after all checks of what was announced, so a refused sum shows nothing about the memory
        self.remember = lambda: None  # once in each process, so that the table is not in memory twice
        return Answer(scalars=tuple(scalars))

    def close(self, asked: Asked, received: Vector) -> None:
        """Store the sums that were received last. `asked.round` is the number of finished rounds."""
        received = self._sums.whole(asked.round, received)
        self._made, self._final = max(0, asked.round - 2), received.astype("<f4").tobytes()

    def results(self) -> list[dict[str, Any]]:
        vector = np.frombuffer(self._final, "<f4")
        return _announced(self.plan, vector, self._made, is_over=True).results()

    def own(self) -> dict[str, dict[str, Any]]:
        """Return the estimates of this site alone, by the name of the analysis. They are for its own people."""
        found = {}
        for analysis, arithmetic in zip(self.plan.analyses, self.plan.arithmetics, strict=True):
            if self._records(analysis):
                with suppress(Unanswerable):
                    found[analysis.name] = arithmetic.own(self._frame)
        return found

    def _records(self, analysis: Analysis) -> bool:
        return all(self.site in self.plan.recorders(used) for used in concepts_used(analysis))

    def other_units(self) -> Iterator[str]:
        """Yield numbers with another mean than at the other sites, by announced sums, for this site's own people."""
        announced = _announced(self.plan, np.frombuffer(self._final, "<f4"), self._made, is_over=True)
        found = dict[str, tuple[float, float]]()
        for place, one in enumerate(announced.results() if self.plan.private_tables is None else ()):
            void = [name for name, groups in one.get("columns", {}).items() if "void" in groups["all"]]
            part, _ = announced.part(place)
            is_there = "refused" not in one or part.newton  # then the rules of the first round were kept
            with suppress(Unanswerable, ZeroDivisionError), np.errstate(all="ignore"):  # no complete row here
                both = self._means(place, part) if is_there and self._records(self.plan.analyses[place]) else {}
                found = {name: pair for name, pair in both.items() if name not in void} | found
        for name, pair in found.items():
            concept = concept_named(self.plan.concepts, name)
            words, is_unlike = compared_means(concept, *pair) if isinstance(concept, NumberConcept) else ("", False)
            if is_unlike:
                yield f"{name}: {words}: another unit? Hospitals differ, and a mistake may be at another hospital."

    def saved(self) -> SavedStudy:
        """Return what the next round needs: digests of the sums that this site received, and its reasons so far."""
        return SavedStudy(tensors={}, facts={"digests": {**self._sums.known}, "reasons": {**self.reasons}})

    def restore(self, saved: SavedStudy) -> None:
        digests, reasons = (saved.facts[key] for key in ("digests", "reasons"))
        assert isinstance(digests, dict)
        assert isinstance(reasons, dict)
        self._sums.known = {length: str(digest) for length, digest in digests.items()}
        self.reasons = {name: str(why) for name, why in reasons.items()}

    def _means(self, place: int, sums: AnnouncedPart) -> dict[str, tuple[float, float]]:
        """Return means of numbers at this site, and at the other sites, which have the sums less this site's."""
        arithmetic, frame = self.plan.arithmetics[place], self._frame
        own = AnnouncedPart(first=arithmetic.first_values(frame))
        rest = AnnouncedPart(first=sums.first - own.first)
        if sums.last is not None:
            newton = arithmetic.newton_values(frame, replace(sums, newton=sums.newton[:-1]))
            last = arithmetic.last_values(frame, sums)
            own = replace(own, newton=(newton,), last=last)
            rest = replace(rest, newton=tuple(one - newton for one in sums.newton[-1:]), last=sums.last - last)
        others = arithmetic.means(rest)
        return {name: (mean, others[name]) for name, mean in arithmetic.means(own).items() if name in others}

    def _private(self, tables: PrivateTables) -> tuple[int, ...]:
        """Return the sums over patients, each with limited influence (clipped). The gate adds noise to them."""
        frame, largest, size = self._frame, self.plan.largest_private_number, len(tables.names)
        terms_of = partial(tables.terms, frame.columns)
        return summed_terms(terms_of, frame.rows, size, frame.patients, unit=tables.unit, largest=largest)

    def _integers(self, place: int, asked: Asked, sums: AnnouncedStatistics | None) -> list[int]:
        """Return the integers of one analysis in a round; the first one is 1 if this site may not answer."""
        analysis, arithmetic = self.plan.analyses[place], self.plan.arithmetics[place]
        at = {Stage.STATISTICS: arithmetic.first, Stage.NEWTON: arithmetic.newton, Stage.GUARD: arithmetic.last}
        if asked.stage is None or not (numbers := at[asked.stage]):
            return []
        zeros = [0] * (1 + len(numbers))
        used = concepts_used(analysis)
        if all(self.site not in self.plan.recorders(names) for names in used):
            return zeros
        try:
            is_table = isinstance(analysis, TableOneAnalysis)
            own = {*used[0][is_table:]}  # of a Table 1 the groups
            pairs = getattr(getattr(analysis, "regression", None), "intercept", "") == "common"
            own |= {name for name, *_ in used if isinstance(concept_named(self.plan.concepts, name), NumberConcept)}
            alike = {one for one in self._alike if {*one.split(":")} <= own and (pairs or ":" not in one)}
            if is_table and len(self._alike & self._groups) == 1:
                alike -= self._groups
            if alike:
                names = " and ".join(sorted(self._alike))
                raise Unanswerable(f"Few patients of this hospital differ in {names}: plan them apart.")
            if sums is None:
                return [0, *_encoded(arithmetic.first_values(self._frame), numbers, self._void(asked, place, numbers))]
            part, is_void = sums.part(place)
            if is_void or sums.is_ready(place) == (asked.stage is Stage.NEWTON):
                return zeros
            values = arithmetic.newton_values if asked.stage is Stage.NEWTON else arithmetic.last_values
            return [0, *_encoded(values(self._frame, part), numbers, self._void(asked, place, numbers))]
        except Unanswerable as reason:
            self.reasons[analysis.name] = str(reason)
            return [1, *self._void(asked, place, numbers)]

    def _void(self, asked: Asked, place: int, numbers: tuple[Number, ...]) -> list[int]:
        return voids(self._secret, asked.round, place, ((one.lowest, one.bound) for one in numbers))


def _encoded(values: Float64, numbers: tuple[Number, ...], void: list[int]) -> list[int]:
    """Round each number to an integer of its scale; a void number is that of `void`. Raises Unanswerable."""
    found = []
    for value, number, instead in zip(values.tolist(), numbers, void, strict=True):
        if number.may_be_void and isnan(value):
            found.append(instead)
            continue
        if not number.lowest <= value * number.scale <= number.bound:  # false for NaN too
            raise Unanswerable(f"The number {number.name} is beyond its bound.")
        found.append(round(value * number.scale))
    return found


def _announced(plan: StatisticsPlan, vector: Vector, rounds: int, *, is_over: bool = False) -> AnnouncedStatistics:
    try:
        return AnnouncedStatistics(plan, vector, rounds, is_over=is_over)
    except OutOfBound as refused:
        raise MalformedMessage(str(refused)) from refused
