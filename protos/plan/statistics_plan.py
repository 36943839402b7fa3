"""Defines the statistics plan: one sum of counts and moments of declared columns. Such a plan trains no model.

Each site counts its own rows and adds up scaled values. It sends only these integers, masked, and only one time for
each version of its data. The rules:

* a cell is the rows of a column with a value, or the rows of one code. If any cell of a site is too small, the site
  sends zeros for all its numbers;
* values are clipped to the declared range and scaled to 0..1, so every number has a bound;
* columns that a plan does not declare are neither counted nor named.

With `privacy` each patient adds one clipped term to noisy counts and moments: the sum over the patient's rows, cut to
the norm of `clip` complete rows. A complete row has 1 for each column, and for a number also the position u in the
declared range, from -1 to 1, and u^2. No small cell is left out, because that would depend on patients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import sqrt
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from protos.plan.concepts import LowAndHigh
from protos.plan.documents import READABLE, Document
from protos.plan.plan_head import MOST_SITES, ListedSite, PlanHead, Stages
from protos.plan.private_training import LARGEST_PATIENTS
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance
from protos.wire.messages import Stage

MOMENT_SCALE: Final = 1 << 20  # 100 sites with a billion rows each stay far below 2**63
LARGEST_COUNT: Final = 1 << 30
Text = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=f"^{READABLE}+$")]
Kind = Literal["count", "sum", "squares"]


class NumericColumn(LowAndHigh):
    """A measured number. Sites send its rows with a value, and the sum and sum of squares of the scaled values."""

    name: Text


class CodedColumn(Document):
    """A category. Sites send the number of rows of each code."""

    name: Text
    codes: tuple[Text, ...] = Field(min_length=1, max_length=200)


class CountingSite(ListedSite):
    """A site of a statistics plan."""

    tier: Literal["statistics"] = "statistics"


class StatisticsPlan(PlanHead):
    """A plan in which sites send counts and moments of declared columns, in one round."""

    kind: Literal["statistics"]
    sites: Annotated[tuple[CountingSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    columns: tuple[NumericColumn | CodedColumn, ...] = Field(min_length=1, max_length=500)
    smallest_cell: int = Field(ge=1, le=1 << 20)

    def _reasons(self) -> Iterator[str]:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            yield "the plan lists a column twice under columns"
        if self.privacy is not None and self.smallest_cell != 1:
            yield f"privacy: smallest_cell is {self.smallest_cell}, but noise hides small counts. Set it to 1"

    @property
    def method_names(self) -> tuple[str, ...]:
        """Return the word for this kind of plan, which a policy allows by its tier."""
        return ("statistics",)

    @property
    def stages(self) -> Stages:
        """Return the only stage, which has one round."""
        return ((Stage.STATISTICS, 1),)

    @cached_property
    def numbers(self) -> tuple[tuple[Kind, str], ...]:
        """Return the kind and the cell of every number that a site sends, in the order of the vector."""
        found: list[tuple[Kind, str]] = []
        for column in self.columns:
            if isinstance(column, NumericColumn):
                found += [("count", column.name), ("sum", column.name), ("squares", column.name)]
            else:
                found += [("count", f"{column.name}={code}") for code in column.codes]
        return tuple(found)

    @property
    def unit(self) -> float:
        """Return the largest norm of the numbers that one patient adds to private sums. The unit is rows.

        With -1 <= u <= 1 a number's column has at most the squared norm 1 + u^2 + u^4 <= 3. A row has only one of a
        category's codes.
        """
        squares = sum(3 if isinstance(column, NumericColumn) else 1 for column in self.columns)
        return sqrt(squares) * (self.privacy.clip if self.privacy else 1.0)

    @cached_property
    def noise_variance(self) -> int:
        """Return the variance of the noise that one site adds to each integer that it sends; 0 without `privacy`."""
        return 0 if self.privacy is None else share_variance(self.privacy.ratio, self.honest)

    @property
    def largest_private_number(self) -> int:
        """Return the largest size of one integer of a private sum. A larger sum is clipped before noise is added."""
        return LARGEST_PATIENTS * PRIVATE_SCALE + LARGEST_NOISE


def summed(plan: StatisticsPlan, sums: Mapping[str, int]) -> dict[str, dict[str, float | int | None]]:
    """Compute from the sums the number of rows of each cell, and mean and standard deviation of each numeric column.

    Args:
        sums: by the numbers' names in the manifest, "count age" for example.

    Returns:
        by cell; mean and deviation are None if no site had enough rows. The deviation is that of all rows together.
    """
    told: dict[str, dict[str, float | int | None]] = {}
    for column in plan.columns:
        if isinstance(column, CodedColumn):
            told |= {f"{column.name}={code}": {"rows": sums[f"count {column.name}={code}"]} for code in column.codes}
            continue
        rows, width = sums[f"count {column.name}"], column.high - column.low
        told[column.name] = {"rows": rows, "mean": None, "deviation": None}
        if rows:
            mean = sums[f"sum {column.name}"] / MOMENT_SCALE / rows
            spread = sums[f"squares {column.name}"] / MOMENT_SCALE / rows - mean * mean
            told[column.name] |= {
                "mean": column.low + width * mean, "deviation": width * sqrt(max(0.0, spread)),
            }  # fmt: skip
    return told
