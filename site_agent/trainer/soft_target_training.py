"""Uses the site's own baseline in training: as targets, as a column, or as a part of the result.

The rules:

* the prediction for a training row is from a baseline that was fitted without the row's patient. So a training row is
  never predicted better than a new row;
* labels of validation and test rows do not change, and checkpoints are chosen by the network alone;
* the network trained alone, the placebo and a prediction use the same baseline in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from protos.plan.losses import BaselineUse
from protos.plan.plan import Plan
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork

if TYPE_CHECKING:
    from site_agent.trainer.baselines import FittedBaseline

Predictions: TypeAlias = npt.NDArray[np.float32]
_PATH: Final = "unique.path.weight"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SoftTargets:
    """A baseline's predictions for all rows of its site, float32 (rows, outputs), and how the plan uses them.

    Each of `training` is by a baseline that was fitted without the row's patient; `validation` and `test` are by the
    baseline of all training rows.
    """

    fitted: FittedBaseline
    use: BaselineUse
    training: Predictions
    validation: Predictions
    test: Predictions


def soft_targets_of(plan: Plan, dataset: Dataset, seeds: Seeds) -> SoftTargets | None:
    """Fit the site's baseline and predict all rows, or return None without one. DataError if there are too few rows."""
    if plan.expert is None:
        return None

    from site_agent.trainer.baselines import fit_baseline  # loads scikit-learn

    fitted = fit_baseline(dataset, seeds.own("expert"))
    validation, test = (fitted.baseline.predictions(part.features) for part in (dataset.validation, dataset.test))
    return SoftTargets(
        fitted=fitted,
        use=plan.expert,
        training=fitted.out_of_fold.astype(np.float32),
        validation=validation.astype(np.float32),
        test=test.astype(np.float32),
    )


def added_columns(plan: Plan, outputs: int) -> int:
    """Return how many columns the baseline adds to the network's inputs."""
    return outputs if plan.expert is not None and plan.expert.path_start else 0


def taught(rows: Rows, predictions: Predictions, task: Task, share: float) -> Rows:
    """Return rows whose targets are mixed with the baseline's predictions: probabilities of classes, or numbers."""
    said, targets = torch.from_numpy(predictions), rows.targets
    if not share:
        return rows
    match task:
        case "binary":
            said = torch.sigmoid(said.squeeze(-1))
        case "multi-class":
            said = said.exp()
            targets = functional.one_hot(targets, said.shape[-1]).float()
        case "regression" | "segmentation":  # no site has a baseline of masks
            said = said.squeeze(-1)
        case _:
            assert_never(task)
    return Rows(rows.features, torch.lerp(targets, said, share))


def beside(features: Tensor, predictions: Predictions) -> Tensor:
    """Append the baseline's predictions to the features: float32 of shape (rows, columns + outputs)."""
    return torch.cat((features, torch.from_numpy(predictions)), dim=1)


def start_path(flat: FlatNetwork, start: float, outputs: int, copy: int | None = None) -> None:
    """Connect each baseline prediction to the network's output of the same class, with the initial weight `start`.

    `flat` reads the predictions as its last columns. `start` is above 0, because with 0 the network has no such
    columns.
    """
    weight = flat.network.get_parameter(_PATH).data
    (weight if copy is None else weight[copy])[:, -outputs:] = start * torch.eye(outputs)


def joined(outputs: Predictions, predictions: Predictions, share: float) -> Predictions:
    """Return the weighted sum of the network's outputs and the baseline's predictions, float32."""
    return np.float32(1.0 - share) * outputs + np.float32(share) * predictions
