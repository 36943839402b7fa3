"""The tensor lists of all networks: names, parts, layers and sizes."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.errors import ConfigurationError
from protos.plan.architecture import TENSOR_NAME, Architecture, ColumnsNetwork, Part, TensorSpec, network_tensors
from tests.for_each import for_each
from tests.protos.architectures import KINDS, drawn

ADAPTER: TypeAdapter[Any] = TypeAdapter(Architecture)
HEART = {"name": "global-layers-network", "latent": 128, "gate": False, "input_normalisation": False}


def read(**fields: Any) -> Any:
    """An architecture as a plan would be read."""
    return ADAPTER.validate_python(fields)


def shapes(architecture: Architecture, **sizes: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape by name."""
    return {spec.name: spec.shape for spec in network_tensors(architecture, **sizes)}


@pytest.mark.parametrize("kind", KINDS)
@for_each("seed", range(20))
def test_names_say_part_and_layer_and_layers_are_whole(kind: str, seed: int) -> None:
    """A name is unique and begins with part and layer; a layer's tensors stand together, in one part."""
    network = drawn(kind, seed)

    specs = network_tensors(network.architecture, **network.sizes)

    assert len({spec.name for spec in specs}) == len(specs)
    assert all(re.fullmatch(TENSOR_NAME, spec.name) for spec in specs)
    assert all(spec.name.startswith(f"{spec.layer}.") for spec in specs)
    assert all(spec.layer.split(".")[0] == spec.part for spec in specs)
    assert all(spec.is_normalisation == (".normalisation." in spec.name) for spec in specs)
    layers = [layer for layer, _ in groupby(spec.layer for spec in specs)]
    assert len(set(layers)) == len(layers)


@pytest.mark.parametrize("kind", KINDS)
@for_each("seed", range(20))
def test_parts_depend_on_what_their_site_has_to_agree_on(kind: str, seed: int) -> None:
    """The body is the same at every site; the input does not know outputs, common and head no columns."""
    network = drawn(kind, seed)
    sizes = network.sizes

    def part(*parts: Part, **other: int) -> list[TensorSpec]:
        specs = network_tensors(network.architecture, **(sizes | other))
        return [spec for spec in specs if spec.part in parts]

    assert part(Part.BODY) == part(Part.BODY, columns=sizes["columns"] + 3, outputs=sizes["outputs"] + 1)
    assert part(Part.INPUT) == part(Part.INPUT, outputs=sizes["outputs"] + 1)
    assert part(Part.COMMON) == part(Part.COMMON, columns=sizes["columns"] + 3)
    is_single_layer = {spec.part for spec in network_tensors(network.architecture, **sizes)} == {Part.HEAD}
    assert is_single_layer or part(Part.HEAD) == part(Part.HEAD, columns=sizes["columns"] + 3)


def test_a_unique_column_needs_a_column_of_its_own() -> None:
    """If all columns are common, the network `columns` is refused and another one is proposed."""
    network = ColumnsNetwork(name="columns", lateral=0.5)

    with pytest.raises(ConfigurationError, match="needs a column that only this site has") as caught:
        network_tensors(network, columns=4, outputs=1)
    assert "dense" in caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "dense"}, {"name": "dense", "hidden": (0,)}, {"name": "dense", "hidden": (2.0,)},
        {"name": "dense", "hidden": (3,) * 65}, {"name": "dense", "hidden": (), "dropout": 1.0},
        {"name": "dense", "hidden": (), "activation": "sine"}, {"name": "dense", "hidden": (True,)},
        {"name": "parallel", "common": (), "unique": (3,)}, {"name": "parallel", "common": (3,), "unique": ()},
        {"name": "columns"}, {"name": "columns", "lateral": 1.1}, {"name": "columns", "lateral": -0.1},
        {"name": "columns", "lateral": float("nan")}, {"name": "columns", "lateral": 0.5, "hidden": ()},
        *(HEART | wrong for wrong in (
            {"latent": 4}, {"latent": 12}, {"latent": "128"}, {"latent": 128.0}, {"gate": "no"}, {"gate": 0},
            {"entity_width": 12}, {"entity_width": 7, "heads": 7}, {"heads": 0}, {"transformer_blocks": -1},
            {"dropout": 1.0}, {"dropout": float("nan")}, {"normalisation": "batch"}, {"depth": 3},
            {"entities": False}, {"input_dropout": 1.0},
        )),
        {"name": "mlp"}, {"name": "convolutional"},
    ],
)  # fmt: skip
def test_a_wrong_network_is_refused(fields: dict[str, Any]) -> None:
    """Widths, rates and words out of range, and settings that contradict each other, are errors."""
    with pytest.raises(ValidationError):
        read(**fields)
