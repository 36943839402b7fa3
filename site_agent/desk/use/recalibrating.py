"""`site-agent recalibrate`: fits the map, says what it does to the test rows, and keeps or forgets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from site_agent.desk.use.model_in_use import model_in_use
from site_agent.desk.use.recalibration import Kind, fit_recalibration, forget_recalibration, save_recalibration
from site_agent.hospital import Hospital
from site_agent.trainer.comparison.calibration import calibrations
from site_agent.trainer.comparison.scored_rows import scored_rows
from site_agent.trainer.evaluation import HeldOutRows, Scores


def recalibrate_run(hospital: Hospital, run: str | None, kind: str) -> Iterator[str]:
    """Fit, keep and explain the map of a run's model, in lines for the terminal; `none` forgets it.

    Raises:
        OperatorError: there is no such run, or its validation rows do not allow it.
    """
    used = model_in_use(hospital.state_path, run)
    name, model = used.run, used.name
    if kind == "none":
        was_there = forget_recalibration(hospital.state_path, name, model)
        yield f"The recalibration of {name} was taken away." if was_there else f"{name} was not recalibrated."
        return
    kept = scored_rows(hospital.state_path, name)
    made = fit_recalibration(cast(Kind, kind), kept.validation, kept.validation_scores[model])
    save_recalibration(hospital.state_path, name, model, made)
    yield f"{name} is recalibrated ({kind}) by {made.rows} validation rows; predictions use it from now on."
    before = kept.scores[model]
    for title, scores in (("before", before), ("after", made.apply(before))):
        yield f"  on the {len(kept.test)} test rows {title}: {_quality(kept.test, scores)}"


def _quality(rows: HeldOutRows, scores: Scores) -> str:
    metrics = rows.evaluate(scores).metrics
    indices = [found.integrated_calibration_index for found in calibrations(rows, scores).values()]
    known = [index for index in indices if index is not None]
    shown = f"{sum(known) / len(known):.3f}" if known else "not defined"
    return f"Brier score {metrics['brier']:.3f}, log loss {metrics['log_loss']:.3f}, ICI {shown}"
