"""Corrects a model's probabilities for this site's own patients, by Platt's method or by isotonic regression.

A federated model can rank patients well and still predict 30% for patients of whom 20% have the outcome. A
recalibration is a small map from probability to probability, stored next to the model. The rules:

* the model itself never changes, and this includes its shared parameters;
* it is never fitted to the test rows, so that they can still test it;
* with several classes each has its own map, against the rest, and the results are divided by their sum.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from protos.errors import ConfigurationError, UsageError
from protos.plan.documents import Document
from site_agent.desk.comparison.calibration import logits
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.trainer.probabilities import probabilities
from site_agent.trainer.trainer_files import write_whole

Kind: TypeAlias = Literal["platt", "isotonic"]
FEWEST_ROWS: Final = 20
BEFORE: Final = "All numbers describe the model before its recalibration."
_NAME: Final = "recalibration.json"


class PlattMap(Document):
    """The map sigmoid(intercept + slope · logit(p)) of a probability p. Platt 1999 has a margin for the logit."""

    kind: Literal["platt"] = "platt"
    intercept: float
    slope: float

    def apply(self, scores: Scores) -> Scores:
        """Map probabilities of shape (rows,) to probabilities of the same shape."""
        return probabilities("binary", self.intercept + self.slope * logits(scores))


class IsotonicMap(Document):
    """A piecewise linear, rising map of probabilities, constant before the first and after the last point."""

    kind: Literal["isotonic"] = "isotonic"
    xs: tuple[float, ...] = Field(min_length=1)
    ys: tuple[float, ...] = Field(min_length=1)

    def apply(self, scores: Scores) -> Scores:
        """Map probabilities of shape (rows,) to probabilities of the same shape."""
        return np.interp(scores, self.xs, self.ys)


class Recalibration(Document):
    """The fitted maps from predicted to corrected probabilities: one for the positive class, or one for each class."""

    version: Literal[1] = 1
    maps: tuple[Annotated[PlattMap | IsotonicMap, Field(discriminator="kind")], ...] = Field(min_length=1)
    rows: int

    def apply(self, scores: Scores) -> Scores:
        """Return the recalibrated probabilities, (rows,) or (rows, classes), for a model's probabilities."""
        if scores.ndim == 1:
            return self.maps[0].apply(scores)
        mapped = np.stack([one.apply(scores[:, place]) for place, one in enumerate(self.maps)], axis=1)
        total = mapped.sum(axis=1, keepdims=True)
        # If every class has probability 0 after the map, the model's own probabilities are used.
        return np.where(total > 0.0, mapped / np.where(total > 0.0, total, 1.0), scores)


def fit_recalibration(kind: Kind, rows: HeldOutRows, scores: Scores) -> Recalibration:
    """Fit a recalibration to the given rows. Raises UsageError if the outcome or the rows are not suitable."""
    if not rows.classes:
        raise _impossible("the outcome is a number or a mask, but only probabilities of classes can be recalibrated")
    if len(rows) < FEWEST_ROWS:
        raise _impossible(f"there are {len(rows)} rows with a prediction, and at least {FEWEST_ROWS} rows are needed")
    if not np.isfinite(scores).all():
        raise _impossible("the model's output is not a finite number for some rows")
    columns = [(happened, said) for _, happened, said in rows.outcomes(scores)]
    if any(happened.all() or not happened.any() for happened, _ in columns):
        raise _impossible("one class occurs in no row or in all rows")
    match kind:
        case "platt":
            return Recalibration(maps=tuple(_platt(*column) for column in columns), rows=len(rows))
        case "isotonic":
            return Recalibration(maps=tuple(_isotonic(*column) for column in columns), rows=len(rows))
        case _:
            assert_never(kind)


def save_recalibration(state: Path, run: str, name: str, made: Recalibration) -> Path:
    """Write the recalibration next to the run's model, with mode 0600. An earlier recalibration is replaced."""
    path = _path(state, run, name)
    write_whole(path, made.model_dump_json(indent=2).encode())
    return path


def forget_recalibration(state: Path, run: str, name: str) -> bool:
    """Remove the recalibration of a run's model. Return whether there was a recalibration."""
    path = _path(state, run, name)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    return was_there


def recalibration_of(state: Path, run: str, name: str) -> Recalibration | None:
    """Return a model's recalibration, or None. Raises ConfigurationError if the file is damaged."""
    path = _path(state, run, name)
    if not path.exists():
        return None
    try:
        return Recalibration.model_validate(json.loads(path.read_bytes()), strict=False)
    except (ValidationError, ValueError) as cause:
        raise ConfigurationError(
            what=f"The recalibration of the run {run} is damaged or from another version of this program.",
            consequence="No model was used, and nothing was sent.",
            remedy="Run `site-agent recalibrate` again, or remove the recalibration with --kind none.",
        ) from cause


def _platt(happened: npt.NDArray[np.bool_], scores: Scores) -> PlattMap:
    # Platt's targets, not quite 0 and 1, keep the slope finite if the scores separate the classes.
    positive, negative = int(happened.sum()), int((~happened).sum())
    target = np.where(happened, (positive + 1.0) / (positive + 2.0), 1.0 / (negative + 2.0))
    design = np.tile(logits(scores)[:, None], (2, 1))
    outcome = np.repeat([1, 0], len(scores))
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    line.fit(design, outcome, sample_weight=np.concatenate([target, 1.0 - target]))
    return PlattMap(intercept=float(line.intercept_[0]), slope=float(line.coef_[0, 0]))


def _isotonic(happened: npt.NDArray[np.bool_], scores: Scores) -> IsotonicMap:
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, happened.astype(np.float64))
    xs, ys = fitted.X_thresholds_, fitted.y_thresholds_
    return IsotonicMap(xs=tuple(map(float, xs)), ys=tuple(map(float, ys)))


def _impossible(reason: str) -> UsageError:
    return UsageError(
        what=f"Recalibration is not possible: {reason}.",
        consequence="The model is unchanged, and nothing was sent.",
        remedy="Use the model's probabilities without recalibration, or add rows before the next run.",
    )


def _path(state: Path, run: str, name: str) -> Path:
    # If the recalibration is for another model than the federated one, its file name contains the model's name.
    file = _NAME if name == FEDERATED else f"{name}.{_NAME}"
    return state / "models" / run / file
