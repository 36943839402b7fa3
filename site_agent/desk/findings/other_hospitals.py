"""Tests another hospital's exported model on this hospital's test rows, and compares it with this hospital's models.

This is the row "client i" of the FENDA-FL paper (Tavakoli et al. 2024), which tests one hospital's own model at all
hospitals. A person handed the folder over, and nothing is sent. The rules:

* the model is of the same plan and predicts the same outcome, in the same unit or of the same classes;
* a column has the same name, kind and unit here, and an image the same size and window;
* dates, lists and notes are read by this hospital's contract. The model then counts days and terms as at its own
  hospital, so the two contracts may count them differently;
* a row is left out if the contract of the model's hospital does not allow it. All models are compared on the
  remaining rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.gain import FEDERATED, RECEIVED, SILOED
from site_agent.desk.comparison.scored_rows import ScoredRows
from site_agent.desk.export.received_description import kind_of_list
from site_agent.desk.export.received_export import Intensities, ReceivedExport, read_received, refused
from site_agent.desk.export.row_reader import FIRST_DAY, shown
from site_agent.desk.export.rule_facts import image_facts
from site_agent.desk.findings.cells_again import cells_again
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.cell_rules import ABSENT
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature, DayColumn, Feature, NumericFeature
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.data.terms import TermsFeature

_SEED: Final = 20_261_123


def tested_here(
    folder: Path, plan_digest: str, file: Path, table: Table, rows: Rows, kept: ScoredRows, best_local: Json
) -> dict[str, Json]:
    """Return the results of another hospital's model on this hospital's test rows, ready for JSON.

    Args:
        folder: the export that was handed over. Its name is the name of the model in the report.
        plan_digest: of the run in the report, in hexadecimal.
        file: of this hospital's table. Dates, lists and notes are read from it again.
        rows: int64 of shape (rows,), the test rows in the table.
        kept: the scores of the run's models for these rows.
        best_local: the name of the best local model, None if there is none.

    Raises:
        ConfigurationError: the folder is not an export, or the model does not fit this hospital's contract.
        DataError: the table's file is no longer the table.
    """
    export = read_received(folder)
    _check_fit(export, plan_digest, table.contract)
    read, reasons = _inputs(export, file, table, rows)
    places = np.array([place for place, found in enumerate(reasons) if not found], dtype=np.int64)
    if not len(places):
        raise refused(f"It fits no test row of this hospital: {_without_value(reasons[0][0])}.")
    scores = export.scores(read)
    if scores.ndim == 2:
        scores = scores[:, [export.description.classes.index(name) for name in kept.test.classes]]
    wanted = [name for name in (FEDERATED, SILOED, best_local) if isinstance(name, str) and name in kept.scores]
    models = {name: kept.scores[name][places] for name in wanted} | {RECEIVED: scores}
    compared = compare(kept.test.part(places), models, _SEED)
    columns = Counter(shown(found[0].partition(":")[0]) for found in reasons if found)
    return {
        "name": shown(folder.resolve().name),
        "run": shown(export.description.run),
        "rows": len(places),
        "left_out": dict(columns),
        "models": {
            name: {"metrics": dict(compared.metrics[name]), "intervals": compared.intervals(name)} for name in models
        },
        "differences": {name: compared.differences(name, RECEIVED) for name in wanted},
    }


def _without_value(reason: str) -> str:
    """Return why the other hospital's rules exclude a row, without the patient's value."""
    if reason.endswith(ABSENT.words):
        return reason
    return f"{shown(reason.partition(':')[0])} has a value that its contract does not allow"


def _inputs(
    export: ReceivedExport, file: Path, table: Table, rows: Rows
) -> tuple[npt.NDArray[np.float64] | Intensities, list[list[str]]]:
    """Return the inputs of the rows that the model allows, and for each row the reasons why it is not allowed."""
    said = export.description
    if said.image is not None:
        assert table.images is not None  # the contracts fit
        return Intensities(table.images, rows, said.image.window), [[] for _ in rows]
    export.check_rows(len(rows))
    reader, values, reasons = said.reader, list[npt.NDArray[np.float64]](), list[list[str]]()
    for row in _cells(file, table, rows, {name for name, kind in said.kinds.items() if kind not in ("number", "code")}):
        numbers, found = reader.read(row)
        reasons.append(found)
        if not found:
            values.append(np.array(numbers))
    return np.array(values), reasons


def _cells(file: Path, table: Table, rows: Rows, again: Set[str]) -> Iterator[dict[str, float | str | None]]:
    """Yield each row in a form that the other hospital's rules can read: numbers and days, or text for codes and terms.

    The columns `again` are those that the model reads as dates, lists and notes.
    """
    contract, columns = table.contract, dict[str, list[float | str | None]]()
    for feature in contract.features:
        values = table.features[feature.name][rows]
        if isinstance(feature, CategoricalFeature):
            columns[feature.name] = [None if value < 0 else feature.codes[int(value)] for value in values]
        else:
            columns[feature.name] = [None if np.isnan(value) else float(value) for value in values]
    for name, cells in cells_again(file, table, rows, again).items():
        columns[name] = [cell - FIRST_DAY if isinstance(cell, float) else cell for cell in cells]
    for place in range(len(rows)):
        yield {name: values[place] for name, values in columns.items()}


def _check_fit(export: ReceivedExport, plan_digest: str, contract: Contract) -> None:
    said, target = export.description, contract.target
    unit = target.unit if target.task == "regression" else None
    if said.plan_digest != plan_digest:
        raise refused(f"It is of the run {shown(said.run)}, which had another plan than the run of this report.")
    if said.task != target.task or sorted(said.classes) != sorted(target.classes):
        raise refused("It predicts other classes, or another kind of outcome, than this hospital's contract declares.")
    if said.task == "binary" and said.classes != target.classes:
        raise refused("Its outcome is this hospital's class without the outcome.")
    if (said.outcome.unit, said.outcome.answers, target.answers) != (unit, "same", "same"):
        raise refused("Its outcome has another unit, or does not answer the same question as here.")
    image = None if contract.image is None else image_facts(contract.image)
    if (None if said.image is None else said.image.model_dump() | {"window": [*said.image.window]}) != image:
        raise refused("It reads other images than this hospital's contract declares: another name, size or window.")
    kinds = {column.name: _kind(column) for column in (*contract.features, *contract.dates.values(), *contract.terms)}
    for name, kind in said.kinds.items():
        if kind != kinds.get(name, kind):
            raise refused(f"Its column {shown(name)} is a {kind}. This hospital's contract has another type.")
    numbers = {feature.name: feature.unit for feature in contract.features if isinstance(feature, NumericFeature)}
    for column in said.features:
        here = numbers.get(column.name)
        if column.rule.kind != "date" and column.name in kinds and column.unit != here:
            units = [f"in {shown(one)}" if one else "without a unit" for one in (column.unit, here)]
            raise refused(f"Its column {shown(column.name)} is {units[0]}. Here it is {units[1]}.")


def _kind(column: Feature | DayColumn | TermsFeature) -> str:
    match column:
        case CategoricalFeature():
            return "code"
        case DateFeature() | DayColumn():
            return "date"
        case TermsFeature():
            return kind_of_list(column.separator if column.type == "codes" else None)
        case _:
            return "number"
