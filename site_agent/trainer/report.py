"""The end of a study at this site: the chosen model on disk, and what joining brought.

Both stay here. The report is JSON beside a line for the operator; the model is safetensors with the
preprocessing that belongs to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from protos.errors import OperatorError
from site_agent.config import Hospital
from site_agent.trainer.checkpoints import save
from site_agent.trainer.files import write_whole
from site_agent.trainer.study import Study


def conclude(hospital: Hospital, study: Study, run: str, received: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Take in the last aggregate, save the chosen model, write and print the site's report."""
    outcome = study.conclude(received)
    facts = {
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
    if hospital.training.siloed_baseline:
        facts["siloed"] = study.train_alone().facts()
    _save_model(hospital.state_path / "models" / run, study, outcome.values, facts)
    write_whole(hospital.state_path / "reports" / f"{run}.json", json.dumps(facts, indent=2).encode())
    structlog.get_logger().info("study_reported", run=run, **_headline(facts))
    return facts


def _save_model(
    directory: Path, study: Study, values: dict[str, npt.NDArray[np.float32]], facts: dict[str, Any]
) -> None:
    model = {
        "plan": study.plan.canonical.decode(),
        "preprocessing": study.preprocessing.to_json(),
        "columns": list(study.dataset.columns),
        "outputs": study.dataset.outputs,
        "report": facts,
    }
    save(directory, "model", values, model)


def _headline(facts: dict[str, Any]) -> dict[str, Any]:
    metric = "rmse" if facts["task"] == "regression" else "auroc"
    line = {f"federated_{metric}": facts["federated"]["metrics"][metric]}
    if "siloed" in facts:
        line[f"siloed_{metric}"] = facts["siloed"]["metrics"][metric]
    return {key: round(value, 4) if value is not None else None for key, value in line.items()}


def latest_run(state: Path) -> str:
    """The run whose model was saved last.

    Raises:
        OperatorError: there is none.
    """
    models = sorted((state / "models").glob("*/model.safetensors"), key=lambda path: path.stat().st_mtime)
    if not models:
        raise OperatorError(
            what="This site has no trained model yet.",
            consequence="Nothing was predicted, and nothing left this site.",
            remedy="Take part in a study first, with `site-agent join`.",
        )
    return models[-1].parent.name
