"""Names, shapes and counts of every tensor, against the totals of the paper's experiment."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protos.errors import ConfigurationError
from protos.plan.architecture import (
    Constant,
    GlobalLayersNetwork,
    NamedTensor,
    NamedTensors,
    Part,
    TensorSpec,
    Uniform,
    network_tensors,
)
from tests.protos.architectures import body_of

HEART = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)


def test_initial_ranges_are_those_of_torch() -> None:
    """Linear maps start in ±1/√fan-in, packed projections by Xavier's rule, normalisations at 1 and 0."""
    initial = {spec.name: spec.initial for spec in network_tensors(HEART, columns=13, outputs=1)}

    assert initial["input.embedding.bias"] == Uniform(1.0)
    assert initial["input.transformer1.attention.projections.weight"] == Uniform((6 / 64) ** 0.5)
    assert initial["input.transformer1.attention.output.weight"] == Uniform(0.25)
    assert initial["body.layer2.outer.bias"] == Uniform(1 / 128**0.5)
    assert initial["head.output.normalisation.weight"] == Constant(1.0)
    assert initial["head.output.normalisation.bias"] == Constant(0.0)


def test_listed_tensors_are_all_body_and_in_their_order() -> None:
    """Explicit tensors keep their order, stand in part body, and start at 0 where the bound is 0."""
    tensors = (NamedTensor(name="b", shape=(2, 3), bound=0.5), NamedTensor(name="a", shape=(), bound=0.0))
    listed = NamedTensors(name="named-tensors", tensors=tensors)

    specs = body_of(listed)

    assert specs == network_tensors(listed, columns=1, outputs=1)
    assert specs == (TensorSpec("b", (2, 3), Part.BODY, Uniform(0.5)), TensorSpec("a", (), Part.BODY, Constant(0.0)))


@pytest.mark.parametrize(
    "tensors",
    [
        [], [{"name": "A", "shape": [1], "bound": 1}], [{"name": "a" * 201, "shape": [1], "bound": 1}],
        [{"name": "a\n", "shape": [1], "bound": 1}], [{"name": "a", "shape": [0], "bound": 1}],
        [{"name": "a", "shape": [1] * 9, "bound": 1}], [{"name": "a", "shape": [1], "bound": -1}],
        [{"name": "a", "shape": [1], "bound": 1}, {"name": "a", "shape": [2], "bound": 1}],
    ],
)  # fmt: skip
def test_wrong_listed_tensors_are_refused(tensors: list[Any]) -> None:
    """Names outside the alphabet, empty dimensions, negative bounds and doubled names are errors."""
    with pytest.raises(ValidationError):
        NamedTensors.model_validate({"name": "named-tensors", "tensors": tensors})


@pytest.mark.parametrize(("columns", "outputs"), [(0, 1), (1, 0), (2**24 + 1, 1), (2**24, 1)])
def test_impossible_sizes_are_refused_before_memory_is_reserved(columns: int, outputs: int) -> None:
    """A network without columns or outputs, or beyond 2³¹ numbers, is the operator's error."""
    with pytest.raises(ConfigurationError):
        network_tensors(HEART, columns=columns, outputs=outputs)


def test_listed_tensors_beyond_the_limit_are_refused() -> None:
    """The sum over all listed tensors counts, not each one's size."""
    tensors = tuple(NamedTensor(name=f"t{i}", shape=(2**16, 2**14), bound=1.0) for i in range(3))

    with pytest.raises(ConfigurationError):
        body_of(NamedTensors(name="named-tensors", tensors=tensors))
    assert body_of(NamedTensors(name="named-tensors", tensors=tensors[:2]))
