"""Computes a Table 1 by group: rows, missing, means, deviations, quartiles, and rows of each code, from sums.

The rules:

* a cell is the rows of one code, or the rows with a number, of one group. A site with a cell that is not empty and has
  fewer patients than `smallest_cell` makes this column void for all sites in this group, with all its cells, and in
  further groups until no cell follows from a total (`void_groups`);
* missing values are no cell: their number shows no value of a patient. But the rows of a group are one;
* the rows of all groups together are a sum of the groups, so a void group makes the column of all void;
* quartiles need the rows of each bin. A site first moves its extreme values, at most a quarter on each side, inward to
  a value that `smallest_part` rows reach. So no bin shows its extremes, and quartiles stay nearly;
* a cell whose squared distances from the mean are nearly all of one patient is small, and so is one with few patients
  beside a value that half of them have;
* a column is printed if each group has values at `fewest_sites` sites or more, and each code at three or at none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    VOID,
    AnnouncedPart,
    Arithmetic,
    Bools,
    Float64,
    Frame,
    Integers,
    Number,
    StudySize,
    TableOne,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.binned_values import (
    are_few,
    beside_commonest,
    is_of_one_patient,
    quantile,
    standardised_difference,
    without_extremes,
)
from protos.statistics.design import groups_of


class TableOneArithmetic(Arithmetic):
    """The arithmetic of one Table 1; see Arithmetic."""

    def __init__(self, table: TableOne, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raises ValueError: the concepts do not fit the table."""
        self._table, self._size = table, size
        self._columns = tuple(concept_named(concepts, name) for name in table.columns)
        if len(set(table.columns)) != len(table.columns) or table.by in table.columns:
            raise ValueError("a column is listed twice, or is also the column of the groups")
        self._by, self._concepts, self.groups = table.by, concepts, groups_of(table.by, concepts)

    def _cells(self, concept: NumberConcept | CodedConcept) -> tuple[str, ...]:
        """Return the names of the counts of a column. They add up to the group's rows."""
        codes = concept.codes if isinstance(concept, CodedConcept) else ("a value",)
        return (*(f"with {code}" for code in codes), "missing")  # a code may be the word missing

    @cached_property
    def first(self) -> tuple[Number, ...]:
        """Return for each group and column sites, small cells, counts and moments; then the rows that take no part."""
        rows, found = self._size.largest_rows, list[Number]()
        for group in self.groups:
            for concept in self._columns:
                name = f"{concept.name} of {group}"
                found += [Number(f"sites {name}", 1), Number(f"sites with a small cell {name}", 1)]
                counted = [f"rows {cell} {name}" for cell in self._cells(concept)]
                scales = [1] * len(counted)
                if isinstance(concept, CodedConcept):
                    counted += [f"sites that have {code} {name}" for code in concept.codes]
                    scales += [1] * len(concept.codes)
                else:
                    counted += [f"sum {name}", f"squares {name}"]
                    counted += [f"rows of bin {place} {name}" for place in range(self._bins)]
                    scales += [SUM_SCALE, SUM_SCALE, *[1] * self._bins]
                pairs = zip(counted, scales, strict=True)
                found += [Number(one, rows * scale, scale, may_be_void=True) for one, scale in pairs]
        return (*found, Number("rows that take no part", rows))

    def first_values(self, frame: Frame) -> Float64:
        group_of = np.zeros(frame.rows) if self._by is None else frame.columns.get(self._by)
        by_column = []
        for concept in self._columns:
            own = frame.columns.get(concept.name)
            if own is None or group_of is None:
                by_column.append([[0.0] * self._length(concept)] * len(self.groups))
            else:
                places = [group_of == place for place in range(len(self.groups))]
                parts, owners = [own[here] for here in places], [frame.patients[here] for here in places]
                by_column.append(self._of_groups(concept, parts, owners, frame.smallest_cell))
        found = [number for group in zip(*by_column, strict=True) for column in group for number in column]
        return np.array([*found, float(frame.left_out)])

    def _of_groups(
        self, concept: NumberConcept | CodedConcept, parts: list[Float64], owners: list[Integers], smallest: int
    ) -> list[list[float]]:
        """Return the numbers of a column in each group, from its values in each group, and their patients."""

        def is_small(places: Sequence[int]) -> bool:
            values, patients = (np.concatenate([each[place] for place in places]) for each in (parts, owners))
            most, present = int(np.bincount(patients, minlength=1).max()), ~np.isnan(values)
            own, of = values[present], patients[present]
            if isinstance(concept, NumberConcept):
                beside, people, each = beside_commonest(own, of), len(np.unique(of)), np.bincount(of, minlength=1)
                if is_of_one_patient(own, of) or 0 < beside < min(smallest, people // 2 + 1):
                    return smallest > 1
                if len(own) ** 2 < min(smallest, people) * int(each @ each):  # few patients have most of the rows
                    return smallest > 1
            if self._bins and most > 1 and 4 * smallest * most > np.count_nonzero(present) > 0:
                return isinstance(concept, NumberConcept)  # a quarter of the rows may be of too few patients
            sizes = [len(np.unique(patients[cell])) for cell in self._shown(concept, values)]
            return any(0 < size < smallest for size in (len(np.unique(patients)), *sizes))

        void = void_groups([len(part) for part in parts], is_small)
        nothing = [1.0, 1.0, *[VOID] * (self._length(concept) - 2)]
        # A bin's extremes are of enough patients if they are of enough rows of each. More would move quartiles.
        rows = [min(smallest, self._size.smallest_part) * int(np.bincount(each, minlength=1).max()) for each in owners]
        return [
            nothing if place in void else self._of_cells(concept, part, rows[place]) for place, part in enumerate(parts)
        ]

    def _shown(self, concept: NumberConcept | CodedConcept, values: Float64) -> list[Bools]:
        """Return the cells of a column that must not be small, as flags of the rows."""
        if isinstance(concept, CodedConcept):
            return [values == code for code in range(len(concept.codes))]
        # Values at the ends of the range may have been replaced, and hide no other row. One of the others is left.
        inside, present = (values > concept.low) & (values < concept.high), ~np.isnan(values)
        return [inside if inside.any() else present & (np.cumsum(present) == 1)]

    def _length(self, concept: NumberConcept | CodedConcept) -> int:
        others = 2 + self._bins if isinstance(concept, NumberConcept) else len(concept.codes)
        return 2 + len(self._cells(concept)) + others

    @property
    def _bins(self) -> int:
        return self._table.bins or 0

    def _of_cells(self, concept: NumberConcept | CodedConcept, values: Float64, smallest: int) -> list[float]:
        present = values[~np.isnan(values)]
        moments: list[float] = []
        if isinstance(concept, CodedConcept):
            counts = [int(np.count_nonzero(cell)) for cell in self._shown(concept, present)]
            moments = [float(count > 0) for count in counts]
        else:
            scaled = (present - concept.low) / (concept.high - concept.low)
            moments = [float(scaled.sum()), float(scaled @ scaled)]
            if self._bins:
                places = (without_extremes(scaled, smallest) * self._bins).astype(np.int64)
                moments += np.bincount(np.minimum(places, self._bins - 1), minlength=self._bins).tolist()
            counts = [len(present)]
        return [float(len(present) > 0), 0.0, *map(float, counts), float(len(values) - len(present)), *moments]

    def own(self, frame: Frame) -> dict[str, Any]:
        """Return the same table of this site's rows. No cell of it is too small for the site's own people."""
        size = replace(self._size, sites=1, fewest_sites=1, smallest_part=1)
        alone = TableOneArithmetic(self._table, self._concepts, size)
        rows = replace(frame, patients=np.arange(frame.rows), smallest_cell=1)
        return alone.result(AnnouncedPart(first=alone.first_values(rows)))

    def means(self, sums: AnnouncedPart) -> dict[str, float]:
        found = {}
        for concept, by_group in self._by_column(sums):
            _, small, rows, _, total, *_ = by_group.sum(axis=0)
            if isinstance(concept, NumberConcept) and not small:
                found[concept.name] = float(concept.low + (concept.high - concept.low) * total / rows)
        return found

    def _by_column(self, sums: AnnouncedPart) -> Iterator[tuple[NumberConcept | CodedConcept, Float64]]:
        """Yield each column with its numbers, float64 of shape (groups, numbers)."""
        of_all, start = sums.first[:-1].reshape(len(self.groups), -1), 0
        for concept in self._columns:
            yield concept, of_all[:, start : start + self._length(concept)]
            start += self._length(concept)

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        """Return for each column a record of each group. A void cell has a reason and no numbers."""
        found: dict[str, dict[str, Any]] = {}
        for concept, by_group in self._by_column(sums):
            moved = self._size.smallest_part - 1  # of each site, at each end
            records = {
                name: self._record(concept, one, moved * float(one[0]))
                for name, one in zip(self.groups, by_group, strict=True)
            }
            if self._by is not None:
                numbers, sites = by_group.sum(axis=0), by_group[by_group[:, 0] > 0.0, 0]
                fewest, have = min(sites, default=0.0), by_group[:, 2 + len(self._cells(concept)) :]
                numbers[0] = self._size.sites if fewest >= self._size.fewest_sites else fewest
                is_coded = isinstance(concept, CodedConcept)
                if is_coded:  # each code of each group has as many sites, or nobody
                    numbers[2 + len(self._cells(concept)) :] = np.where(have > 0, have, np.inf).min(axis=0)
                whole = self._record(concept, numbers, moved * float(sites.sum()))
                # A group or code of too few sites would be the rest of all, here or in another analysis.
                if fewest < self._size.fewest_sites or (is_coded and are_few(have, self._size).any()):
                    records = dict.fromkeys(records, whole)
                records = {"all": whole} | records
            found[concept.name] = records
        groups = list(dict.fromkeys(["all", *self.groups]))
        units = {one.name: one.unit for one in self._columns if isinstance(one, NumberConcept)}
        differences = {one.name: self._difference(found[one.name]) for one in self._columns} if self._by else {}
        printed = {"groups": groups, "units": units, "columns": found, "differences": differences}
        return {"kind": "table_one"} | printed | {"rows that take no part": round(float(sums.first[-1]))}

    def _difference(self, records: dict[str, dict[str, Any]]) -> float | None:
        found = [standardised_difference(*pair) for pair in combinations((records[one] for one in self.groups), 2)]
        return max((one for one in found if one is not None), default=None) if None not in found else None

    def _record(self, concept: NumberConcept | CodedConcept, numbers: Float64, moved: float) -> dict[str, Any]:
        sites, small, *rest = numbers
        if small:
            remedy = "join codes" if isinstance(concept, CodedConcept) else "choose another range"
            remedy += " or leave out `by`" if self._by else ""
            return {"void": f"few rows or one patient of a hospital decide a cell of {concept.name}: {remedy}"}
        if sites < self._size.fewest_sites:
            return {"void": f"{sites:.0f} hospitals have {concept.name} here, and {self._size.fewest_sites} are needed"}
        *counts, missing = map(round, rest[: len(self._cells(concept))])
        rows = sum(counts)
        record: dict[str, Any] = {"rows": rows, "missing": missing, "sites": round(sites)}
        if isinstance(concept, CodedConcept):
            if are_few(np.array(rest[1 + len(counts) :]), self._size).any():
                return {"void": f"one or two hospitals have a code of {concept.name}: join codes"}
            shares = [{"rows": count, "share": count / rows if rows else None} for count in counts]
            return record | {"codes": dict(zip(concept.codes, shares, strict=True))}
        if rows < 2:
            return record | {"mean": None, "deviation": None}
        total, squares, *bins = rest[2:]
        mean, width = total / rows, concept.high - concept.low
        spread = max(0.0, squares - rows * mean * mean) / (rows - 1)
        record |= {"mean": float(concept.low + width * mean), "deviation": float(width * sqrt(spread))}
        if bins:
            far = min(0.25, moved / rows)
            ends = [[quantile(np.array(bins), share + one) for one in (-far, 0.0, far)] for share in (0.25, 0.5, 0.75)]
            error = 1 / len(bins) + 2 * max(max(at - low, high - at) for low, at, high in ends)
            quartiles = [concept.low + width * at for _, at, _ in ends]
            is_exact = error == 1 / len(bins) and width == len(bins) and (concept.low + 0.5).is_integer()
            record |= {"quartiles": quartiles, "resolution": float(f"{width * error:.12g}"), "exact if whole": is_exact}
        return record


def void_groups(rows: Sequence[int], is_small: Callable[[Sequence[int]], bool]) -> frozenset[int]:
    """Return the places of the groups to leave out, at least two if another group has rows.

    A reader who knows a total, from another analysis or plan, subtracts the groups that are shown. So groups are left
    out together until no cell of their sum is small, as if they were one group.

    `rows` are those of each group, and `is_small` says whether some groups together have a small cell.
    """
    found = [place for place, number in enumerate(rows) if number and is_small([place])]
    others = sorted((place for place, number in enumerate(rows) if number and place not in found), key=rows.__getitem__)
    while found and others and (len(found) == 1 or is_small(found)):
        found.append(others.pop(0))
    return frozenset(found)
