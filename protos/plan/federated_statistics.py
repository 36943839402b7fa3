"""Sums counts and moments of the columns in the plan. Such a plan trains no model.

Each site counts its own rows and adds up scaled values. It sends only these integers, masked, and only one time for
each version of its data. The rules:

* a cell is the rows of a column with a value, or the rows of one code. If any cell of a site is too small, the site
  sends zeros for all its numbers;
* values are clipped to the declared range and scaled to 0..1, so every number has a bound;
* columns that a plan does not declare are neither counted nor named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from protos.plan.documents import READABLE, Document

MOMENT_SCALE: Final = 1 << 20  # 100 sites with a billion rows each stay far below 2**63
LARGEST_COUNT: Final = 1 << 30
Text = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=f"^{READABLE}+$")]


class NumericColumn(Document):
    """A measured number. Sites send its rows with a value, and the sum and sum of squares of the scaled values."""

    name: Text
    low: float
    high: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        return self


class CodedColumn(Document):
    """A category. Sites send the number of rows of each code."""

    name: Text
    codes: tuple[Text, ...] = Field(min_length=1, max_length=200)


class Statistics(Document):
    """The sums that sites send in a plan without training. Such a plan has one round."""

    smallest_cell: int = Field(ge=1, le=1 << 20)
    columns: tuple[NumericColumn | CodedColumn, ...] = Field(min_length=1, max_length=500)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError("statistics lists a column twice")
        return self


Kind = Literal["count", "sum", "squares"]


def numbers_of(statistics: Statistics) -> tuple[tuple[Kind, str], ...]:
    """Return the kind and the cell of every number that a site sends, in the order of the vector."""
    found: list[tuple[Kind, str]] = []
    for column in statistics.columns:
        if isinstance(column, NumericColumn):
            found += [("count", column.name), ("sum", column.name), ("squares", column.name)]
        else:
            found += [("count", f"{column.name}={code}") for code in column.codes]
    return tuple(found)


def summed(statistics: Statistics, sums: Mapping[str, int]) -> dict[str, dict[str, float | int | None]]:
    """Compute from the sums the number of rows of each cell, and mean and standard deviation of each numeric column.

    Args:
        sums: by the numbers' names in the manifest, "count age" for example.

    Returns:
        by cell; mean and deviation are None if no site had enough rows. The deviation is that of all rows together.
    """
    told: dict[str, dict[str, float | int | None]] = {}
    for column in statistics.columns:
        if isinstance(column, CodedColumn):
            told |= {f"{column.name}={code}": {"rows": sums[f"count {column.name}={code}"]} for code in column.codes}
            continue
        rows, width = sums[f"count {column.name}"], column.high - column.low
        told[column.name] = {"rows": rows, "mean": None, "deviation": None}
        if rows:
            mean = sums[f"sum {column.name}"] / MOMENT_SCALE / rows
            spread = sums[f"squares {column.name}"] / MOMENT_SCALE / rows - mean * mean
            told[column.name] |= {
                "mean": column.low + width * mean, "deviation": width * math.sqrt(max(0.0, spread)),
            }  # fmt: skip
    return told
