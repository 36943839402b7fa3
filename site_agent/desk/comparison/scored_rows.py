"""Stores every model's predictions (scores) for this site's test rows, from which the report is made.

A run's models are deleted after their test. Their scores of each test row are stored, so that curves and subgroups
can be drawn later without new training. Each run has one checkpoint of mode 0600 with numbers and no identifiers. It
is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.trainer.data.contract import Task
from site_agent.trainer.disk import Checkpoint, Json, load, save

_NAME: Final = "rows"
_MODEL: Final = "model "  # no other array's name has a blank after "model"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoredRows:
    """The test rows with the scores of the models by their names in the report.

    `dataset` is the digest of the encoded table, so that a later change of the table is detected.
    """

    test: HeldOutRows
    scores: Mapping[str, Scores]
    dataset: str

    def __repr__(self) -> str:
        """Return what `repr` shows: only two counts, because a traceback must not show a patient's values."""
        return f"ScoredRows(test={len(self.test)}, models={len(self.scores)})"


def keep_scored_rows(state: Path, run: str, kept: ScoredRows) -> Path:
    """Write the scores of all models to a file with mode 0600. After a crash the file is complete or does not exist."""
    facts: dict[str, Json] = {
        "task": kept.test.task,
        "classes": list(kept.test.classes),
        "unit": kept.test.unit,
        "models": list(kept.scores),
        "dataset": kept.dataset,
    }
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "test": kept.test.targets,
        **{f"{_MODEL}{name}": scores for name, scores in kept.scores.items()},
    }
    if kept.test.patients is not None:
        arrays["patients"] = kept.test.patients
    return save(_folder(state, run), _NAME, arrays, facts)


def scored_rows(state: Path, run: str) -> ScoredRows:
    """Read the stored scores of a run. Raises ConfigurationError if they are missing, damaged or of another version."""
    if not (_folder(state, run) / f"{_NAME}.safetensors").exists():
        raise ConfigurationError(
            what=f"The models' predictions for the test rows were not stored for the run {run}.",
            consequence="No report about the run was written, and nothing was sent.",
            remedy="Name a run that finished with this version of the program, or take part in a new run.",
        )
    try:
        return _read(load(_folder(state, run), _NAME))
    except (KeyError, ValueError, TypeError) as cause:
        raise ConfigurationError(
            what=f"Another version of this program stored the models' predictions of the run {run}.",
            consequence="No report about the run was written, and nothing was sent.",
            remedy="Install the version of the program that trained the model, or take part in a new run.",
        ) from cause


def runs_on_the_same_rows(state: Path, dataset: str) -> int:
    """Count the stored runs whose models were tested on the same encoded table. Unreadable files are skipped."""
    count = 0
    for path in (state / "scores").glob(f"*/{_NAME}.safetensors"):
        try:
            count += load(path.parent, _NAME).facts.get("dataset") == dataset
        except ConfigurationError:
            continue
    return count


def _read(found: Checkpoint) -> ScoredRows:
    facts, arrays = found.facts, found.tensors
    task = cast(Task, facts["task"])
    classes = tuple(str(name) for name in cast(Sequence[Json], facts["classes"]))
    unit = None if facts["unit"] is None else str(facts["unit"])
    patients = arrays["patients"].astype(np.int64) if "patients" in arrays else None
    names = [str(name) for name in cast(Sequence[Json], facts["models"])]
    return ScoredRows(
        test=HeldOutRows(task=task, targets=arrays["test"], classes=classes, patients=patients, unit=unit),
        scores={name: arrays[f"{_MODEL}{name}"].astype(np.float64) for name in names},
        dataset=str(facts["dataset"]),
    )


def _folder(state: Path, run: str) -> Path:
    return state / "scores" / run
