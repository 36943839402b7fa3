"""Predicts the rows of a new table with the model in use. The table and its predictions remain at the site.

The table is read with the contract and the preprocessing of the model's training, and predicted in the same way as in
the model's own test. The rules:

* rows keep their order; one row in, one row out;
* a row gets no prediction if it has a value that the contract does not allow, lacks a required value, or is beyond
  the limits of the training rows. The output has the reason instead;
* columns that the contract ignores or does not name are copied to the output unchanged, and never read;
* the output is written completely or not at all, and only its owner can read it. It replaces no file;
* masks are grey PNG files in a new folder next to the output, named after the row's number and never after a patient.
  The folder is written before the table that names its files, and no earlier folder is changed;
* a patient's identifier that a spreadsheet would take for a formula gets an apostrophe in front;
* a row whose prediction is not a finite number stops the command, so nobody uses half a table.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from protos.errors import DataError, UsageError
from protos.plan.augmentation import ImageSize
from site_agent.desk.comparison.evaluation import HeldOutRows, dice_of_images
from site_agent.desk.result_files import check_place, write_result
from site_agent.desk.use.model_in_use import ModelInUse, model_in_use
from site_agent.desk.use.new_rows import NewRows, read_new_rows, require_columns
from site_agent.hospital import Hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.contract import BinaryTarget, Contract, RegressionTarget
from site_agent.trainer.data.image_folder import temporary_folder
from site_agent.trainer.data.tables import Table

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_TO_QUOTE: Final = re.compile(r"[,;|\t\r\n\"]")
_ABSTAINED: Final = "abstained_because"
_TEXT: Final = (".csv", ".txt")
MASK_COLUMNS: Final = ("mask", "mask_share")
_INSIDE: Final = 255


@dataclass(frozen=True)
class Predicted:
    """A summary of a table of predictions that was written, with notes to read with the result.

    `abstained` is the number of rows without a prediction. `why` has a line for each column and error. `model` names
    the model in sentences. `meaning` is a sentence about the column with the predictions, or empty.
    """

    rows: int
    abstained: int
    why: tuple[str, ...]
    model: str
    notices: tuple[str, ...]
    meaning: str


def predict_table(hospital: Hospital, table: Path, output: Path, run: str | None) -> Predicted:
    """Predict every row of a table of new patients with the model in use, and write a table of predictions.

    The output is CSV. The first column is the patient's identifier if the
    contract declares one and the table has it. Otherwise it is `row`, the row number as a spreadsheet counts it, like
    the row numbers of `data check`. Then the columns follow that nobody reads, unchanged. After them is
    `probability` (of the positive class), or one `probability_CODE` per class and `predicted`, or `prediction` in the
    target's own unit. For masks, `mask` has the path of a PNG file from the output's folder, and `mask_share` the share
    of the pixels inside. The last column, `abstained_because`, has the reason for a missing prediction, and is empty
    otherwise. Numbers are written with all digits, so they can be read back as the same floats.

    Args:
        table: new rows, with or without the columns of target, patient and ignored.
        run: the run whose model is used; None means the adopted model, or that of the latest run if there is none.

    Raises:
        OperatorError: there is no such model, the table does not fit it, or the output cannot be written.
    """
    check_place(output, "--output", hospital, [table])
    _check_output(output)
    used = model_in_use(hospital.state_path, run)
    model = used.model
    contract = model.preprocessing.contract
    if contract.mask is not None:
        check_mask_folder(output)
    new = read_new_rows(table, contract, model.profile, scratch=temporary_folder())
    require_columns(new)
    head = _head(contract, new)
    if contract.mask is None:
        cells = _cells(contract, scores_of_new_rows(hospital, used, new))
    else:
        parts = (scores >= 0.5 for scores in scores_in_parts(hospital, used, new))
        cells = write_masks(output, contract.mask.image, _row_numbers(new.table)[new.usable], parts)
    lines = [head, *_lines(contract, new, cells)]
    try:
        write_result(output, _as_text(lines))
    except BaseException:
        if contract.mask is not None:
            remove_masks(output)
        raise
    why = tuple(one.line for one in new.left_out)
    meaning = _meaning(contract)
    return Predicted(new.table.rows, new.table.rows - len(new.usable), why, used.title, used.notices, meaning)


def _check_output(output: Path) -> None:
    if output.suffix.lower() not in _TEXT or output.exists():
        reason = "the file already exists" if output.exists() else "the name does not end with .csv"
        raise UsageError(
            what=f"Predictions cannot be written to {output.name}, because {reason}.",
            consequence="Nothing was predicted or overwritten. Nothing was sent.",
            remedy="Name a new file with --output that ends with .csv. Spreadsheets open such files.",
        )


def scores_of_new_rows(hospital: Hospital, used: ModelInUse, new: NewRows) -> npt.NDArray[np.float64]:
    """Return the scores: (usable rows,) or (usable rows, classes). Raises DataError if not finite."""
    if not len(new.usable):
        return np.empty((0, used.model.outputs) if used.model.outputs > 1 else (0,))
    return np.concatenate([*scores_in_parts(hospital, used, new)])


def scores_in_parts(hospital: Hospital, used: ModelInUse, new: NewRows) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the scores of the usable rows in order. If masks are predicted, only a few images are computed at a time.

    Raises:
        DataError: a prediction is not a finite number.
    """
    usable, model = new.usable, used.model
    if not len(usable):
        return
    features = model.encode(new.table, usable)
    prepare_arithmetic(hospital.training.threads)

    from site_agent.desk.applied import AppliedModel

    applied = AppliedModel(model, used.run, hospital.training)
    step = len(usable) if model.preprocessing.contract.mask is None else applied.rows_at_once(features)
    for start in range(0, len(usable), step):
        scores = applied.scores(features[start : start + step])
        failed = np.flatnonzero(~np.isfinite(scores.reshape(len(scores), -1)).all(axis=1))
        if failed.size:
            row = _row_numbers(new.table)[usable[start + failed[0]]]
            raise DataError(
                what=f"The model returns no finite number for row {row}.",
                consequence="Nothing was written and nothing was sent.",
                remedy="Check this row for values far outside the range of the training data.",
            )
        yield scores


def dice_of_new_rows(
    hospital: Hospital, used: ModelInUse, new: NewRows, masks: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """Return the Dice coefficient of each usable row, shape (usable rows,). `masks` has the true masks of all rows."""
    found, rows = [np.empty(0)], new.usable
    for scores in scores_in_parts(hospital, used, new):
        found.append(dice_of_images(masks[rows[: len(scores)]], scores >= 0.5))
        rows = rows[len(scores) :]
    return np.concatenate(found)


def outcomes_of_new_rows(used: ModelInUse, new: NewRows) -> HeldOutRows | None:
    """Return outcomes and patients of the usable rows, or None if no row is usable or the outcomes are not known."""
    usable, target = new.usable, used.model.preprocessing.contract.target
    if new.table.target is None or not len(usable):
        return None
    who = new.table.patients
    patients = None if who is None else np.unique([who[row] for row in usable], return_inverse=True)[1]
    return HeldOutRows(
        task=target.task,
        targets=new.table.target[usable],
        classes=target.classes,
        patients=None if patients is None else patients.astype(np.int64),
    )


def _head(contract: Contract, new: NewRows) -> list[str | float | None]:
    """Return the names of the output's columns. Raises DataError if the table has a column with one of these names."""
    columns = _columns(contract)
    named = contract.patient if new.table.patients is not None else None
    first = "row" if named is None else named.name
    # If the patient column has the name of an output column, it is renamed.
    first = "patient" if first in (*columns, _ABSTAINED) else harmless(first)
    for name in (first, *columns, _ABSTAINED):
        if name in new.others:
            raise DataError(
                what=f"The table has a column {name}, but the table of predictions needs this name for another column.",
                consequence="Nothing was predicted or overwritten.",
                remedy=f"Rename the column {name} in the table, or remove this column from the table.",
            )
    return [first, *new.others, *columns, _ABSTAINED]


def _lines(contract: Contract, new: NewRows, cells: Iterator[list[float | str]]) -> Iterator[list[str | float | None]]:
    """Yield a line of the output for each row. A row that must not be predicted has a reason and no prediction."""
    width, table, others = len(_columns(contract)), new.table, list(new.others.values())
    rows = _row_numbers(table).tolist()
    for number, reason in enumerate(new.reasons):
        who: str | float = rows[number] if table.patients is None else table.patients[number]
        said: list[str | float | None] = [None] * width if reason else [*next(cells)]
        yield [who, *(column[number] for column in others), *said, reason]


def _row_numbers(table: Table) -> npt.NDArray[np.int64]:
    """Return the number of each row as a spreadsheet and `data check` count it, int64 (rows,)."""
    assert table.row_numbers is not None  # it was read from a file
    return table.row_numbers


def _as_text(lines: list[list[str | float | None]]) -> bytes:
    text = io.StringIO()
    for number, (who, *cells) in enumerate(lines):
        name = harmless(who) if number and isinstance(who, str) else who
        text.write(",".join(map(_quoted, (name, *cells))) + "\n")
    return text.getvalue().encode()


def _quoted(cell: str | float | None) -> str:
    """Return a cell as CSV. A cell with a semicolon is quoted, because some spreadsheets split cells at semicolons."""
    text = "" if cell is None else str(cell)
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _columns(contract: Contract) -> list[str]:
    match contract.target.task:
        case "binary":
            return ["probability"]
        case "multi-class":
            return [*(f"probability_{code}" for code in contract.target.classes), "predicted"]
        case "regression":
            return ["prediction"]
        case "segmentation":
            return [*MASK_COLUMNS]
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
    names = [code if is_plain_number(code) else harmless(code) for code in contract.target.classes]
    return ([*map(float, row), names[int(row.argmax())]] for row in scores)


def is_plain_number(code: str) -> bool:
    """Return whether a code is a plain number, such as -1. A spreadsheet does not treat such a code as a formula."""
    return code.removeprefix("-").replace(".", "", 1).isdecimal()


def harmless(text: str) -> str:
    """Change a text that a spreadsheet would compute as a formula, so that the spreadsheet shows the text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def check_mask_folder(output: Path) -> None:
    """Raise UsageError, before anything is computed, if the folder for masks already exists."""
    folder = _folder(output)
    if folder.exists() or folder.is_symlink():
        raise UsageError(
            what=f"The masks would be written to {folder.name}, which already exists.",
            consequence="Nothing was predicted or overwritten, and nothing was sent.",
            remedy="Name another file with --output, or remove this folder.",
        )


def write_masks(
    output: Path, size: ImageSize, rows: npt.NDArray[np.int64], parts: Iterable[npt.NDArray[np.bool_]]
) -> Iterator[list[float | str]]:
    """Write the predicted masks. Return the path of each mask, and the fraction of pixels that the mask covers.

    Args:
        rows: the numbers of the rows in their table, int64, as a spreadsheet counts them.
        parts: the masks in this order, in arrays of shape (some rows, pixels).

    Raises:
        UsageError: the unfinished folder, or a file in its place, cannot be removed.
    """
    from PIL import Image

    folder = _folder(output)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Otherwise the masks could be written into a linked folder or into another user's folder.
    if os.path.lexists(partial):
        raise UsageError(
            what=f"The folder {partial.name} cannot be removed. The program needs this folder to prepare the masks.",
            consequence="No prediction was written, and nothing was sent.",
            remedy=f"Remove the folder {partial.name}, or name another file with --output.",
        )
    cells: list[list[float | str]] = []
    try:
        for row, mask in zip(rows.tolist(), chain.from_iterable(parts), strict=True):
            name, stream = f"{row:06d}.png", io.BytesIO()
            pixels = np.where(mask, _INSIDE, 0).astype(np.uint8).reshape(size.height, size.width)
            Image.fromarray(pixels).save(stream, "PNG")
            write_result(partial / name, stream.getvalue())
            cells.append([f"{folder.name}/{name}", float(mask.mean())])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # nobody uses half of the masks
        raise
    if cells:
        partial.rename(folder)
    return iter(cells)


def remove_masks(output: Path) -> None:
    """Remove the predicted masks if the table of predictions could not be written. The command can then be repeated."""
    shutil.rmtree(_folder(output), ignore_errors=True)


def _folder(output: Path) -> Path:
    return output.with_name(f"{output.stem}-masks")
