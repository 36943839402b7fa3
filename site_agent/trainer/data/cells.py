"""One cell of text to one number, as its column declares; the only place that interprets cells.

A cell that does not fit becomes a `Flaw`, which says what is wrong in words that hold no part of the
cell. Nothing here raises: an exception of a parser would quote the cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

from site_agent.trainer.data.contract import (
    BinaryTarget,
    CategoricalFeature,
    Feature,
    MultiClassTarget,
    NumericFeature,
    RegressionTarget,
    TableFormat,
    Target,
    canonical_code,
)

UNKNOWN_POSITION: Final = -1.0
_REMEMBERED_CELLS: Final = 1 << 10
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class Flaw:
    """Why a cell does not fit, without the cell."""

    words: str


Parser: TypeAlias = Callable[[str], float | Flaw]

_NOT_A_NUMBER: Final = Flaw("text where a number is declared")
_TOO_LARGE: Final = Flaw("a number too large to compute with")
_MISSING: Final = Flaw("a missing value, which the contract refuses")
_UNDECLARED: Final = Flaw("a code that is not declared")


def feature_parser(
    feature: Feature, form: TableFormat, missing_markers: tuple[str, ...], *, for_prediction: bool
) -> Parser:
    """What turns a feature's cells into numbers: NaN for a missing number, -1 for an unknown code."""
    markers = {"", *missing_markers, *feature.missing_markers}
    match feature:
        case NumericFeature():
            return _numbers(form.decimal, markers, feature)
        case CategoricalFeature():
            absent = _MISSING if feature.missing == "refuse" else UNKNOWN_POSITION
            positions: dict[str, float | Flaw] = {code: float(i) for i, code in enumerate(feature.codes)}
            positions |= dict.fromkeys(markers, absent)
            return _codes(form.decimal, positions, UNKNOWN_POSITION if for_prediction else _UNDECLARED)
        case _:
            assert_never(feature)


def target_parser(target: Target, form: TableFormat, missing_markers: tuple[str, ...]) -> Parser:
    """What turns a target's cells into 0 and 1, an index, or a number; a missing one is a flaw."""
    markers = {"", *missing_markers}
    codes: dict[str, float | Flaw] = {}
    if not isinstance(target, RegressionTarget):
        # A code that is declared wins over a marker that happens to be spelt the same.
        codes |= dict.fromkeys(markers, _MISSING)
    match target:
        case BinaryTarget():
            codes |= dict.fromkeys(target.negative or (), 0.0) | dict.fromkeys(target.positive, 1.0)
            return _codes(form.decimal, codes, 0.0 if target.negative is None else _UNDECLARED)
        case MultiClassTarget():
            codes |= {code: float(i) for i, code in enumerate(target.codes)}
            return _codes(form.decimal, codes, _UNDECLARED)
        case RegressionTarget():
            return _numbers(form.decimal, markers, None)
        case _:
            assert_never(target)


def _codes(decimal: str, values: dict[str, float | Flaw], otherwise: float | Flaw) -> Parser:
    @lru_cache(maxsize=_REMEMBERED_CELLS)
    def parse(cell: str) -> float | Flaw:
        return values.get(canonical_code(cell, decimal), otherwise)

    return parse


def _numbers(decimal: str, markers: Iterable[str], feature: NumericFeature | None) -> Parser:
    words = {marker for marker in markers if not _NUMBER.fullmatch(marker)}
    values = {float(marker) for marker in markers if marker not in words}
    low, high = (feature.range if feature else None) or (-math.inf, math.inf)
    outside = Flaw(f"a number outside the declared range {low:g} to {high:g}")
    missing = _MISSING if feature is None or feature.missing == "refuse" else math.nan

    @lru_cache(maxsize=_REMEMBERED_CELLS)
    def parse(cell: str) -> float | Flaw:
        text = cell.strip()
        if text in words:
            return missing
        if decimal != ".":
            text = text.replace(".", " ").replace(decimal, ".")
        if not _NUMBER.fullmatch(text):
            return _NOT_A_NUMBER
        value = float(text)
        if value in values:
            return missing
        # Squares of larger numbers would overflow when the spread of the column is computed.
        if abs(value) > 1e100:
            return _TOO_LARGE
        return value if low <= value <= high else outside

    return parse
