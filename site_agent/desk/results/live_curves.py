"""Writes the loss and the metric of this site's models in each round to a file, for people at this site.

The trainer writes the file with mode 0600 in a folder that only its own user can read. So the agent, which has the
network, cannot read it. Measuring takes at most five seconds or a twentieth of the time, whichever is more. Rounds
beyond that are skipped, except the last one. A full disk does not end the study.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from host.durable import make_folder
from site_agent.desk.comparison.evaluation import HeldOutRows, headline_metric, scores_of, validation_rows
from site_agent.state_folders import live_curves_path
from site_agent.trainer.choice import Choice
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.site_network import SiteTraining
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.local import predict, validation_loss

# The training loss in the plot is measured on this number of training rows, the first rows.
_MOST_ROWS: Final = 2048
_SHARE: Final = 1 / 20
_FREE_SECONDS: Final = 5.0
_SAMPLED: Final = ("training", "values")


class LiveCurves:
    """Measures the loss and the metric of one study's models in each round of training."""

    def __init__(
        self, state: Path, run: str, dataset: Dataset, preprocessing: Preprocessing, clock: Callable[[], float]
    ) -> None:
        """Begin or continue the curves of a run. `state` is the site's folder; `clock` returns monotonic seconds."""
        self._path, self._clock, self._preprocessing = live_curves_path(state, run), clock, preprocessing
        self._rows: HeldOutRows = validation_rows(dataset, preprocessing)
        self._metric = headline_metric(dataset.task)
        self._facts: dict[str, Any] = {"run": run, "metric": self._metric, "training": [], "values": []}
        self._began: float | None = None
        self._spent_seconds = 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_bytes())
            self._facts |= {key: [[int(number), float(value)] for number, value in found[key]] for key in _SAMPLED}

    def take(self, number: int, training: SiteTraining, choice: Choice, is_last: bool = False) -> None:
        """Test the model received in a round, and add the result to the file. A repeated round replaces its result.

        `is_last` is whether no later model follows, so that this one is not skipped.
        """
        began = self._clock()
        self._began = began if self._began is None else self._began
        if not is_last and self._spent_seconds > max(_FREE_SECONDS, _SHARE * (began - self._began)):
            return
        for key in _SAMPLED:
            self._facts[key] = [point for point in self._facts[key] if point[0] < number]
        losses = [[measured.round, measured.loss] for measured in choice.curve if math.isfinite(measured.loss)]
        flat, rows = training.local.evaluated(), training.rows.training
        few = Rows(rows.features[:_MOST_ROWS], rows.targets[:_MOST_ROWS])
        self._keep("training", number, float(validation_loss(flat, few, training.recipe.loss)))
        outputs = predict(flat, training.rows.validation.features)
        value = None
        if np.isfinite(outputs).all():
            value = self._rows.evaluate(scores_of(self._preprocessing, outputs))[self._metric]
        self._keep("values", number, math.nan if value is None else value)
        self._write(self._facts | {"validation": losses, "measured": len(choice.curve)})
        self._spent_seconds += self._clock() - began

    def _keep(self, key: str, number: int, value: float) -> None:
        if math.isfinite(value):
            self._facts[key].append([number, value])

    def _write(self, facts: dict[str, Any]) -> None:
        # It is only a drawing for people. If the disk is full, the error is reported when the study is saved.
        with suppress(OSError):
            make_folder(self._path.parent)
            partial = self._path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(facts, allow_nan=False).encode())
            partial.rename(self._path)
