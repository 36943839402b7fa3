"""Predicts the rows of a new table with a model of a run. The table and its predictions remain at the site.

The table is read with the contract and the preprocessing of the model's training, and predicted in the same way as in
the model's own test. The rules:

* rows keep their order; one row in, one row out;
* a row gets no prediction if it has a value that the contract does not allow, lacks a required value, or is beyond
  the limits of the training rows. The output has the reason instead;
* the output is written completely or not at all, and only its owner can read it. It replaces no file;
* a patient's identifier that a spreadsheet would take for a formula gets an apostrophe in front;
* a row whose prediction is not a finite number stops the command, so nobody uses half a table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from protos.errors import DataError, UsageError
from site_agent.desk.new_rows import NewRows, read_new_rows
from site_agent.desk.result_files import check_place, write_result
from site_agent.desk.results.saved_model import SavedModel, latest_run, load_model
from site_agent.hospital import Hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.contract import BinaryTarget, Contract, Format, RegressionTarget, TableFormat
from site_agent.trainer.data.tables import Table

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_TO_QUOTE: Final = re.compile(r"[,;|\t\r\n\"]")
_ABSTAINED: Final = "abstained_because"
_TEXT: Final = (".csv", ".txt")


@dataclass(frozen=True)
class Predicted:
    """A summary of a table of predictions that was written, with notes to read with the result.

    `abstained` is the number of rows without a prediction. `why` has a line for each column and error. `meaning` is a
    sentence about the column with the predictions, or empty.
    """

    rows: int
    abstained: int
    why: tuple[str, ...]
    run: str
    meaning: str


def predict_table(hospital: Hospital, table: Path, output: Path, run: str | None) -> Predicted:
    """Predict every row of a table of new patients with a model of a run, and write a table of predictions.

    The output is CSV, with the delimiter and the decimal mark of the table if that is text. The first column is the
    patient's identifier if the contract declares one and the table has it. Otherwise it is `row`, the row number as a
    spreadsheet counts it, like the row numbers of `data check`.
    Then follows `probability` (of the positive class), or one `probability_CODE` per class and `predicted`, or
    `prediction` in the target's own unit. The last column, `abstained_because`, has the reason for a missing
    prediction, and is empty otherwise. Numbers have all digits, so they can be read back as the same floats.

    The new rows may lack the columns of target, patient and ignored. Without a run, the latest one is taken. Raises
    OperatorError: there is no such model, the table does not fit it, or the output cannot be written.
    """
    check_place(output, "--output", hospital, [table])
    _check_output(output)
    run = latest_run(hospital.state_path) if run is None else run
    model = load_model(hospital.state_path, run)
    contract = model.preprocessing.contract
    new = read_new_rows(table, contract, model.profile)
    head = _head(contract, new)
    lines = [head, *_lines(contract, new, _cells(contract, scores_of_new_rows(hospital, model, run, new)))]
    write_result(output, _as_text(lines, new.table.contract.format))
    why = tuple(one.line for one in new.left_out)
    return Predicted(new.table.rows, new.table.rows - len(new.usable), why, run, _meaning(contract))


def _check_output(output: Path) -> None:
    if output.suffix.lower() not in _TEXT or output.exists():
        reason = "the file already exists" if output.exists() else "the name does not end with .csv"
        raise UsageError(
            what=f"Predictions cannot be written to {output.name}, because {reason}.",
            consequence="Nothing was predicted or overwritten. Nothing was sent.",
            remedy="Name a new file with --output that ends with .csv. Spreadsheets open such files.",
        )


def scores_of_new_rows(hospital: Hospital, model: SavedModel, run: str, new: NewRows) -> npt.NDArray[np.float64]:
    """Return the scores: (usable rows,) or (usable rows, classes). Raises DataError if not finite."""
    usable = new.usable
    if not len(usable):
        return np.empty((0, model.outputs) if model.outputs > 1 else (0,))
    features = model.encode(new.table, usable)
    prepare_arithmetic(hospital.training.threads)

    from site_agent.desk.applied import AppliedModel

    scores = AppliedModel(model, run, hospital.training).scores(features)
    failed = np.flatnonzero(~np.isfinite(scores.reshape(len(scores), -1)).all(axis=1))
    if failed.size:
        raise DataError(
            what=f"The model returns no finite number for row {_row_numbers(new.table)[usable[failed[0]]]}.",
            consequence="Nothing was written and nothing was sent.",
            remedy="Check this row for values far outside the range of the training data.",
        )
    return scores


def _head(contract: Contract, new: NewRows) -> list[str | float | None]:
    columns = _columns(contract)
    named = contract.patient if new.table.patients is not None else None
    first = "row" if named is None else named.name
    # If the patient column has the name of an output column, it is renamed.
    return ["patient" if first in (*columns, _ABSTAINED) else harmless(first), *columns, _ABSTAINED]


def _lines(contract: Contract, new: NewRows, cells: Iterator[list[float | str]]) -> Iterator[list[str | float | None]]:
    """Yield a line of the output for each row. A row that must not be predicted has a reason and no prediction."""
    width, table = len(_columns(contract)), new.table
    rows = _row_numbers(table).tolist()
    for number, reason in enumerate(new.reasons):
        who: str | float = rows[number] if table.patients is None else table.patients[number]
        said: list[str | float | None] = [None] * width if reason else [*next(cells)]
        yield [who, *said, reason]


def _row_numbers(table: Table) -> npt.NDArray[np.int64]:
    assert table.row_numbers is not None  # it was read from a file
    return table.row_numbers


def _as_text(lines: list[list[str | float | None]], form: Format) -> bytes:
    text = io.StringIO()
    delimiter, decimal = (form.delimiter, form.decimal) if isinstance(form, TableFormat) else (",", ".")
    for number, (who, *cells) in enumerate(lines):
        name = harmless(who) if number and isinstance(who, str) else who
        text.write(delimiter.join(csv_cell(cell, delimiter, decimal) for cell in (name, *cells)) + "\n")
    return text.getvalue().encode()


def csv_cell(cell: str | float | None, delimiter: str, decimal: str) -> str:
    """Return a cell as CSV. A cell with a semicolon is quoted, because some spreadsheets split cells at semicolons."""
    if isinstance(cell, float) and decimal != delimiter:
        return str(cell).replace(".", decimal)
    text = "" if cell is None else str(cell).replace(".", decimal) if isinstance(cell, float) else str(cell)
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _columns(contract: Contract) -> list[str]:
    match contract.target.task:
        case "binary":
            return ["probability"]
        case "multi-class":
            return [*(f"probability_{code}" for code in contract.target.classes), "predicted"]
        case "regression":
            return ["prediction"]
        case _ as task:
            assert_never(task)


def _meaning(contract: Contract) -> str:
    """Return what the column with the predictions means. With several classes, the columns' names show it."""
    target = contract.target
    if isinstance(target, BinaryTarget):
        codes = " or ".join(map(str, target.positive))
        return (
            f"The column probability has the predicted probability of {target.positive_name}: {target.name} is {codes}."
        )
    if isinstance(target, RegressionTarget):
        return f"The column prediction has the predicted {target.name}{f' in {target.unit}' if target.unit else ''}."
    return ""


def _cells(contract: Contract, scores: npt.NDArray[np.float64]) -> Iterator[list[float | str]]:
    if contract.target.task != "multi-class":
        return ([float(score)] for score in scores)
    # A spreadsheet does not treat a plain number, such as -1, as a formula.
    plain = {code for code in contract.target.classes if code.removeprefix("-").replace(".", "", 1).isdecimal()}
    names = [code if code in plain else harmless(code) for code in contract.target.classes]
    return ([*map(float, row), names[int(row.argmax())]] for row in scores)


def harmless(text: str) -> str:
    """Change a text that a spreadsheet would compute as a formula, so that the spreadsheet shows the text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
