"""New patients, and of which of them the model had better say nothing.

A row is left out, with the reason, where a feature that the contract requires has no value, or a value leaves the
declared range or the limits of the training rows: a network answers there as well, and nobody has seen whether
it is right. What is not a table of the contract at all (other columns, text where a number is declared) is an
error, because then all rows are suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.contract import Contract, ParquetFormat, TableFormat
from site_agent.trainer.data.mistakes import Mistake, refuse
from site_agent.trainer.data.tables import Table, survey_new_rows

_PARQUET: Final = (".parquet", ".pq")
_TEXT: Final = (".csv", ".tsv", ".txt")
_ABSENT: Final = ": it is missing"
_BEYOND: Final = ("outside the declared range", "in the future", ": a code that is not declared")
_OF_ONE_ROW: Final = (": a missing value, which the contract refuses", *_BEYOND)
_MOST_REASONS: Final = 5


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NewRows:
    """A table of new patients.

    Attributes:
        table: as it was read; cells of rows that are left out may be NaN.
        reasons: for each row why it is left out, empty where it is not; without any value.
        beyond: by column the rows whose value the contract does not allow: out of its range, in the future, or a
            code that is not declared where missing values are refused. In the table such a cell is NaN, or unknown.
    """

    table: Table
    reasons: tuple[str, ...]
    beyond: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def usable(self) -> npt.NDArray[np.int64]:
        """The rows that are not left out, rising, int64 of shape (usable rows,)."""
        return np.flatnonzero([not reason for reason in self.reasons]).astype(np.int64)


def read_new_rows(path: Path, contract: Contract, profile: Profile | None, *, has_outcome: bool = False) -> NewRows:
    """Read new patients under the contract that the model was trained with.

    Args:
        path: a file as the contract's format says; by its name it may also be Parquet (.parquet) or text (.csv).
        contract: the model's.
        profile: of the training rows, for their limits; without one no value is too far.
        has_outcome: whether the outcome is known and read.

    Raises:
        DataError: it is not a table of this contract.
    """
    survey = survey_new_rows(path, _with_format_of(path, contract), has_outcome=has_outcome)
    table = survey.table
    reasons: list[list[str]] = [[] for _ in range(table.rows)]
    others, beyond = [], dict[str, npt.NDArray[np.int64]]()
    for mistake in survey.mistakes:
        if mistake.words.startswith(f"column {contract.target.name}: "):
            others.append(mistake.line)
        elif mistake.words.endswith(_ABSENT):
            for found in reasons:
                found.append(mistake.words)
        elif any(part in mistake.words for part in _OF_ONE_ROW):
            places = _note(reasons, table, mistake)
            if any(part in mistake.words for part in _BEYOND):
                name = mistake.words.removeprefix("column ").rpartition(": ")[0]
                beyond[name] = np.union1d(beyond.get(name, places[:0]), places)
        else:
            others.append(mistake.line)
    if others:
        refuse(others)
    for column in profile.columns if profile is not None else ():
        for place in np.flatnonzero(column.is_outside(table.features[column.name])):
            reasons[place].append(f"column {column.name}: outside of the training rows")
    told = tuple("; ".join(found[:_MOST_REASONS]) for found in reasons)
    return NewRows(table=table, reasons=told, beyond=beyond)


def _note(reasons: list[list[str]], table: Table, mistake: Mistake) -> npt.NDArray[np.int64]:
    """Say the mistake of its rows; their places."""
    assert table.row_numbers is not None
    places = np.searchsorted(table.row_numbers, mistake.rows).astype(np.int64)
    for place in places:
        reasons[place].append(mistake.words)
    return places


def _with_format_of(path: Path, contract: Contract) -> Contract:
    """The contract for a file whose name says that it is of another kind than the hospital's own table."""
    suffix = path.suffix.lower()
    if suffix in _PARQUET and not isinstance(contract.format, ParquetFormat):
        return contract.model_copy(update={"format": ParquetFormat(kind="parquet")})
    if suffix in _TEXT and not isinstance(contract.format, TableFormat):
        return contract.model_copy(
            update={"format": TableFormat(header=True, delimiter="\t" if suffix == ".tsv" else ",")}
        )
    return contract
