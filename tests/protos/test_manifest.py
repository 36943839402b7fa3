"""The manifest: exactly the sent data, from the plan alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.errors import ConfigurationError
from protos.plan.architecture import Part, TensorSpec, Uniform
from protos.plan.manifest import Manifest, Scalar, manifest_of
from protos.wire.messages import Stage
from tests.for_each import for_each
from tests.protos.examples import METHODS, NETWORK, plan_of_method, plan_with

HEART = NETWORK | {"latent": 128}
LARGE = NETWORK | {"latent": 176, "gate": True}
ROWS = {"name": "rows", "largest_rows": 1024}


@pytest.mark.parametrize(("architecture", "tensors", "numbers"), [(HEART, 16, 298_688), (LARGE, 18, 717_640)])
def test_the_papers_counts(architecture: dict[str, Any], tensors: int, numbers: int) -> None:
    """The paper's two networks federate 298,688 and 717,640 numbers, in 16 and 18 tensors."""
    manifest = manifest_of(plan_with(architecture=architecture))

    assert (len(manifest.tensors), manifest.parameters) == (tensors, numbers)
    assert sum(tensor.number_count for tensor in manifest.tensors) == numbers


WEIGHED = [method for method in METHODS if method["name"] != "scaffold"]
MEASURING: dict[str, Any] = {"checkpoint": "global"}


@pytest.mark.parametrize("method", WEIGHED, ids=lambda method: method["name"])
def test_rows_travel_only_where_they_weigh(method: dict[str, Any]) -> None:
    """The row count is the first scalar of the manifest exactly where the plan weighs by rows, with its cap."""
    equal = manifest_of(plan_of_method(method))
    by_rows = manifest_of(plan_of_method(method, weighting=ROWS))

    assert "rows" not in [scalar.name for scalar in equal.scalars]
    assert by_rows.scalars[0] == Scalar("rows", 1024)
    assert by_rows.digest != equal.digest


def test_what_a_plan_measures_is_in_its_manifest() -> None:
    """Every number that a global checkpoint needs is named, bounded and dated."""
    manifest = manifest_of(plan_with(**MEASURING))

    assert [(scalar.name, scalar.bound / scalar.scale, scalar.stage) for scalar in manifest.scalars] == [
        ("validation weight", 1, Stage.VALIDATION),
        ("validation loss", 1024, Stage.VALIDATION),
    ]


@pytest.mark.parametrize(
    "weighting", [{"name": "equal"}, {"name": "rows", "largest_rows": 1 << 30}], ids=["equal", "rows"]
)
@pytest.mark.parametrize("method", WEIGHED, ids=lambda method: method["name"])
def test_no_sum_over_a_hundred_sites_can_wrap(method: dict[str, Any], weighting: dict[str, Any]) -> None:
    """A hundred times each bound stays below 2**63, so that a sum read as signed is the sum."""
    measuring = {} if method["name"] == "local" else MEASURING

    for scalar in manifest_of(plan_of_method(method, weighting=weighting, **measuring)).scalars:
        assert 0 < scalar.bound * 100 < 1 << 63
        assert scalar.scale & (scalar.scale - 1) == 0


def test_the_probe_measures_every_layer_of_the_network() -> None:
    """PLayer-FL may federate all layers but the last, and measures that one too."""
    manifest = manifest_of(plan_of_method({"name": "player-fl"}, architecture={"name": "dense", "hidden": [4, 3]}))

    assert manifest.layers == ("input.layer1", "body.layer2")
    assert [scalar.name for scalar in manifest.scalars] == ["sensitivity 1", "sensitivity 2", "sensitivity 3"]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_prefix_that_the_plan_gives_is_federated(layers: int) -> None:
    """PLayer-FL with `layers` federates so many layers from the input, and measures nothing."""
    network = {"name": "dense", "hidden": [4, 3, 2]}
    plan = plan_of_method({"name": "player-fl", "layers": layers}, architecture=network)

    assert list(manifest_of(plan).layers) == ["input.layer1", "body.layer2", "body.layer3"][:layers]
    assert not plan.has_probe
    assert manifest_of(plan).scalars == ()


@pytest.mark.parametrize(
    ("name", "network"),
    [("global-layers", {"name": "dense", "hidden": [4]}), ("fedper", {"name": "dense", "hidden": []})],
)
def test_a_network_without_the_parts_of_its_method_is_refused(name: str, network: dict[str, Any]) -> None:
    """A network of one or two layers has no inner ones to share, and the message says what to do."""
    plan = plan_of_method({"name": name}, architecture=network)

    with pytest.raises(ConfigurationError, match="no layer that"):
        manifest_of(plan)


def tensors(*shapes: tuple[int, ...]) -> Manifest:
    """A manifest of tensors t0, t1, ... with these shapes."""
    specs = tuple(TensorSpec(f"t{i}", shape, Part.BODY, Uniform(0.5)) for i, shape in enumerate(shapes))
    return Manifest(tensors=specs, scalars=())


def test_the_digest_knows_the_order_the_bounds_and_the_occasions() -> None:
    """Two tensors that change places, and a scalar with another bound, scale or occasion, are other manifests."""
    one, other = tensors((2,), (2,)).tensors
    digests = {
        Manifest(tensors=(one, other), scalars=()).digest,
        Manifest(tensors=(other, one), scalars=()).digest,
        Manifest(tensors=(one, other), scalars=(Scalar("rows", 8),)).digest,
        Manifest(tensors=(one, other), scalars=(Scalar("rows", 16),)).digest,
        Manifest(tensors=(one, other), scalars=(Scalar("rows", 16, scale=2),)).digest,
        Manifest(tensors=(one, other), scalars=(Scalar("rows", 16, Stage.PROBE),)).digest,
    }

    assert len(digests) == 6


@for_each("seed", range(20))
def test_views_share_the_vectors_memory_and_tile_it(seed: int) -> None:
    """Writing every view writes every number of the vector once, in the manifest's order."""
    generator = np.random.default_rng(seed)
    shapes = [tuple(generator.integers(1, 5, generator.integers(0, 4))) for _ in range(generator.integers(1, 8))]
    manifest = tensors(*(tuple(map(int, shape)) for shape in shapes))
    vector = np.zeros(manifest.parameters, np.float32)

    views = manifest.views(vector)
    for number, view in enumerate(views.values(), start=1):
        view += number

    expected = np.concatenate([np.full(t.number_count, n, np.float32) for n, t in enumerate(manifest.tensors, start=1)])
    np.testing.assert_array_equal(vector, expected)
    assert [view.shape for view in views.values()] == [tensor.shape for tensor in manifest.tensors]
