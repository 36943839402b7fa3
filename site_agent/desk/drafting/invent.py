"""Writes a table of made-up patients that satisfies a contract, for rehearsals. No patient in it is real.

Columns are drawn independently. Only the outcome depends on some of them, so that there is something to learn. The
same seed gives the same table.
"""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
from openpyxl import Workbook

from protos.errors import UsageError
from site_agent.desk.prediction import as_parquet, harmless
from site_agent.trainer.data.cells import DAYS_PER_YEAR
from site_agent.trainer.data.contract import BinaryTarget, Contract, MaskTarget, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.contract_columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    Feature,
    NumericFeature,
    patterns_of,
)
from site_agent.trainer.data.formats import ExcelFormat, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.terms import TermsFeature

_MISSING_SHARE: Final = 0.05
_MOST_TERMS: Final = 50
_LAST_DAY: Final = date(2024, 12, 31)

Cells = list[str]


def invent(contract: Contract, *, rows: int, seed: int) -> list[Cells]:
    """Return a made-up table that satisfies a contract. It has at least 20 rows, and at least 5 of each class.

    The first row has the names if the contract's format has such a row.

    Raises:
        UsageError: the rows are too few, or a spreadsheet would take a name or code for a formula.
    """
    target = contract.target
    if contract.image is not None:
        raise _unusable("This contract has images, and images cannot be made up.", "Use a contract without images.")
    fewest = max(20, 5 * len(target.classes))
    if rows < fewest:
        raise _unusable(f"{rows} rows are too few for this contract.", f"Ask for at least {fewest} with --rows.")
    generator = np.random.default_rng(seed)
    days = _days(contract, rows, generator)
    columns: dict[str, Cells] = {}
    leaning = np.zeros(rows)
    for feature in contract.features:
        columns[feature.name], lean = _feature(feature, rows, generator, days)
        leaning += lean
    for listed in contract.terms:
        columns[listed.name], lean = _terms(listed, rows, generator)
        leaning += lean
    for column in contract.columns:
        if column.role == "patient":
            columns[column.name] = [f"P{number:06d}" for number in range(1, rows + 1)]
        elif column.role == "ignore":
            columns[column.name] = [""] * rows
        elif column.role == "group":
            columns[column.name] = [column.codes[place] for place in generator.integers(len(column.codes), size=rows)]
        elif column.role == "date":
            columns[column.name] = [day.strftime(patterns_of(column.pattern)[0]) for day in days[column.name]]
    columns[target.name] = _target(contract, leaning, generator)
    names = [column.name for column in contract.columns]
    if contract.format.decimal == ",":
        numbers = [column.name for column in contract.columns if isinstance(column, NumericFeature | RegressionTarget)]
        columns |= {name: [cell.replace(".", ",") for cell in columns[name]] for name in numbers}
    table = [list(cells) for cells in zip(*(columns[name] for name in names), strict=True)]
    table = [names, *table] if contract.format.header else table
    if any(harmless(cell) != cell and not _is_number(cell) for row in table for cell in row):
        raise _unusable(
            "A name or code of this contract begins as a formula does.",
            "Give it another spelling in table and contract.",
        )
    return table


def write_table(table: list[Cells], contract: Contract) -> bytes:
    """Return the made-up table as a file in the contract's format. Raises UsageError for a database."""
    match contract.format:
        case TableFormat(delimiter=delimiter, encoding=encoding):
            text = io.StringIO()
            csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(table)
            return text.getvalue().encode(encoding)
        case ExcelFormat(sheet=sheet):
            workbook, stream = Workbook(write_only=True), io.BytesIO()
            page = workbook.create_sheet(sheet or "table")
            for row in table:
                page.append(row)
            workbook.save(stream)
            return stream.getvalue()
        case ParquetFormat():
            return as_parquet(table)
        case SqlFormat():
            raise _unusable(
                "This contract reads from a database.", "Invent a table for a contract with another format."
            )
        case _:
            assert_never(contract.format)


def _feature(
    feature: Feature, rows: int, generator: np.random.Generator, days: dict[str, list[date]]
) -> tuple[Cells, npt.NDArray[np.float64]]:
    """Return the cells of a made-up column, and how much each cell raises the probability of the outcome."""
    may_be_missing = feature.missing != "refuse"
    absent = generator.random(rows) < (_MISSING_SHARE if may_be_missing else 0.0)
    if isinstance(feature, CategoricalFeature):
        places = generator.integers(len(feature.codes), size=rows)
        cells = [feature.codes[place] for place in places]
        lean = (places - (len(feature.codes) - 1) / 2) / max(1, len(feature.codes) - 1)
    elif isinstance(feature, DateFeature):
        cells = [day.strftime(patterns_of(feature.pattern)[0]) for day in days[feature.name]]
        lean = np.zeros(rows)
    else:
        lean = np.clip(generator.normal(size=rows), -2.5, 2.5)
        low, high = feature.range or (0.0, 100.0)
        markers = {0.0, *(float(marker) for marker in feature.missing_markers if _is_number(marker))}
        drawn = low + (high - low) * (0.5 + lean / 6)
        values = [value if value not in markers else value + (high - low) / 7 for value in map(float, drawn)]
        cells = [f"{value:.6g}" for value in values]
    return ["" if is_absent else cell for cell, is_absent in zip(cells, absent, strict=True)], np.asarray(lean, float)


def _terms(column: TermsFeature, rows: int, generator: np.random.Generator) -> tuple[Cells, npt.NDArray[np.float64]]:
    """Return made-up lists of up to five terms, and how much each list raises the probability of the outcome."""
    names = column.codes or tuple(f"term{number}" for number in range(1, min(column.buckets or 0, _MOST_TERMS) + 1))
    drawn = [generator.integers(len(names), size=count).tolist() for count in generator.integers(1, 6, size=rows)]
    between = column.separator if column.type == "codes" else " "
    cells = [between.join(names[place] for place in places) for places in drawn]
    return cells, np.array([float(0 in places) for places in drawn])


def _days(contract: Contract, rows: int, generator: np.random.Generator) -> dict[str, list[date]]:
    """Return made-up days for every date column, so that each interval between dates is within its declared range."""
    found: dict[str, list[date]] = {}
    for name, column in contract.dates.items():
        if isinstance(column, DayColumn):
            back = generator.integers(0, 365, size=rows).tolist()
            found[name] = [_LAST_DAY - timedelta(days=int(days)) for days in back]
    for name, column in contract.dates.items():
        if isinstance(column, DateFeature):
            low, high = column.range or ((20, 90) if column.unit == "years" else (0, 365))
            factor = DAYS_PER_YEAR if column.unit == "years" else 1.0
            lengths = [int(factor * (low + (high - low) * share)) for share in generator.uniform(0.2, 0.8, size=rows)]
            ends = found.get(column.other)
            other = ends or [_parsed(column.other) or _LAST_DAY] * rows
            sign = 1 if column.since is not None else -1
            found[name] = [day + sign * timedelta(days=length) for day, length in zip(other, lengths, strict=True)]
    return found


def _target(contract: Contract, leaning: npt.NDArray[np.float64], generator: np.random.Generator) -> Cells:
    target = contract.target
    score = leaning / (leaning.std() or 1.0) + generator.normal(size=len(leaning))
    ranks = score.argsort().argsort()
    assert not isinstance(target, MaskTarget)  # it has an image, which was refused
    match target:
        case BinaryTarget():
            others = (code for code in ("0", "no", "negative") if code not in target.positive)
            negative = target.negative[0] if target.negative else next(others)
            return [target.positive[0] if 3 * rank >= 2 * len(ranks) else negative for rank in ranks]
        case MultiClassTarget():
            return [target.codes[rank * len(target.codes) // len(ranks)] for rank in ranks]
        case RegressionTarget():
            low, high = target.range or (0.0, 100.0)
            return [f"{low + (high - low) * (rank + 1) / (len(ranks) + 1):.6g}" for rank in ranks]
        case _:
            assert_never(target)


def _parsed(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).replace(",", "", 1).replace("e+", "", 1).isdecimal()


def _unusable(what: str, remedy: str) -> UsageError:
    return UsageError(what=what, consequence="Nothing was written and nothing was sent.", remedy=remedy)
