"""Reads a table of new patients, and lists the patients for whom the model must not predict.

A row is skipped, with the reason, in three cases: the contract does not allow a value (an undeclared code, a number
out of range, text instead of a number), a required value is missing, or a number is beyond the limits of the training
rows. A network would also give a prediction for such a row, but nobody has tested whether it is right. A table that
does not fit the contract at all (rows of another width, a repeated column) is an error, because then all rows are
suspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.drafting.format_guess import guess_format
from site_agent.desk.export.export_inputs import input_names
from site_agent.trainer.data.cell_rules import MISSING, PLAIN_DATE, Flaw
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.columns import DateFeature, DayColumn, patterns_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.mistakes import Mistake, refuse
from site_agent.trainer.data.run_table import is_missing
from site_agent.trainer.data.tables import Survey, Table, survey_new_rows

_KINDS: Final = {".parquet": "parquet", ".pq": "parquet", ".xlsx": "excel", ".csv": "text", ".txt": "text"}
_SHOWN_VALUES: Final = 3
_LONGEST_SHOWN: Final = 40
_MOST_REASONS: Final = 5
FOREIGN: Final = Flaw("outside of the training rows")
EMPTY: Final = Flaw("it and all other columns that the model reads have no value")  # such as a note below a table

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LeftOut:
    """The rows that the model does not predict for one reason, because of one column.

    `places` are int64, counted from 0, rising. `values` are shown to a person, one for each place, or none.
    """

    column: str
    flaw: Flaw
    places: Rows
    values: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return why these rows have no prediction: the column, the reason, the number of rows and common values."""
        kinds, counts = np.unique(np.array(self.values, dtype=object), return_counts=True)
        most = sorted(zip(-counts, kinds, strict=True))[:_SHOWN_VALUES]
        told = [f"{value} in {-count}" for count, value in most]
        told += [f"{len(kinds) - len(most)} other values"] if len(kinds) > len(most) else []
        values, count = f" ({', '.join(told)})" if any(self.values) else "", len(self.places)
        return f"column {self.column}: {self.flaw.words}, in {count} row{'' if count == 1 else 's'}{values}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NewRows:
    """A table of new patients, with the rows that the model does not predict, whose cells may be NaN.

    `left_out` is why rows are skipped, by column in the contract's order.
    """

    table: Table
    left_out: tuple[LeftOut, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return for each row the reason why it has no prediction, or an empty text if the row has a prediction."""
        found: list[list[str]] = [[] for _ in range(self.table.rows)]
        for one in self.left_out:
            for place, value in zip(one.places.tolist(), one.values, strict=True):
                found[place].append(f"column {one.column}: {one.flaw.words}{f' ({value})' if value else ''}")
        more = ([f"and {len(one) - _MOST_REASONS} more"] if len(one) > _MOST_REASONS else [] for one in found)
        return tuple("; ".join([*one[:_MOST_REASONS], *others]) for one, others in zip(found, more, strict=True))

    @property
    def usable(self) -> Rows:
        """Return the positions of the rows that the model predicts, int64 of shape (usable rows,), rising."""
        is_usable = np.ones(self.table.rows, dtype=bool)
        for one in self.left_out:
            is_usable[one.places] = False
        return np.flatnonzero(is_usable).astype(np.int64)


def shown(cell: object) -> str:
    """Return a value for a screen or a spreadsheet: short, on one line, without control characters."""
    text = f"{cell:g}" if isinstance(cell, float) else str(cell).strip()
    seen = (one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    plain = "".join(f"'{one}'" if one in ";|" else one for one in seen)  # where some spreadsheets split cells
    return plain if len(plain) <= _LONGEST_SHOWN else plain[: _LONGEST_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"


def read_new_rows(path: Path, contract: Contract, profile: Profile) -> NewRows:
    """Read a table of new patients by the rules of the trained model's contract. Raise DataError if it is not one.

    It may also be Parquet (.parquet), Excel (.xlsx) or text by its name. `profile` has the training rows' limits.
    """
    survey = survey_new_rows(path, _with_format_of(path, contract))
    inputs = (*input_names(contract), *([] if contract.image is None else [contract.image.name]))
    unread = contract.dates.keys() - set(inputs)
    mistakes = [one for one in survey.mistakes if one.column not in unread]
    if others := [one.line for one in mistakes if one.column not in inputs or not one.rows]:
        refuse(others)
    left_out = [*_off_contract(survey, mistakes), *_foreign(survey.table, profile)]
    left_out += _empty(survey.table, left_out)
    left_out.sort(key=lambda one: inputs.index(one.column))
    return NewRows(table=survey.table, left_out=tuple(left_out))


def _off_contract(survey: Survey, mistakes: Sequence[Mistake]) -> list[LeftOut]:
    """Return the cells that cannot be read or that the contract forbids."""
    table, found = survey.table, []
    assert table.row_numbers is not None
    for mistake in mistakes:
        assert mistake.column is not None
        flaw, column, rows = Flaw(mistake.flaw), mistake.column, np.array(mistake.rows, dtype=np.int64)
        places = np.searchsorted(table.row_numbers, rows)
        cells = [survey.cells.get((column, row), "") for row in table.row_numbers[places].tolist()]
        values = tuple("" if flaw == MISSING else shown(cell) for cell in cells)
        found.append(LeftOut(column=column, flaw=flaw, places=places.astype(np.int64), values=values))
    return found


def _empty(table: Table, known: Sequence[LeftOut]) -> list[LeftOut]:
    """Return the rows without any value that the model reads, such as a note below the table, and no other flaw."""
    features = table.contract.features
    if len(features) <= 1 or table.images is not None:
        return []
    is_empty = np.all([is_missing(one, table.features[one.name]) for one in features], axis=0)
    for one in known:
        is_empty[one.places] = False
    places = np.flatnonzero(is_empty).astype(np.int64)
    column, values = features[0].name, ("",) * len(places)
    return [LeftOut(column=column, flaw=EMPTY, places=places, values=values)] if values else []


def _foreign(table: Table, profile: Profile) -> list[LeftOut]:
    found = []
    for column in profile.columns:
        places = np.flatnonzero(column.is_outside(table.features[column.name])).astype(np.int64)
        if places.size:
            values = tuple(shown(float(value)) for value in table.features[column.name][places])
            found.append(LeftOut(column=column.name, flaw=FOREIGN, places=places, values=values))
    return found


def _with_format_of(path: Path, contract: Contract) -> Contract:
    """Return the contract with the format that the file's name shows. A cell with a date has no declared pattern."""
    if _KINDS.get(path.suffix.lower().replace(".tsv", ".csv"), contract.format.kind) == contract.format.kind:
        return contract
    other = guess_format(path, sheet=None, query=None)
    other = other.model_copy(update={"zone": contract.format.zone})
    columns = [
        one.model_copy(update={"pattern": (*patterns_of(one.pattern), PLAIN_DATE)})
        if isinstance(one, DateFeature | DayColumn)
        else one
        for one in contract.columns
    ]
    return contract.model_copy(update={"format": other, "columns": tuple(columns)})
