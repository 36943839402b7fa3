"""Computes the outputs of a saved model for encoded rows, for predictions, reports and exports.

The network has the same layout in memory as in training, so that results are equal to the bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from protos.plan.manifest import manifest_of
from site_agent.desk.comparison.evaluation import Scores, scores_of
from site_agent.desk.results.own_models import own_scores
from site_agent.desk.results.saved_model import SavedModel, other_version
from site_agent.hospital import Training
from site_agent.trainer.data.dataset import place_columns
from site_agent.trainer.site_network import SiteNetworks
from site_agent.trainer.soft_target_training import added_columns, beside, joined
from site_agent.trainer.training.local import predict, rows_at_once


class AppliedModel:
    """A saved model that is ready to compute scores."""

    def __init__(self, model: SavedModel, run: str, training: Training) -> None:
        """Build the network and load its values. Raises ConfigurationError if they are of another network."""
        self.model = model
        if model.joined is not None or model.own is not None:
            return
        networks = SiteNetworks(
            plan=model.plan,
            columns=len(model.columns) + added_columns(model.plan, model.outputs),
            outputs=model.outputs,
            common=model.common,
            own_module=Path(training.own_module) if training.own_module else None,
            module_seed=0,  # every value is replaced below
            starts={name: values.astype(np.float32) for name, values in model.values.items()},
        )
        try:
            self._flat = networks.lay(() if model.is_alone else manifest_of(model.plan).tensors)
            self._flat.load(model.values)
        except ValueError as cause:
            raise other_version(run) from cause

    @property
    def network(self) -> nn.Module:
        """The model's neural network without the site's baseline, ready to predict and not to train."""
        return self._flat.network.eval()

    def rows_at_once(self, features: npt.NDArray[np.float32]) -> int:
        """Return how many rows the network computes at once. The number does not change any row's result."""
        return rows_at_once(self._flat, torch.from_numpy(features))

    def outputs(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the weighted sum of network and baseline, float32 (rows, outputs), for encoded rows (rows, columns).

        A simple model has no such outputs.
        """
        model = self.model
        if model.joined is not None:
            width = len(model.preprocessing.columns)
            return model.joined.outputs(features[:, :width], features[:, width:]).astype(np.float32)
        placed = self._placed(features)
        if model.baseline is None or model.plan.expert is None:
            return predict(self._flat, torch.from_numpy(placed))
        own = features[:, : len(model.preprocessing.columns)]
        said, use = model.baseline.predictions(own).astype(np.float32), model.plan.expert
        read = beside(torch.from_numpy(placed), said) if use.path_start else torch.from_numpy(placed)
        return joined(predict(self._flat, read), said, use.result_share)

    def _placed(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        model, own = self.model, self.model.preprocessing.columns
        if model.read_places is not None:
            return np.ascontiguousarray(features[:, list(model.read_places)])
        if model.columns == own:
            return features
        return place_columns(features, own, model.columns, model.plan.unused_columns)

    def scores(self, features: npt.NDArray[np.float32]) -> Scores:
        """Return probabilities, or numbers in the outcome's unit. A row with an output that is not finite gets NaN."""
        preprocessing, own = self.model.preprocessing, self.model.own
        if own is not None:
            task = preprocessing.contract.target.task
            scores = own_scores(own, task, features)
            return preprocessing.in_target_units(scores) if task == "regression" else scores
        outputs = self.outputs(features)
        scores = scores_of(preprocessing, outputs)
        scores[~np.isfinite(outputs).all(axis=1)] = np.nan
        return scores
