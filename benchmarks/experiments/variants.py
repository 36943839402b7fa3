"""Defines a row of results, and a variant: an experiment that computes rows for a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.metrics import balanced_accuracy_score, precision_recall_fscore_support

from benchmarks.experiments.federations import federate
from protos.plan.plan import Plan
from site_agent.desk.comparison.evaluation import Scores, measure
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.fitted_models import probabilities
from site_agent.trainer.study import Outcome

Outputs: TypeAlias = npt.NDArray[np.float32]

# The authors' experiment cuts the logit at 0.5, which is this probability.
AUTHORS_THRESHOLD: Final = 0.6224593312018546


@dataclass(frozen=True, kw_only=True)
class Row:
    """The metrics of one model on one site's test rows.

    Attributes:
        variant: what was run.
        seed: of the run.
        site: whose test rows.
        chosen_round: the round of the model; -1 if there is no such round.
        metrics: by name, without undefined ones.
    """

    variant: str
    seed: int
    site: str
    chosen_round: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An experiment that is repeated with several seeds.

    Attributes:
        name: unique in its table.
        run: rows from the data folder and a seed.
        most_seeds: the largest number of requested seeds to run, the first ones; None for all.
    """

    name: str
    run: Callable[[Path, int], Iterator[Row]]
    most_seeds: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """A chosen model's outputs for one site's test rows and validation rows, float32 (rows, outputs)."""

    seed: int
    site: str
    chosen_round: int
    outputs: Outputs
    validation_outputs: Outputs


def run_plan(plan: Plan, sites: Mapping[str, Dataset]) -> Iterator[Predicted]:
    """Run a federation. Yield the outputs of each site's chosen model."""
    _, outcomes = federate(plan, sites)
    for name, outcome in outcomes.items():
        yield predicted_by(plan.seed, name, outcome)


def predicted_by(seed: int, site: str, outcome: Outcome) -> Predicted:
    """The outputs of a single federation's chosen model for a site's rows."""
    number = outcome.choice["round"]
    return Predicted(
        seed=seed,
        site=site,
        chosen_round=number if isinstance(number, int) else -1,
        outputs=outcome.test_outputs,
        validation_outputs=outcome.validation_outputs,
    )


def validation_accuracy(predicted: Predicted, dataset: Dataset) -> float:
    """Return the fraction of correct predictions on the validation rows, to choose among variants."""
    scores = probabilities(dataset.task, predicted.validation_outputs)
    return float(np.mean(_classes(scores) == dataset.validation.targets))


def row_of(variant: str, predicted: Predicted, dataset: Dataset, **more: float) -> Row:
    """Return the metrics of outputs on a site's test rows as a row of results, with any additional values."""
    truth = dataset.test.targets
    scores = probabilities(dataset.task, predicted.outputs)
    metrics = dict(measure(dataset.task, truth, scores, dataset.classes)) | _of_classes(truth, scores)
    if dataset.task == "binary":
        metrics["balanced_accuracy_at_logit_half"] = float(
            balanced_accuracy_score(truth.astype(np.int64), scores >= AUTHORS_THRESHOLD)
        )
    return Row(
        variant=variant,
        seed=predicted.seed,
        site=predicted.site,
        chosen_round=predicted.chosen_round,
        metrics={name: value for name, value in metrics.items() if value is not None} | more,
    )


def _classes(scores: Scores) -> npt.NDArray[np.generic]:
    return scores >= 0.5 if scores.ndim == 1 else scores.argmax(axis=1)


def _of_classes(truth: npt.NDArray[np.generic], scores: Scores) -> dict[str, float | None]:
    """Return the metrics of predicted classes that papers print. Means are over the classes present in `truth`."""
    targets, predicted = truth.astype(np.int64), _classes(scores)
    over = {"labels": np.unique(targets), "average": "macro", "zero_division": 0}
    _, recall, f1, _ = precision_recall_fscore_support(targets, predicted, **over)
    accuracy = float(np.mean(targets == predicted))
    return {"accuracy": accuracy, "balanced_accuracy": float(recall), "macro_f1": float(f1)}
