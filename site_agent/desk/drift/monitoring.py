"""Compares new patients with the training rows of a model, and measures how well the model predicts new patients.

Each column is compared with the profile that was saved with the model (column_drift.py). If the table has the
outcome, the metrics are compared with those of the test rows (quality.py). A difference that chance explains is never
reported as drift or as a worse model. Everything stays at the site.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.errors import DataError, OperatorError
from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.drift.column_drift import watch
from site_agent.desk.drift.quality import quality_of, quality_warnings
from site_agent.desk.findings.facts import RECEIVING, saved_facts
from site_agent.desk.prediction import dice_of_new_rows, outcomes_of_new_rows, scores_of_new_rows
from site_agent.desk.results.saved_model import other_version
from site_agent.desk.use.known_rows import known_rows
from site_agent.desk.use.model_in_use import ModelInUse, model_in_use
from site_agent.desk.use.new_rows import NewRows, missing_columns, read_new_rows
from site_agent.hospital import Hospital
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.image_folder import temporary_folder
from site_agent.trainer.disk import Json

FEWEST_ROWS: Final = 100
_UNREAD: Final = (
    "The hospital's own table could not be read now. So rows that trained this model may be among the new rows, and the"
    " metrics may look too good."
)
_SEED: Final = 20_261_122
_RESAMPLES: Final = 1_000


def monitor_table(hospital: Hospital, path: Path, run: str | None) -> dict[str, Json]:
    """Compare a table of new patients with the training rows of the model in use. The result is ready for JSON.

    Raises:
        OperatorError: there is no such model, it has no profile, or the file is no table of its contract.
    """
    used = model_in_use(hospital.state_path, run)
    model = used.model
    if model.profile is None:
        raise other_version(used.run)
    contract = model.preprocessing.contract
    new = _read(path, contract, model.profile)
    scores = _scores(hospital, used, new)
    columns = watch(model.profile, new)
    is_received = RECEIVING in saved_facts(hospital.state_path, used.run)
    known, of_known = (None, []) if is_received else _known(hospital, used, new)
    quality = None if is_received else _quality(hospital, used, new, scores, known)
    rows, abstained = new.table.rows, new.table.rows - len(new.usable)
    warnings = [f"{rows} rows are too few to conclude from (fewer than {FEWEST_ROWS})."] if rows < FEWEST_ROWS else []
    warnings += [*missing_columns(new), *of_known]
    off_contract = int(new.off_contract().sum())
    if abstained:
        warnings.append(f"The model predicts nothing for {abstained} of the {rows} rows.")
    if off_contract:
        why = "; ".join(one.line for one in new.left_out if one.is_off_contract)
        warnings.append(f"{off_contract} of the {rows} rows have a value that the contract does not allow: {why}.")
    warnings += [text for column in columns for text in column.warnings]
    warnings += [] if quality is None else list(quality_warnings(quality))
    return {
        "site": hospital.site,
        "run": used.run,
        "model": used.title,
        "notices": list[Json](used.notices),
        "task": contract.target.task,
        "rows": rows,
        "patients": None if new.table.patients is None else len(set(new.table.patients)),
        "abstained": abstained,
        "off_contract": off_contract,
        "known_rows": None if known is None else int(known.sum()),
        "training_rows": model.profile.rows,
        "columns": [asdict(column) | {"warnings": list(column.warnings)} for column in columns],
        "quality": quality,
        "first_score": _first_score(used, new, scores) if is_received else None,
        "warnings": list[Json](warnings),
    }


def _scores(hospital: Hospital, used: ModelInUse, new: NewRows) -> npt.NDArray[np.float64]:
    """Return the scores of the usable rows. For masks it is their Dice, or nothing without the true masks."""
    if used.model.preprocessing.contract.mask is None:
        return scores_of_new_rows(hospital, used, new)
    masks = new.table.masks
    return np.empty(0) if masks is None else dice_of_new_rows(hospital, used, new, masks)


def _read(path: Path, contract: Contract, profile: Profile) -> NewRows:
    """Read the table with its outcome column if all rows have an outcome, otherwise without this column."""
    try:
        return read_new_rows(path, contract, profile, has_outcome=True, scratch=temporary_folder())
    except DataError:
        return read_new_rows(path, contract, profile, scratch=temporary_folder())


def _known(hospital: Hospital, used: ModelInUse, new: NewRows) -> tuple[npt.NDArray[np.bool_] | None, list[str]]:
    """Return which rows are in the hospital's own table, with a warning. None if no quality is measured, or unknown."""
    if outcomes_of_new_rows(used, new) is None:
        return None, []
    try:
        known = known_rows(hospital, used, new.table)
    except OperatorError:
        return None, [_UNREAD]
    if not (count := int(known.sum())):
        return known, []
    return known, [
        f"{count} of the {len(known)} rows are in the hospital's own table, so this model may have been trained or"
        " tested on them. Its metrics below are without these rows. The comparison of the columns includes them."
    ]


def _quality(
    hospital: Hospital,
    used: ModelInUse,
    new: NewRows,
    scores: npt.NDArray[np.float64],
    known: npt.NDArray[np.bool_] | None,
) -> dict[str, Json] | None:
    """Return the model's quality on the usable rows that are not known, and on its test rows.

    The result is None if the outcomes are not known, or if all usable rows are in the hospital's own table.
    """
    if (rows := outcomes_of_new_rows(used, new)) is None:
        return None
    places = np.arange(len(rows)) if known is None else np.flatnonzero(~known[new.usable])
    if not len(places):
        return None
    kept = scored_rows(hospital.state_path, used.run)
    return quality_of(rows.part(places), scores[places], kept.test, kept.scores[used.name])


def _first_score(used: ModelInUse, new: NewRows, scores: npt.NDArray[np.float64]) -> dict[str, Json] | None:
    """Return the metrics of a received model on rows with known outcomes."""
    if (rows := outcomes_of_new_rows(used, new)) is None:
        return None
    found = compare(rows, {FEDERATED: scores}, _SEED, _RESAMPLES)
    return {"rows": len(rows), "metrics": dict(found.metrics[FEDERATED]), "intervals": found.intervals(FEDERATED)}
