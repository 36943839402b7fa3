"""The end of a study at this site: the chosen model on disk, and what joining brought.

Both stay here. The model is saved before the site trains alone for comparison, so that an interruption
of the comparison loses nothing. The report is JSON beside a line for the operator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import structlog

from protos.gain_sums import GainSums, gain_sums
from site_agent.config import Hospital
from site_agent.trainer.alone import train_alone
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.evaluation import Metrics, evaluate, scores_of, targets_of
from site_agent.trainer.files import write_whole
from site_agent.trainer.saved_model import SavedModel, save_model
from site_agent.trainer.study import Outcome, Study

_HEADLINE: Final[dict[Task, str]] = {"binary": "auroc", "multi-class": "auroc", "regression": "rmse"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a study came to at this site.

    Attributes:
        facts: the report as it was written.
        gain: the only part of it that may leave, for sums over all sites.
    """

    facts: dict[str, Json]
    gain: GainSums


def make_report(hospital: Hospital, study: Study, preprocessing: Preprocessing, run: str) -> Report:
    """Save the chosen model, compare it, write and log the site's report.

    `siloed` is in the report unless the site switched it off; where training alone diverged, its
    metrics are null.

    Raises:
        OperatorError: no finite model is left, or the disk does not take what is saved.
    """
    outcome = study.conclude()
    metrics = _metrics(study, preprocessing, outcome)
    facts: dict[str, Json] = {
        "site": hospital.site,
        "run": run,
        "plan_digest": study.plan.digest.hex(),
        "method": study.plan.method.name,
        "task": study.dataset.task,
        "rows": {
            "training": len(study.dataset.training),
            "validation": len(study.dataset.validation),
            "test": len(study.dataset.test),
        },
        "columns": list(study.own.columns),
        "federated": {"metrics": metrics, "checkpoint": outcome.choice},
    }
    model = SavedModel(plan=study.plan, preprocessing=preprocessing, values=outcome.values, report=dict(facts))
    save_model(hospital.state_path, run, model)
    metric = _HEADLINE[study.dataset.task]
    headline = {f"federated_{metric}": _rounded(metrics, metric)}
    opponents: list[float | None] = []
    if hospital.training.siloed_baseline:
        alone = train_alone(study)
        siloed = _metrics(study, preprocessing, alone) if alone else dict.fromkeys(metrics)
        facts["siloed"] = {"metrics": siloed} | ({"checkpoint": alone.choice} if alone else {})
        headline[f"siloed_{metric}"] = _rounded(siloed, metric)
        opponents.append(siloed[metric])
    content = json.dumps(facts, indent=2, allow_nan=False).encode()
    write_whole(hospital.state_path / "reports" / f"{run}.json", content)
    structlog.get_logger().info("study_reported", run=run, **headline)
    is_summed = study.dataset.task != "regression"
    return Report(facts=facts, gain=gain_sums(metrics[metric] if is_summed else None, opponents if is_summed else ()))


def _metrics(study: Study, preprocessing: Preprocessing, outcome: Outcome) -> Metrics:
    targets = targets_of(preprocessing, study.dataset.test.targets)
    scores = scores_of(preprocessing, outcome.test_outputs)
    return dict(evaluate(study.dataset.task, targets, scores, study.dataset.classes).metrics)


def _rounded(metrics: Metrics, metric: str) -> float | None:
    value = metrics[metric]
    return None if value is None else round(value, 4)
