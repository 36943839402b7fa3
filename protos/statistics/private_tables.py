"""Computes every Table 1 of a plan with differential privacy: one clipped term of each patient, and noisy sums.

A complete row has 1 for each column in its group, and for a number also its position u in the declared range, from -1
to 1, and u^2. The patient's term is the sum over the rows, cut to the norm of `clip` complete rows. No small cell is
left out, because that would depend on patients. A mean is computed only if the noisy count is far above its noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, Final

import numpy as np

from protos.plan.analyses import Analysis, Float64, Integers, TableOneAnalysis, concept_named
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.privacy.accounting import PRIVATE_SCALE
from protos.statistics.design import groups_of

_SURE: Final = 5.0  # a mean needs a count above this many standard deviations of the count's noise


@dataclass(frozen=True)
class _Column:
    """One column of one Table 1 in one group, which has the code of `by` at this place. `by` is None without groups."""

    analysis: str
    concept: NumberConcept | CodedConcept
    by: str | None
    place: int
    group_name: str

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.concept.codes if isinstance(self.concept, CodedConcept) else ("count", "sum", "squares")


class PrivateTables:
    """The numbers of all tables of a plan. `clip` is the largest influence of a patient, in complete rows."""

    def __init__(self, analyses: Sequence[Analysis], concepts: tuple[Concept, ...], clip: float) -> None:
        """Raises ValueError: an analysis has no private form."""
        self._columns: list[_Column] = []
        squares = 0
        for analysis in analyses:
            if not isinstance(analysis, TableOneAnalysis):
                raise ValueError("only a table_one has a private form")
            table = analysis.table_one
            if table.bins is not None:
                raise ValueError("bins have no private form")
            named = [concept_named(concepts, name) for name in table.columns]
            squares += sum(3 if isinstance(concept, NumberConcept) else 1 for concept in named)
            for place, group in enumerate(groups_of(table.by, concepts)):
                self._columns += [_Column(analysis.name, concept, table.by, place, group) for concept in named]
        # With -1 <= u <= 1 a number has at most the squared norm 1 + u^2 + u^4 <= 3. A row has one code and one group.
        self.unit = sqrt(squares) * clip

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(
            f"{kind} {column.concept.name} of {column.group_name}, {column.analysis}"
            for column in self._columns
            for kind in column.kinds
        )

    def terms(self, columns: Mapping[str, Float64], rows: Integers) -> Float64:
        """Return the terms of these rows before they are clipped, float64 (rows, numbers).

        A concept that a site does not record is absent from `columns` and adds 0.
        """
        return np.column_stack([term for column in self._columns for term in _terms(column, columns, rows)])

    def results(self, sums: Sequence[int], noise_variance: float) -> list[dict[str, Any]]:
        """Return the tables with noisy numbers of rows, in the sequence of the plan.

        Args:
            sums: in the sequence of `names`.
            noise_variance: of one sum over all sites.
        """
        noise = sqrt(noise_variance) / PRIVATE_SCALE * self.unit
        found: dict[str, dict[str, Any]] = {}
        start = 0
        for column in self._columns:
            values = [number / PRIVATE_SCALE * self.unit for number in sums[start : start + len(column.kinds)]]
            start += len(values)
            table = found.setdefault(
                column.analysis,
                {"name": column.analysis, "kind": "table_one", "noise": noise, "groups": [], "columns": {}},
            )
            if column.group_name not in table["groups"]:
                table["groups"].append(column.group_name)
            table["columns"].setdefault(column.concept.name, {})[column.group_name] = _record(column, values, noise)
        return list(found.values())


def _terms(column: _Column, columns: Mapping[str, Float64], rows: Integers) -> Iterator[Float64]:
    concept, nothing = column.concept, np.zeros(len(rows))
    if concept.name not in columns or (column.by is not None and column.by not in columns):
        yield from [nothing] * len(column.kinds)
        return
    values = columns[concept.name][rows]
    is_here = np.ones(len(rows)) if column.by is None else columns[column.by][rows] == column.place
    if isinstance(concept, CodedConcept):
        yield from (is_here * (values == place) for place in range(len(concept.codes)))
        return
    present = ~np.isnan(values)
    scaled = np.clip((values - concept.low) / (concept.high - concept.low), 0.0, 1.0)
    position = np.where(present, 2.0 * scaled - 1.0, 0.0)
    yield from (is_here * present, is_here * position, is_here * position**2)


def _record(column: _Column, values: list[float], noise: float) -> dict[str, Any]:
    concept = column.concept
    if isinstance(concept, CodedConcept):
        counts = {code: max(0, round(one)) for code, one in zip(column.kinds, values, strict=True)}
        total = sum(counts.values())
        is_sure = total > _SURE * noise * sqrt(len(counts))
        codes = {code: {"rows": one, "share": one / total if is_sure else None} for code, one in counts.items()}
        return {"rows": total, "codes": codes}
    rows, first, second = values
    record: dict[str, Any] = {"rows": max(0, round(rows)), "mean": None, "deviation": None}
    if rows > _SURE * noise:
        centre, half = (concept.low + concept.high) / 2, (concept.high - concept.low) / 2
        mean = min(1.0, max(-1.0, first / rows))
        spread = min(1.0, max(0.0, second / rows - mean * mean))
        record |= {"mean": centre + half * mean, "deviation": half * sqrt(spread)}
    return record
