"""Compares new patients with the training rows of a model, and measures how well the model predicts new patients.

A column is compared with the profile that was saved with the model, and a metric with that of the test rows. A column
has changed only if chance shows such a difference in less than 1 of 100 tables, over all columns together. Several rows
of one patient count as one. Nobody looks for rows that trained the model: the table must not have any. Everything stays
at the site.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protos.errors import DataError
from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import METRIC_NAMES, HeldOutRows, Scores, headline_metric
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.findings.facts import RECEIVING, saved_facts
from site_agent.desk.prediction import outcomes_of_new_rows, scores_of_new_rows
from site_agent.desk.results.saved_model import other_version
from site_agent.desk.use.model_in_use import ModelInUse, model_in_use
from site_agent.desk.use.new_rows import NewRows, missing_columns, read_new_rows
from site_agent.hospital import Hospital
from site_agent.trainer.data.column_profile import ColumnProfile, Profile
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.image_folder import temporary_folder
from site_agent.trainer.disk import Json

FEWEST_ROWS: Final = 100
LEVEL: Final = 0.01  # probability of a false alarm, over all columns together
_CHANGED: Final = 0.1  # a smaller share of patients in other bins is no warning
_OUTSIDE: Final = 0.01
_FEWEST_EXPECTED: Final = 5.0  # patients in a bin; rarer bins are one, as Pearson's test needs
_SEED: Final = 20_261_122
_RESAMPLES: Final = 1_000


def monitor_table(hospital: Hospital, path: Path, run: str | None) -> dict[str, Any]:
    """Compare a table of new patients with the training rows of the model in use. The result is ready for JSON.

    Raises:
        OperatorError: there is no such model, it has no profile, or the file is no table of its contract.
    """
    used = model_in_use(hospital.state_path, run)
    profile, contract = used.model.profile, used.model.preprocessing.contract
    if profile is None:
        raise other_version(used.run)
    new = _read(path, contract, profile)
    level = LEVEL / max(1, len(profile.columns))
    columns = [_compared(column, profile.patients, new, level) for column in profile.columns]
    scores, outcomes = scores_of_new_rows(hospital, used, new), outcomes_of_new_rows(used, new)
    quality = None if outcomes is None else _quality(hospital, used, outcomes, scores)
    rows, abstained = new.table.rows, new.table.rows - len(new.usable)
    warnings = [f"{rows} rows are too few to conclude from (fewer than {FEWEST_ROWS})."] if rows < FEWEST_ROWS else []
    warnings += missing_columns(new)
    if abstained:
        warnings.append(f"The model predicts nothing for {abstained} of the {rows} rows.")
    if off_contract := int(new.off_contract().sum()):
        why = "; ".join(one.line for one in new.left_out if one.is_off_contract)
        warnings.append(f"{off_contract} of the {rows} rows have a value that the contract does not allow: {why}.")
    warnings += [text for column in columns for text in column["warnings"]]
    warnings += [] if quality is None else _worse(quality)
    return {
        "site": hospital.site,
        "run": used.run,
        "model": used.title,
        "notices": list(used.notices),
        "task": contract.target.task,
        "rows": rows,
        "patients": None if new.table.patients is None else len(set(new.table.patients)),
        "abstained": abstained,
        "off_contract": off_contract,
        "training_rows": profile.rows,
        "columns": columns,
        "quality": quality,
        "warnings": warnings,
    }


def _read(path: Path, contract: Contract, profile: Profile) -> NewRows:
    """Read the table with its outcome column if all rows have an outcome, otherwise without this column."""
    try:
        return read_new_rows(path, contract, profile, has_outcome=True, scratch=temporary_folder())
    except DataError:
        return read_new_rows(path, contract, profile, scratch=temporary_folder())


def _difference(
    expected: NDArray[np.float64], found: NDArray[np.float64], patients: tuple[int, int]
) -> tuple[float, float]:
    """Return half the sum of differences of two distributions, and the p-value of Pearson's chi-square test."""
    from scipy.stats import chi2_contingency

    before, now = patients
    counts = np.stack([before * expected, now * found])
    is_rare = counts.sum(axis=0) * min(patients) / sum(patients) < _FEWEST_EXPECTED
    table = np.column_stack([counts[:, ~is_rare], counts[:, is_rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    p_value = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    return float(np.abs(expected - found).sum() / 2), p_value


def _compared(column: ColumnProfile, before: int, new: NewRows, level: float) -> dict[str, Any]:
    """Return how one column differs from the training rows of `before` patients. Shares are of all new rows.

    `changed` is the share of patients who would have to be in another bin, where a missing value is a bin.
    """
    values, beyond, who = new.table.features[column.name], new.off_contract(column.name), new.table.patients
    patients = new.table.rows if who is None else len(set(who))
    # A value that the contract does not allow is NaN in the table, but it is not counted as missing.
    absent = (np.isnan(values) | (values < 0) if column.kind == "code" else np.isnan(values)) & ~beyond
    outside = float(column.is_outside(values).mean())
    changed, p_value = None, None
    if column.shares and not beyond.all():
        missing = float(absent.sum() / (~beyond).sum())
        changed, p_value = _difference(
            np.array([*(np.array(column.shares) * (1 - column.missing)), column.missing]),
            np.array([*(np.array(column.bins(values[~(absent | beyond)])) * (1 - missing)), missing]),
            (before, patients),
        )
    warnings = []
    if changed is not None and p_value is not None and changed >= _CHANGED and p_value < level:
        warnings.append(
            f"{column.name} has changed: {100 * changed:.0f}% of the patients would have to have another value, or a "
            f"missing one, for a distribution as in training. It is missing in {100 * absent.mean():.0f}% of the new "
            f"rows and in {100 * column.missing:.0f}% of the training rows."
        )
    if beyond.any():
        share = _percent(float(beyond.mean()))
        warnings.append(f"{column.name} has a value that the contract does not allow in {share} of the new rows.")
    if outside >= _OUTSIDE:
        warnings.append(
            f"{column.name} is outside the range of the training rows in {_percent(outside)} of the new rows."
        )
    return {
        "name": column.name,
        "changed": changed,
        "p_value": p_value,
        "missing": float(absent.mean()),
        "missing_in_training": column.missing,
        "outside": outside,
        "outside_contract": float(beyond.mean()),
        "warnings": warnings,
    }


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.005 else f"{100 * share:.0f}%"


def _quality(hospital: Hospital, used: ModelInUse, rows: HeldOutRows, scores: Scores) -> dict[str, Json]:
    """Return the metrics of new rows with their intervals, and their differences to the metrics of the test rows.

    The two samples of patients are resampled separately. A model that was only received was not tested here, so it has
    no differences.
    """
    now = compare(rows, {FEDERATED: scores}, _SEED, _RESAMPLES)
    found: dict[str, Json] = {
        "rows": len(rows),
        "task": rows.task,
        "metrics": dict(now.metrics[FEDERATED]),
        "intervals": now.intervals(FEDERATED),
    }
    if RECEIVING in saved_facts(hospital.state_path, used.run):
        return found
    kept = scored_rows(hospital.state_path, used.run)
    then = compare(kept.test, {FEDERATED: kept.scores[used.name]}, _SEED + 1, _RESAMPLES)
    differences = {metric: now.difference(FEDERATED, FEDERATED, metric, then) for metric in now.metrics[FEDERATED]}
    return found | {
        "at_the_test": dict(then.metrics[FEDERATED]),
        "differences": {metric: None if one is None else one.to_json() for metric, one in differences.items()},
        "is_worse": {metric: one is not None and one.better is False for metric, one in differences.items()},
    }


def _worse(quality: dict[str, Any]) -> list[str]:
    """Return a sentence for the main metric, and for the Brier score, if its 95% interval shows a worse model."""
    found = []
    for metric in (headline_metric(quality["task"]), "brier"):
        if quality.get("is_worse", {}).get(metric):
            low, high = quality["differences"][metric]["interval"]
            found.append(
                f"The model is worse on the new rows than on the test rows. {METRIC_NAMES[metric]} is "
                f"{quality['metrics'][metric]:.3f}, and was {quality['at_the_test'][metric]:.3f} (95% interval of the "
                f"difference {low:+.3f} to {high:+.3f})."
            )
    return found


def monitor_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the results of monitoring as lines for the terminal."""
    yield f"{facts['site']}: {facts['model']} on {facts['rows']} new rows"
    not_allowed = f"{facts['off_contract']} of them with a value that the contract does not allow"
    yield f"{facts['abstained']} row{'' if facts['abstained'] == 1 else 's'} without a prediction, {not_allowed}"
    yield from facts["notices"]
    for warning in facts["warnings"]:
        yield f"Warning: {warning}"
    for one in facts["columns"]:
        changed = "not compared" if one["changed"] is None else f"{100 * one['changed']:.1f}% changed"
        shares = ", ".join(
            f"{words} {100 * one[key]:.1f}%"
            for words, key in (("missing", "missing"), ("outside", "outside"), ("not allowed", "outside_contract"))
        )
        yield f"  {one['name']:<28} {changed:<16} {shares}"
    quality = facts["quality"]
    if quality is None:
        why = "The outcome is not known for all rows."
        if facts["abstained"] == facts["rows"]:
            why = "The model predicted no row of this table."
        yield f"{why} Therefore the quality of the model on these rows was not computed."
        return
    for metric, value in quality["metrics"].items():
        then = f", at the test {_figure(quality['at_the_test'][metric])}" if "at_the_test" in quality else ""
        yield f"{metric} {_figure(value, quality['intervals'][metric])} on {quality['rows']} rows{then}"
    if "at_the_test" not in quality:
        yield "This model from other hospitals was not tested here before."


def _figure(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f} (95% interval {interval[0]:.3f} to {interval[1]:.3f})"
