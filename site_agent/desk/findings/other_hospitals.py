"""Tests another hospital's exported model on this hospital's test rows, and compares it with the run's models.

This is the row "client i" of the FENDA-FL paper (Tavakoli et al. 2024), which tests one hospital's own model at all
hospitals. A person handed the folder over, and nothing is sent. The rules:

* the model is of the same plan and predicts the same outcome, in the same unit or of the same classes;
* a column has the same name, kind and unit here;
* a row is left out if the contract of the model's hospital does not allow it. All models are compared on the
  remaining rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.gain import FEDERATED, SILOED
from site_agent.desk.comparison.scored_rows import ScoredRows
from site_agent.desk.export.received_export import ReceivedExport, read_received, refused
from site_agent.desk.export.row_reader import shown
from site_agent.desk.findings.report_page import RECEIVED
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.cell_rules import ABSENT
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Table

_SEED: Final = 20_261_123


def tested_here(
    folder: Path, plan_digest: str, table: Table, rows: Rows, kept: ScoredRows, best_local: Json
) -> dict[str, Json]:
    """Return the result of another hospital's model on this hospital's test rows, as plain values.

    Args:
        folder: the export that was handed over. Its name is the name of the model in the report.
        plan_digest: of the run in the report, in hexadecimal.
        rows: int64 of shape (rows,), the test rows in the table.
        kept: the scores of the run's models for these rows.
        best_local: the name of the best local model, None if there is none.

    Raises:
        ConfigurationError: the folder is not an export, or the model does not fit this hospital's contract.
    """
    export = read_received(folder)
    _check_fit(export, plan_digest, table.contract)
    reader = export.description.reader
    read = [reader.read(row) for row in _cells(table, rows)]
    places = np.array([place for place, (_, reasons) in enumerate(read) if not reasons], dtype=np.int64)
    if not len(places):
        raise refused(f"It fits no test row of this hospital: {_without_value(read[0][1][0])}.")
    scores = export.scores(np.array([read[place][0] for place in places]))
    if scores.ndim == 2:
        scores = scores[:, [export.description.classes.index(name) for name in kept.test.classes]]
    wanted = [name for name in (FEDERATED, SILOED, best_local) if isinstance(name, str) and name in kept.scores]
    models = {name: kept.scores[name][places] for name in wanted} | {RECEIVED: scores}
    patients = None if kept.test.patients is None else kept.test.patients[places]
    compared = compare(replace(kept.test, targets=kept.test.targets[places], patients=patients), models, _SEED)
    columns = Counter(shown(reasons[0].partition(":")[0]) for _, reasons in read if reasons)
    return {
        "name": shown(folder.resolve().name),
        "run": shown(export.description.run),
        "rows": len(places),
        "left_out": dict(columns),
        "models": {
            name: {"metrics": dict(compared.evaluations[name].metrics), "intervals": compared.intervals(name)}
            for name in models
        },
        "differences": {name: compared.differences(name, RECEIVED) for name in wanted},
    }


def _without_value(reason: str) -> str:
    """Return a reason against a prediction without the patient's value, which the other hospital's rules chose."""
    if reason.endswith(ABSENT.words):
        return reason
    return f"{shown(reason.partition(':')[0])} has a value that its contract does not allow"


def _cells(table: Table, rows: Rows) -> list[dict[str, float | str | None]]:
    """Return the rows as cells for the other hospital's rules: numbers, codes as text, None for missing values."""
    columns: dict[str, list[float | str | None]] = {}
    for feature in table.contract.features:
        values = table.features[feature.name][rows]
        if isinstance(feature, CategoricalFeature):
            columns[feature.name] = [None if value < 0 else feature.codes[int(value)] for value in values]
        else:
            columns[feature.name] = [None if np.isnan(value) else float(value) for value in values]
    return [{name: values[place] for name, values in columns.items()} for place in range(len(rows))]


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
    own = {feature.name: feature for feature in contract.features}
    for column in (one for one in said.features if one.name in own):
        feature, name = own[column.name], shown(column.name)
        kind = "code" if isinstance(feature, CategoricalFeature) else "number"
        if column.rule.kind != kind or isinstance(feature, DateFeature):
            raise refused(f"Its column {name} is a {column.rule.kind}. This hospital's contract has another type.")
        here = None if isinstance(feature, CategoricalFeature) else feature.unit
        if column.unit != here:
            units = [f"in {shown(one)}" if one else "without a unit" for one in (column.unit, here)]
            raise refused(f"Its column {name} is {units[0]}. Here it is {units[1]}.")
