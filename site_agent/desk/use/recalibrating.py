"""Runs `site-agent recalibrate`: corrects a model's probabilities, reports the effect, and stores or removes it.

The map is fitted to later patients with known outcomes, or to the validation rows. A network's checkpoint can be
chosen on the validation rows, so on them it can look better than it is. Such a model needs later patients. The simple
models and the model of federated-prior read only training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from protos.errors import UsageError
from site_agent.desk.comparison.calibration import calibrations
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.gain import FEDERATED, SILOED
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.prediction import outcomes_of_new_rows, scores_before_recalibration
from site_agent.desk.use.known_rows import known_rows
from site_agent.desk.use.model_in_use import ModelInUse, model_in_use
from site_agent.desk.use.new_rows import read_new_rows, require_columns
from site_agent.desk.use.recalibration import Kind, fit_recalibration, forget_recalibration, save_recalibration
from site_agent.hospital import Hospital
from site_agent.trainer.data.pixel_store import temporary_folder


def recalibrate_run(hospital: Hospital, run: str | None, kind: str, table: Path | None = None) -> Iterator[str]:
    """Fit and store a recalibration, and yield lines about its effect. The kind `none` removes the recalibration.

    Without a run, the model in use is recalibrated. Without later patients in a table, the validation rows are used.

    Raises:
        OperatorError: there is no such run, the rows do not allow it, or a checkpoint may have been chosen on them.
    """
    used = model_in_use(hospital.state_path, run)
    name, model = used.run, used.name
    if kind == "none":
        was_there = forget_recalibration(hospital.state_path, name, model)
        yield (f"Removed the recalibration of {name}." if was_there else f"{name} has no recalibration to remove.")
        return
    kept = scored_rows(hospital.state_path, name)
    if table is not None:
        rows, scores, count = _later(hospital, used, table)
    elif model in (FEDERATED, SILOED) and used.model.joined is None:
        raise UsageError(
            what=(
                "This model is a neural network. The validation rows can decide which round of a network is kept, so "
                "they cannot recalibrate it."
            ),
            consequence="The model predicts as before.",
            remedy="With `--table PATH`, name a table of patients who were admitted later and have known outcomes.",
        )
    else:
        rows, scores, count = kept.validation, kept.validation_scores[model], len(kept.validation)
    made = fit_recalibration(cast(Kind, kind), rows, scores)
    save_recalibration(hospital.state_path, name, model, made)
    which = "validation rows" if table is None else "rows of later patients"
    yield (
        f"The model of the run {name} was recalibrated ({kind}) with {made.rows} {which}. Predictions now use this "
        "recalibration."
    )
    if left_out := count - made.rows:
        yield f"  {left_out} of the table's {count} rows were not used, because the model does not predict them."
    before = kept.scores[model]
    for title, mapped in (("before", before), ("after", made.apply(before))):
        yield f"  on the {len(kept.test)} test rows {title}: {_quality(kept.test, mapped)}"


def _later(hospital: Hospital, used: ModelInUse, table: Path) -> tuple[HeldOutRows, Scores, int]:
    """Return the outcomes and scores of the table's rows with a prediction, and the number of all its rows."""
    contract = used.model.preprocessing.contract
    new = read_new_rows(table, contract, used.model.profile, has_outcome=True, scratch=temporary_folder())
    require_columns(new)
    rows = outcomes_of_new_rows(used, new)
    if rows is None and new.table.target is None:
        raise UsageError(
            what="The outcome is missing in at least one row of the table.",
            consequence="The model predicts as before.",
            remedy=(
                f"Use a table of later patients in which the column {contract.target.name} has a value in every row."
            ),
        )
    if rows is None:
        raise UsageError(
            what="The model cannot predict for any row of this table.",
            consequence="The model predicts as before.",
            remedy="Run `site-agent predict` with this table: it shows for each row why the row has no prediction.",
        )
    if known := int(known_rows(hospital, used, new.table).sum()):
        raise UsageError(
            what=f"{known} of the table's {new.table.rows} rows were already used to train or test this model.",
            consequence="The model predicts as before.",
            remedy="Use only rows of other patients, for example of patients who were admitted later.",
        )
    return rows, scores_before_recalibration(hospital, used, new), new.table.rows


def _quality(rows: HeldOutRows, scores: Scores) -> str:
    metrics = rows.evaluate(scores)
    indices = [found.integrated_calibration_index for found in calibrations(rows, scores).values()]
    known = [index for index in indices if index is not None]
    shown = f"{sum(known) / len(known):.3f}" if known else "not defined"
    return f"Brier score {metrics['brier']:.3f}, log loss {metrics['log_loss']:.3f}, ICI {shown}"
