"""First values: known answers, their range, and their independence of everything else."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from protos.plan.architecture import GlobalLayersNetwork, Part, TensorSpec, Uniform, network_tensors
from protos.plan.initial_values import initial_values
from tests.for_each import for_each

# Computed once, and equal on every machine for ever.
KNOWN_DIGEST = "9d32fd72ca4046e64bf2d64fad58647f3c1e66eff32edb24e72281680baf1d02"


def spec(name: str, shape: tuple[int, ...], bound: float) -> TensorSpec:
    """A tensor with a uniform start."""
    return TensorSpec(name, shape, Part.BODY, Uniform(bound))


def test_the_heart_network_has_a_known_digest() -> None:
    """All 448,339 first values of a heart network are the committed ones, to the bit."""
    heart = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)
    digest = hashlib.sha256()

    for tensor in network_tensors(heart, columns=13, outputs=1):
        digest.update(initial_values(tensor, 7).astype("<f4").tobytes())

    assert digest.hexdigest() == KNOWN_DIGEST


@for_each("seed", range(20))
def test_a_tensor_does_not_depend_on_its_shape_or_neighbours(seed: int) -> None:
    """The same name gives the same numbers in the same order, whatever shape they are laid out in."""
    wide, flat = initial_values(spec("a", (6, 4), 0.5), seed), initial_values(spec("a", (24,), 0.5), seed)

    np.testing.assert_array_equal(wide.ravel(), flat)


@pytest.mark.parametrize("bound", [1.0, 0.3, 1 / 3, 0.0884, 0.5000001, 1e-6, 1000.1])
def test_values_fill_the_range_evenly_and_stay_inside(bound: float) -> None:
    """Values lie in [-bound, bound), with mean 0 and the variance of a uniform."""
    values = initial_values(spec("a", (200_000,), bound), 5).astype(np.float64) / float(np.float32(bound))

    assert values.min() >= -1.0
    assert values.max() < 1.0
    assert abs(values.mean()) < 0.01
    assert abs(values.var() - 1 / 3) < 0.005
