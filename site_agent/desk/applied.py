"""Computes the outputs of a saved model for encoded rows, for predictions, reports and exports.

The network has the same layout in memory as in training, so that results are equal to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from site_agent.desk.comparison.evaluation import Scores, scores_of
from site_agent.desk.results.saved_model import SavedModel, other_version
from site_agent.hospital import Training
from site_agent.trainer.data.dataset import place_columns
from site_agent.trainer.site_network import SiteNetworks
from site_agent.trainer.training.local import predict

_DRAWS: Final = 8


class AppliedModel:
    """A saved model that is ready to compute scores."""

    def __init__(self, model: SavedModel, run: str, training: Training) -> None:
        """Build the network and load its values. Raises ConfigurationError if they are of another network."""
        self.model = model
        if model.joined is not None:
            return
        assert isinstance(model.plan, NetworkPlan)
        networks = SiteNetworks(
            plan=model.plan,
            columns=len(model.columns),
            outputs=model.outputs,
            common=model.common,
            user_module=Path(training.user_module) if training.user_module else None,
            module_seed=0,  # every value is replaced below
            starts={name: values.astype(np.float32) for name, values in model.values.items()},
        )
        try:
            self._flat = networks.lay(manifest_of(model.plan).tensors)
            self._flat.load(model.values)
        except ValueError as cause:
            raise other_version(run) from cause

    @property
    def network(self) -> nn.Module:
        return self._flat.network.eval()

    def outputs(
        self, features: npt.NDArray[np.float32], compute: Callable[[Tensor], npt.NDArray[Any]] | None = None
    ) -> npt.NDArray[Any]:  # Any: float32, or the type of `compute`
        """Return the outputs, (rows, outputs), for encoded rows, float32 (rows, columns).

        `compute` takes the place of the network; without it the result is float32.
        """
        model, compute = self.model, compute or (lambda rows: predict(self._flat, rows))
        if model.joined is not None:
            width = len(model.preprocessing.columns)
            return model.joined.outputs(features[:, :width], features[:, width:]).astype(np.float32)
        return compute(torch.from_numpy(self._placed(features)))

    def _placed(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        model, own = self.model, self.model.preprocessing.columns
        if model.read_places is not None:
            return np.ascontiguousarray(features[:, list(model.read_places)])
        return features if model.columns == own else place_columns(features, own, model.columns)

    def rounding(self, features: npt.NDArray[np.float32], seed: int) -> float:
        """Return how far half a unit in the last place of float32 moves the scores, the largest of some random draws.

        The network is computed in float64, with every input and parameter multiplied by 1 + u, |u| <= 2^-24. So the
        result follows from the network and the number format, and not from this computer's order of sums. 0 for a model
        without a network.
        """
        if self.model.joined is not None:
            return 0.0
        generator, whole = torch.Generator().manual_seed(seed), copy.deepcopy(self.network).double()

        def moved(values: Tensor) -> Tensor:
            return values * (1 + 2**-24 * (2 * torch.rand(values.shape, generator=generator, dtype=torch.float64) - 1))

        def scores(network: nn.Module, move: Callable[[Tensor], Tensor]) -> Scores:
            def compute(rows: Tensor) -> npt.NDArray[np.generic]:
                return np.asarray(network(move(rows.double())).numpy())

            return scores_of(self.model.preprocessing, self.outputs(features, compute))

        with torch.no_grad():
            exact, furthest = scores(whole, lambda rows: rows), 0.0
            for _ in range(_DRAWS):
                other = copy.deepcopy(whole)
                for values in other.parameters():
                    values.copy_(moved(values))
                furthest = max(furthest, float(np.abs(scores(other, moved) - exact).max()))
        return furthest

    def scores(self, features: npt.NDArray[np.float32]) -> Scores:
        """Return probabilities, or numbers in the outcome's unit. A row with an output that is not finite gets NaN."""
        outputs = self.outputs(features)
        scores = scores_of(self.model.preprocessing, outputs)
        scores[~np.isfinite(outputs).all(axis=1)] = np.nan
        return scores
