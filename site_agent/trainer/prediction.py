"""The chosen model on new rows: a table in, a table of predictions out; both stay at the site.

The table is read under the contract that the model was trained with, encoded by the preprocessing that
was fitted then, and computed as the model's own test was. The rules:

* rows keep their order; one row in, one row out;
* the output is whole or not there at all, readable by its owner only, and replaces an earlier one;
  it never replaces this site's table, its contract, or the table that is read;
* an identifier that a spreadsheet would take for a formula gets an apostrophe in front;
* a row whose prediction is no finite number stops everything: nobody acts on half a table.

Torch is loaded only when the table was read without a mistake.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from protos.errors import DataError, UsageError
from site_agent.config import Hospital, Training
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table, read_table
from site_agent.trainer.files import write_whole
from site_agent.trainer.saved_model import SavedModel, latest_run, load_model

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def predict_table(hospital: Hospital, table: Path, output: Path, run: str | None) -> int:
    """Predict for every row of a table and write the predictions as CSV.

    The first column is the patient's identifier, where the contract declares one and the table has it,
    otherwise `row`, counted from 1 over the table's patients. Then follow `probability` (of the
    positive class), or one `probability_CODE` per class and `predicted`, or `prediction` in the
    target's own unit. Numbers have all their digits: read back, they are the same floats.

    Args:
        hospital: this site.
        table: new rows, with or without the columns of target, patient and ignored.
        output: where the predictions go, in a folder that exists.
        run: the run whose model is used; None takes the one saved last.

    Returns:
        the number of rows.

    Raises:
        OperatorError: there is no such model, the table does not fit it, or the output cannot be written.
    """
    _check_output(hospital, table, output)
    name = latest_run(hospital.state_path) if run is None else run
    model = load_model(hospital.state_path, name)
    rows = read_table(table, model.preprocessing.contract, for_prediction=True)
    scores = _scores(model, model.preprocessing.encode(rows), name, hospital.training)
    write_whole(output, _written(model.preprocessing.contract, rows, scores))
    return rows.rows


def _scores(
    model: SavedModel, features: npt.NDArray[np.float32], run: str, training: Training
) -> npt.NDArray[np.float64]:
    prepare_arithmetic(training.threads)

    from site_agent.trainer.applied import AppliedModel
    from site_agent.trainer.evaluation import scores_of

    outputs = AppliedModel(model, run, training).outputs(features)
    failed = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if failed.size:
        raise DataError(
            what=f"The model gives no finite number for {failed.size} rows; the first is patient row {failed[0] + 1}.",
            consequence="Nothing was written and nothing left this site.",
            remedy="Look for values in these rows that are far from those the model was trained with.",
        )
    return scores_of(model.preprocessing, outputs)


def _written(contract: Contract, table: Table, scores: npt.NDArray[np.float64]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = _columns(contract)
    named = contract.patient if table.patients is not None else None
    first = "row" if named is None else named.name
    # A patient column that is called like one of ours would make two columns of one name.
    writer.writerow(["patient" if first in columns else harmless(first), *columns])
    who = range(1, table.rows + 1) if table.patients is None else map(harmless, table.patients)
    writer.writerows([identifier, *cells] for identifier, cells in zip(who, _cells(contract, scores), strict=True))
    return text.getvalue().encode()


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


def _cells(contract: Contract, scores: npt.NDArray[np.float64]) -> Iterator[list[float | str]]:
    if contract.target.task != "multi-class":
        return ([float(score)] for score in scores)
    names = [code if _is_number(code) else harmless(code) for code in contract.target.classes]
    return ([*map(float, row), names[int(row.argmax())]] for row in scores)


def harmless(text: str) -> str:
    """The text as a spreadsheet shows it and never computes it."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _is_number(code: str) -> bool:
    """Whether a declared code is a plain number, such as -1, which no spreadsheet runs."""
    return code.removeprefix("-").replace(".", "", 1).isdecimal()


def _check_output(hospital: Hospital, table: Path, output: Path) -> None:
    kept = [table, Path(hospital.data.table), Path(hospital.data.contract)]
    is_kept = any(path.exists() and output.exists() and output.samefile(path) for path in kept)
    if is_kept or (output.exists() and not output.is_file()):
        reason = "is this site's own table or contract, or the table to be read" if is_kept else "is not a file"
    elif not output.name or not output.parent.is_dir():
        reason = "lies in no folder that exists"
    else:
        return
    raise UsageError(
        what=f"The predictions cannot be written to {output.name or output}: it {reason}.",
        consequence="Nothing was predicted or overwritten, and nothing left this site.",
        remedy="Name another file with --output.",
    )
