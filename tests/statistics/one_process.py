"""Runs the arithmetic of one analysis over frames of sites, with each number as the integer that a site sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from protos.plan.analyses import AnnouncedPart, Arithmetic, Float64, Frame, Number, StudySize, Unanswerable
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.group_curves import CurveArithmetic

NEWTON_ROUNDS = 12


def size(sites: int, *, fewest_sites: int = 3, smallest_cell: int = 1, rows_per_unknown: float = 1.0) -> StudySize:
    """Return the size of a study that hides nothing but what the test is about."""
    return StudySize(
        sites=sites,
        fewest_sites=fewest_sites,
        largest_rows=1 << 20,
        smallest_cell=smallest_cell,
        smallest_part=smallest_cell,
        rows_per_unknown=rows_per_unknown,
    )


def number(name: str, low: float, high: float, unit: str | None = None) -> NumberConcept:
    """Return a concept of a number."""
    return NumberConcept(kind="number", name=name, definition=name, low=low, high=high, unit=unit)


def codes(name: str, *of: str) -> CodedConcept:
    """Return a concept of codes."""
    return CodedConcept(kind="codes", name=name, definition=name, codes=of)


def concepts_of(table: pd.DataFrame, coded: Mapping[str, Sequence[object]]) -> tuple[Concept, ...]:
    """Return concepts for all columns: those in `coded` have codes, the others are numbers within a wide range."""
    found: list[Concept] = []
    for name in map(str, table.columns):
        if name in coded:
            found.append(codes(name, *map(str, coded[name])))
        else:
            low, high = float(table[name].min()), float(table[name].max())
            found.append(number(name, min(low, 0.0), high + 0.25 * (high - low), "days" if name == "time" else None))
    return tuple(found)


def frames_of(table: pd.DataFrame, site: str, coded: Mapping[str, Sequence[object]]) -> list[Frame]:
    """Return a frame for each value of the column `site`."""
    return [_frame_of(rows.drop(columns=site), coded) for _, rows in table.groupby(site)]


def _frame_of(rows: pd.DataFrame, coded: Mapping[str, Sequence[object]]) -> Frame:
    columns = {}
    for name in map(str, rows.columns):
        values = rows[name]
        if name in coded:
            values = values.map({code: float(place) for place, code in enumerate(coded[name])})
        columns[name] = values.to_numpy(np.float64, na_value=np.nan)
    return Frame(columns=columns, patients=np.arange(len(rows)), smallest_cell=1)


def without_missing(frame: Frame) -> Frame:
    """Return the rows that have a value in every column."""
    return frame.only(~np.isnan([*frame.columns.values()]).any(axis=0))


def run(arithmetic: Arithmetic, frames: Sequence[Frame]) -> tuple[dict[str, Any], AnnouncedPart]:
    """Return what is printed, and the sums. Models and curves have the rows without a missing value, as in a plan."""
    if isinstance(arithmetic, CurveArithmetic):
        by = arithmetic._curve.by
        frames = [one.only(~np.isnan(one.columns[by])) if by else one for one in frames]
    elif arithmetic.newton:
        frames = [without_missing(frame) for frame in frames]
    sums = AnnouncedPart(first=_sum(arithmetic.first, [arithmetic.first_values(frame) for frame in frames]))
    try:
        while not arithmetic.has_converged(sums) and len(sums.newton) < NEWTON_ROUNDS:
            values = _sum(arithmetic.newton, [arithmetic.newton_values(frame, sums) for frame in frames])
            sums = AnnouncedPart(first=sums.first, newton=(*sums.newton, values))
        if arithmetic.last:
            last = _sum(arithmetic.last, [arithmetic.last_values(frame, sums) for frame in frames])
            sums = AnnouncedPart(first=sums.first, newton=sums.newton, last=last)
    except Unanswerable:
        arithmetic.result(sums)  # the sums so far may name the column
        raise
    return arithmetic.result(sums), sums


def _sum(numbers: tuple[Number, ...], values: Sequence[Float64]) -> Float64:
    scales = np.array([one.scale for one in numbers], np.float64)
    bounds = np.array([float(one.bound) for one in numbers])
    signed = np.array([one.is_signed for one in numbers])
    may_be_void = np.array([one.may_be_void for one in numbers])
    total: npt.NDArray[np.int64] = np.zeros(len(numbers), np.int64)
    for vector in values:
        assert vector.shape == (len(numbers),)
        integers = np.where(may_be_void & np.isnan(vector), bounds, np.rint(vector * scales))
        assert (np.abs(integers) <= bounds).all()
        assert (signed | (integers >= 0)).all()
        total += integers.astype(np.int64)
    return np.asarray(total / scales)
