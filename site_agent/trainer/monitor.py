"""A deployed model on new patients: have they drifted from the training rows, and is the model still as good?

Inputs are compared with the profile that was kept with the model, column by column: the population stability index
over the training rows' bins, and the share of missing values. Where the table has the outcome, discrimination and
calibration are computed as in the run's report and compared with the test rows of then. Everything stays at the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from site_agent.config import Hospital
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.comparison.calibration import calibrations
from site_agent.trainer.comparison.gain import FEDERATED, headline_metric
from site_agent.trainer.comparison.intervals import compare
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.profile import ColumnProfile, Profile
from site_agent.trainer.data.tables import Table
from site_agent.trainer.evaluation import HeldOutRows
from site_agent.trainer.findings.scored_rows import scored_rows
from site_agent.trainer.prediction import scores_of_new_rows
from site_agent.trainer.saved_model import SavedModel, latest_run, load_model, other_version
from site_agent.trainer.use.new_rows import NewRows, read_new_rows
from site_agent.trainer.use.recalibration import recalibration_of

# Siddiqi 2006: below the first nothing has changed much, above the second something has.
SOME: Final = 0.1
MUCH: Final = 0.25
FEWEST_ROWS: Final = 100
_MISSING: Final = 0.05
_SMALLEST: Final = 1e-4
_SEED: Final = 20_261_122
_RESAMPLES: Final = 1_000


def stability_index(expected: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> float:
    """Σ (found - expected)·ln(found / expected) over bins' shares; 0 where equal.

    A share is taken to be at least 1e-4, so that an empty bin does not make it infinite.

    Args:
        expected, found: shares, each of shape (bins,).
    """
    before, after = expected.clip(_SMALLEST), found.clip(_SMALLEST)
    return float(((after - before) * np.log(after / before)).sum())


def monitor_table(hospital: Hospital, path: Path, run: str | None) -> dict[str, Json]:
    """What a table of new patients says about a run's model, as plain values.

    Raises:
        OperatorError: there is no such model, it has no profile, or it is not a table of its contract.
    """
    name = latest_run(hospital.state_path) if run is None else run
    model = load_model(hospital.state_path, name)
    if model.profile is None:
        raise other_version(name)
    contract = model.preprocessing.contract
    new = _read(path, contract, model.profile)
    scores = scores_of_new_rows(hospital, model, name, new)
    columns = [_column(one, new.table) for one in model.profile.columns]
    facts: dict[str, Json] = {
        "site": hospital.site,
        "run": name,
        "task": contract.target.task,
        "rows": new.table.rows,
        "abstained": new.table.rows - len(new.usable),
        "training_rows": model.profile.rows,
        "columns": columns,
        "quality": _quality(hospital, model, name, new, scores),
    }
    return facts | {"warnings": _warnings(facts)}


def _read(path: Path, contract: Contract, profile: Profile) -> NewRows:
    """With the outcome where the table has it: where it is not there, or not yet for all, without."""
    from protos.errors import DataError

    try:
        found = read_new_rows(path, contract, profile, has_outcome=True)
    except DataError:
        return read_new_rows(path, contract, profile)
    return found


def _column(profile: ColumnProfile, table: Table) -> dict[str, Json]:
    values = table.features[profile.name]
    # A wrong cell of a code is NaN in a table that was surveyed; it is as missing as an unknown one.
    values = np.where(np.isnan(values), -1.0, values) if profile.kind == "code" else values
    is_absent = values < 0 if profile.kind == "code" else np.isnan(values)
    expected, found = np.array(profile.shares), profile.bins(values)
    return {
        "name": profile.name,
        "stability_index": None if is_absent.all() else stability_index(expected, found),
        "missing_in_training": profile.missing,
        "missing": float(is_absent.mean()),
        "outside": float(profile.is_outside(values).mean()),
    }


def _quality(
    hospital: Hospital, model: SavedModel, run: str, new: NewRows, scores: npt.NDArray[np.float64]
) -> dict[str, Json] | None:
    """Metrics with intervals and calibration of the usable rows beside those of the test rows; None without."""
    usable, target = new.usable, model.preprocessing.contract.target
    if new.table.target is None or not len(usable):
        return None
    rows = HeldOutRows(task=target.task, targets=new.table.target[usable], classes=target.classes)
    kept, changed = scored_rows(hospital.state_path, run), recalibration_of(hospital.state_path, run)
    # The new scores are mapped where the site has recalibrated, so those of the test are too.
    then = kept.scores[FEDERATED] if changed is None else changed.apply(kept.scores[FEDERATED])
    compared = compare(rows, {FEDERATED: scores}, _SEED, _RESAMPLES)
    return {
        "rows": len(rows),
        "metrics": dict(compared.evaluations[FEDERATED].metrics),
        "intervals": compared.intervals(FEDERATED),
        "calibration": {name: one.to_json() for name, one in calibrations(rows, scores).items()},
        "at_the_test": dict(kept.test.evaluate(then).metrics),
        "calibration_at_the_test": {name: one.to_json() for name, one in calibrations(kept.test, then).items()},
    }


def _warnings(facts: Mapping[str, Any]) -> list[str]:
    warnings = []
    if facts["rows"] < FEWEST_ROWS:
        warnings.append(f"{facts['rows']} rows are too few to conclude from (fewer than {FEWEST_ROWS}).")
    if facts["abstained"]:
        warnings.append(f"The model abstains from {facts['abstained']} of the {facts['rows']} rows.")
    for one in facts["columns"]:
        index = one["stability_index"]
        if index is not None and index >= MUCH:
            warnings.append(f"{one['name']} has drifted (population stability index {index:.2f}, {MUCH} or more).")
        if abs(one["missing"] - one["missing_in_training"]) >= _MISSING:
            before, now = 100 * one["missing_in_training"], 100 * one["missing"]
            warnings.append(f"{one['name']} is missing in {now:.0f}% of the rows, in training in {before:.0f}%.")
    quality = facts["quality"]
    if quality is not None:
        warnings.extend(_quality_warnings(quality, headline_metric(facts["task"])))
    return warnings


def _quality_warnings(quality: Mapping[str, Any], metric: str) -> list[str]:
    before, interval = quality["at_the_test"][metric], quality["intervals"][metric]
    if before is None or interval is None:
        return []
    is_worse = interval[0] > before if metric == "rmse" else interval[1] < before
    if not is_worse:
        return []
    return [
        f"The model is worse than it was at the test: {metric} {quality['metrics'][metric]:.3f}"
        f" ({interval[0]:.3f} to {interval[1]:.3f}), then {before:.3f}."
    ]
