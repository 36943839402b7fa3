"""Combines three models of one site: its own regression, its own forest, and the other hospitals' score.

All three give logits (for several classes logarithms of probabilities, for a regression the numbers themselves). The
joined model is their weighted mean. The site's own rows decide the weights. It consists of numbers, so it is saved,
exported and read without unpickling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.contract import Task
from site_agent.trainer.fitted_models import Forest, Lines, on_bounded_scale

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
MODELS: Final = ("own regression", "own forest", "others")
_LINES: Final = ("own slopes", "own starts", "others slopes", "others starts", "weights")
_FOREST: Final = {"roots": "<i4", "columns": "<i4", "children": "<i4", "thresholds": "<f8", "values": "<f8"}
_TYPES: Final = {**dict.fromkeys(_LINES, "<f8"), **_FOREST}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JoinedModel:
    """A site's regression and forest on its own encoded columns, and the others' score on the standardised concepts.

    `weights` are float64 of shape (3,), in the order of MODELS; not negative, with sum 1.
    """

    task: Task
    own: Lines
    forest: Forest
    others: Lines
    weights: Float64

    def outputs(self, own: Float32, concepts: Float32) -> Float64:
        """Return the joined model's outputs, float64 (rows, outputs): logits, logarithms of probabilities, or numbers.

        `own` is float32 (rows, own columns), encoded; `concepts` is float32 (rows, concept columns), standardised.
        """
        said = (
            on_scale(self.task, self.own.of(own)),
            on_bounded_scale(self.task, self.forest.answers(own)),
            of_others(self.task, self.others.of(concepts)),
        )
        return weighted(said, self.weights)

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all arrays that a file must store so that `joined_model_of` can build this model again."""
        lines = (self.own.slopes, self.own.starts, self.others.slopes, self.others.starts, self.weights)
        forest = {name: np.asarray(getattr(self.forest, name)) for name in _FOREST}
        return {**dict(zip(_LINES, lines, strict=True)), **forest}


def joined_model_of(task: Task, arrays: Mapping[str, npt.NDArray[np.generic]]) -> JoinedModel:
    """Build a joined model from its arrays. Raises ValueError if they are not those of a joined model."""
    if {name: array.dtype.str for name, array in arrays.items()} != _TYPES:
        raise ValueError("other arrays than a joined model's")
    numbers = {name: np.asarray(arrays[name], dtype=np.float64) for name in (*_LINES, "thresholds", "values")}
    nodes = {name: np.asarray(arrays[name], dtype=np.int32) for name in ("roots", "columns", "children")}
    return JoinedModel(
        task=task,
        own=Lines(slopes=numbers["own slopes"], starts=numbers["own starts"]),
        forest=Forest(**nodes, thresholds=numbers["thresholds"], values=numbers["values"]),
        others=Lines(slopes=numbers["others slopes"], starts=numbers["others starts"]),
        weights=numbers["weights"],
    )


def on_scale(task: Task, lines: Float64) -> Float64:
    """Convert a linear model's outputs, (rows, outputs), to the scale of the joined model: logits or numbers."""
    if task != "multi-class":
        return lines
    raised = lines - lines.max(axis=1, keepdims=True)
    return np.asarray(raised - np.log(np.exp(raised).sum(axis=1, keepdims=True)))


def of_others(task: Task, lines: Float64) -> Float64:
    """Convert one-against-the-rest scores of classes to log probabilities. Return other scores unchanged."""
    if task != "multi-class":
        return lines
    shares = 1.0 / (1.0 + np.exp(-np.clip(lines, -30.0, 30.0)))
    return np.asarray(np.log(shares / shares.sum(axis=1, keepdims=True)))


def weighted(models: Sequence[Float64], weights: Float64) -> Float64:
    """Return the weighted sum of the outputs of all models. Each model's outputs have the shape (rows, outputs)."""
    return np.asarray(sum(weight * one for weight, one in zip(weights, models, strict=True)))
