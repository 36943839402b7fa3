"""Saves the chosen model at the end of a study, and reports this site's gain from joining.

Model and report stay at the site. The model is saved before the site trains alone for comparison, so that an
interruption of the comparison loses nothing. The report is a JSON file of mode 0600, which `site-agent report` shows.
A log line for the operator has only the headline metric and the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime

import structlog

from protos.plan.patient_privacy import Privacy
from site_agent.desk.comparison.bootstrap_intervals import Compared, compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, calibration, held_out_rows, scores_of
from site_agent.desk.comparison.gain import FEDERATED, PLACEBO, SILOED, Baselines, gain_of
from site_agent.desk.findings.facts import drawn_facts
from site_agent.desk.results.network_baselines import train_alone, train_placebo
from site_agent.desk.results.saved_model import SavedModel, run_facts, save_model
from site_agent.desk.results.simple_models import best_simple_model, reads_simply, simple_scores
from site_agent.hospital import Hospital
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.disk import Json, write_whole
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study


def make_report(hospital: Hospital, study: Study, preprocessing: Preprocessing, run: str) -> dict[str, Json]:
    """Save the chosen model, compare it with other models, then write the site's report and log its main result.

    The report has `siloed` unless the site switched it off. If training alone diverged, its metrics are null.
    `best_local` names the simple model that this site would have chosen on its training rows alone. `differences` are
    the federated model's metrics minus those of each other model.

    Raises:
        OperatorError: no finite model remains, or the result cannot be written to the disk.
    """
    outcome, seeds = study.conclude(), study.seeds
    rows, facts = held_out_rows(study.own, preprocessing), facts_of(hospital, study, run)
    if study.plan.privacy is not None:
        facts["privacy"] = promise_facts(study.plan.privacy, study.own)
    models, choices = {FEDERATED: scores_of(preprocessing, outcome.test_outputs)}, {FEDERATED: outcome.choice}
    metrics = rows.evaluate(models[FEDERATED])
    saved = SavedModel(
        plan=study.plan,
        preprocessing=preprocessing,
        values=outcome.values,
        concepts=None if study.inputs is None else study.inputs.encoding,
        profile=study.own.profile,
    )
    save_model(hospital.state_path, run, saved)
    reason = "this site did not train alone"
    if hospital.training.siloed_baseline:
        reason = "the network trained alone diverged"
        facts[SILOED] = {"metrics": dict.fromkeys(metrics)}
        if (alone := train_alone(study)) is not None:
            models[SILOED], choices[SILOED] = scores_of(preprocessing, alone.test_outputs), alone.choice
    placebo = train_placebo(study) if hospital.training.placebo_baseline else None
    if placebo is not None:
        models[PLACEBO], choices[PLACEBO] = scores_of(preprocessing, placebo.test_outputs), placebo.choice
    return written_report(
        hospital, run, facts, study.own, preprocessing, seeds, models, choices, Baselines(why_none=reason)
    )


def written_report(
    hospital: Hospital,
    run: str,
    facts: dict[str, Json],
    dataset: Dataset,
    preprocessing: Preprocessing,
    seeds: Seeds,
    found: Mapping[str, Scores],
    choices: Mapping[str, Json],
    baselines: Baselines,
) -> dict[str, Json]:
    """Add the simple models to a study's result, compare all models, and write the report.

    `facts` becomes the content of the report. `dataset` is the site's own rows, `found` has each model's scores of the
    test rows, and `choices` the evidence for each checkpoint. The best simple model is added to the baselines.

    Raises:
        OperatorError: the result cannot be written to the disk.
    """
    models = dict(found)
    best: str | None = None
    if hospital.training.simple_models and reads_simply(dataset):
        models |= simple_scores(dataset, preprocessing, seeds.own("simple models"))
        best = facts["best_local"] = best_simple_model(dataset, seeds.own("best local"))
    test, baselines = held_out_rows(dataset, preprocessing), replace(baselines, best_local=best)
    results = compare(test, models, seeds.own("resamples"))
    gain = gain_of(test, results, baselines)
    facts |= compared(test, models, results, choices) | {"gain": gain.to_json()}
    facts |= drawn_facts(test, models, dataset, preprocessing.contract, facts)
    # The date is added only to the file, so that a repeated run has the same facts to the last bit.
    written = {**facts, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    content = json.dumps(written, indent=2, allow_nan=False).encode()
    write_whole(hospital.state_path / "reports" / f"{run}.json", content)
    best_here = None if gain.difference is None else gain.difference.second
    figures = {FEDERATED: gain.federated, SILOED: gain.siloed, "best_local": best_here}
    headline = {f"{name}_{gain.metric}": None if value is None else round(value, 4) for name, value in figures.items()}
    structlog.get_logger().info("study_reported", run=run, **headline, verdict=gain.verdict)  # and no other number
    return facts


def facts_of(hospital: Hospital, study: Study | PriorStudy, run: str) -> dict[str, Json]:
    """Return the general facts for a report: site, run, plan, task, number of rows, columns, program versions."""
    dataset = study.own
    return run_facts(hospital, study.plan, run) | {
        "task": dataset.task,
        "rows": {"training": len(dataset.training), "validation": len(dataset.validation), "test": len(dataset.test)},
        "rows_without_outcome": dataset.rows_without_outcome,
        "rows_put_aside": dataset.rows_put_aside,
        "columns": list(dataset.columns),
        "threads": hospital.training.threads,
    }


def promise_facts(promise: Privacy, own: Dataset) -> dict[str, Json]:
    """Return the report's facts about differential privacy, such as epsilon and delta."""
    unit = "row, because the contract has no patient column" if own.training_patients is None else "patient"
    return {"epsilon": promise.epsilon, "delta": promise.delta, "clip": promise.clip, "unit": unit}


def compared(
    test: HeldOutRows, models: Mapping[str, Scores], results: Compared, choices: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the results of all models for the report, and the federated model's differences to the others.

    Each model has its metrics, intervals and, of an outcome that is yes or no, calibration.
    """
    entries: dict[str, dict[str, Json]] = {
        name: {
            "metrics": dict(results.metrics[name]),
            "intervals": results.intervals(name),
            "calibration": asdict(calibration(test.labels, scores)) if test.task == "binary" else None,
        }
        for name, scores in models.items()
    }
    networks: dict[str, Json] = {name: entries.pop(name) | {"checkpoint": choice} for name, choice in choices.items()}
    return networks | {
        "simple_models": dict(entries),
        "differences": {name: results.differences(FEDERATED, name) for name in models if name != FEDERATED},
        "resamples": results.resamples,
    }
