"""The end of a study at this site: the chosen model on disk, and what joining brought.

Both stay here. The model is saved before the site trains alone for comparison, so that an interruption
of the comparison loses nothing. The report is JSON beside a line for the operator.
"""

from __future__ import annotations

import json
from typing import Final

import structlog

from site_agent.config import Hospital
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.contract import Task
from site_agent.trainer.files import write_whole
from site_agent.trainer.saved_model import SavedModel, save_model
from site_agent.trainer.study import Outcome, Study
from site_agent.trainer.training.bridge import Vector

_HEADLINE: Final[dict[Task, str]] = {"binary": "auroc", "multi-class": "auroc", "regression": "rmse"}


def conclude(hospital: Hospital, study: Study, run: str, received: Vector) -> dict[str, Json]:
    """Take in the last aggregate, save the chosen model, write and log the site's report.

    Returns:
        the report. `siloed` is there unless the site switched it off; where training alone diverged,
        its metrics are null.

    Raises:
        OperatorError: no finite model is left, or the disk does not take what is saved.
    """
    outcome = study.conclude(received)
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
        "federated": outcome.facts(),
    }
    model = SavedModel(plan=study.plan, preprocessing=study.preprocessing, values=outcome.values, report=dict(facts))
    save_model(hospital.state_path, run, model)
    metric = _HEADLINE[study.dataset.task]
    headline = {f"federated_{metric}": _rounded(outcome, metric)}
    if hospital.training.siloed_baseline:
        alone = study.train_alone()
        facts["siloed"] = alone.facts() if alone else {"metrics": dict.fromkeys(outcome.evaluation.metrics)}
        headline[f"siloed_{metric}"] = _rounded(alone, metric) if alone else None
    content = json.dumps(facts, indent=2, allow_nan=False).encode()
    write_whole(hospital.state_path / "reports" / f"{run}.json", content)
    structlog.get_logger().info("study_reported", run=run, **headline)
    return facts


def _rounded(outcome: Outcome, metric: str) -> float | None:
    value = outcome.evaluation.metrics[metric]
    return None if value is None else round(value, 4)
