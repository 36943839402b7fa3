"""The networks of the experiments have as many parameters as the papers publish."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from benchmarks.experiments.tables import fed_heart
from protos.plan.architecture import Architecture, TensorSpec, network_tensors

# FENDA-FL, table 6 and figure 3: 14 and 151 parameters; APFL's two networks together have 152.
FENDA = {
    "fedavg": 14, "fedadam": 14, "fedprox": 14, "scaffold": 14, "siloed": 14, "moon": 151, "fedper": 151, "ditto": 151,
    "perfcl": 151, "fenda-fl": 151, "fedavg, large network": 151, "ditto, small network": 14,
}  # fmt: skip


def tensors_of(network: object, columns: int, outputs: int) -> tuple[TensorSpec, ...]:
    """The tensors of a network as a plan writes it."""
    checked: Architecture = TypeAdapter(Architecture).validate_json(json.dumps(network))
    return network_tensors(checked, columns=columns, outputs=outputs, common=columns)


@pytest.mark.parametrize(("name", "parameters"), FENDA.items())
def test_networks_of_fed_heart_have_the_published_size(name: str, parameters: int) -> None:
    """Of 13 columns and one output."""
    entry = (fed_heart.ENTRIES | fed_heart.SIZES)[name]

    assert sum(spec.number_count for spec in tensors_of(entry.network, 13, 1)) == parameters


def test_apfl_has_two_networks_that_together_have_the_published_size() -> None:
    """Each of the two has 76 parameters."""
    assert 2 * sum(spec.number_count for spec in tensors_of(fed_heart.ENTRIES["apfl"].network, 13, 1)) == 152
