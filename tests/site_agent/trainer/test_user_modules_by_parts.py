"""A hospital's own network with declared parts, order and frozen layers, under many methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.starting_files import starting_values
from protos.errors import ConfigurationError
from protos.plan.initial_values import initial_values
from protos.plan.manifest import manifest_of, starting_tensors
from protos.plan.plan import Plan
from tests.host.starting import random_values, write_starting_file
from tests.laws.catalogue import rows_at
from tests.site_agent.trainer.methods.tiny import Federation, tiny_plan
from tests.site_agent.trainer.sites import make_plan

SOURCE = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, columns, outputs):
        super().__init__()
        self.trunk = nn.Linear(columns, 5)
        self.first = nn.Linear(5, 4)
        self.beside = nn.Linear(5, 4)
        self.scale = nn.LayerNorm(4)
        self.last = nn.Linear(8, outputs)

    def forward(self, rows):
        rows = torch.tanh(self.trunk(rows))
        first, beside = torch.relu(self.scale(self.first(rows))), torch.relu(self.beside(rows))
        return self.last(torch.cat([first, beside], dim=1))


def build(columns, outputs):
    return Own(columns, outputs)
"""


def layer(name: str, rows: int, columns: int, **declared: Any) -> list[dict[str, Any]]:
    """Weight and bias of a layer."""
    weight = {"name": f"{name}.weight", "shape": [rows, columns], "bound": 0.5}
    return [weight | declared, {"name": f"{name}.bias", "shape": [rows], "bound": 0.0} | declared]


def listed(first: str, beside: str) -> dict[str, Any]:
    """The module's layers in their order, with the parts of its two extractors; the trunk is frozen."""
    scale = [{"name": f"scale.{kind}", "shape": [4], "bound": 0.5} for kind in ("weight", "bias")]
    return {
        "name": "named-tensors",
        "tensors": [
            *layer("trunk", 5, 3, frozen=True, part="input"),
            *layer("first", 4, 5, part=first),
            *({**one, "part": first, "normalisation": True} for one in scale),
            *layer("beside", 4, 5, part=beside),
            *layer("last", 1, 8, part="head"),
        ],
    }


TRUNK = ("trunk.weight", "trunk.bias")
EXTRACTORS = listed("common", "unique")
LAYERS = listed("input", "body")
FIRST = {"first.weight", "first.bias", "scale.weight", "scale.bias"}
BODY = FIRST | {"beside.weight", "beside.bias"}
LAST = {"last.weight", "last.bias"}
SHARED: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"name": "fenda-fl"}, EXTRACTORS, FIRST), ({"name": "fedper"}, LAYERS, BODY),
    ({"name": "fedrep", "head_epochs": 1}, LAYERS, BODY), ({"name": "fedbabu"}, LAYERS, BODY),
    ({"name": "lg-fedavg"}, LAYERS, BODY - FIRST | LAST),
    ({"name": "fedbn"}, LAYERS, BODY - {"scale.weight", "scale.bias"} | LAST),
    ({"name": "fedavg"}, LAYERS, BODY | LAST),
]  # fmt: skip


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The hospital's file."""
    return written(tmp_path, SOURCE)


def written(folder: Path, text: str) -> Path:
    """A module's file that only its owner can write."""
    path = folder / "own.py"
    path.write_text(text)
    path.chmod(0o600)
    return path


def plan_for(method: dict[str, Any], architecture: dict[str, Any], **changes: Any) -> Plan:
    """A small plan for the module."""
    return tiny_plan(
        method, architecture=architecture, columns=None, outputs=None,
        schedule={"aggregate": "every-epoch", "epochs": 3, "batches_per_epoch": 3},
        optimiser={"name": "sgd", "learning_rate": 0.1}, **changes,
    )  # fmt: skip


def federation_of(plan: Plan, module: Path, **given: Any) -> Federation:
    """Two sites with the same file."""
    return Federation(plan, {site: rows_at(site) for site in ("ahus", "berlin")}, user_module=module, **given)


@pytest.mark.parametrize(("method", "architecture", "shared"), SHARED, ids=[one[0]["name"] for one in SHARED])
def test_a_method_shares_the_declared_parts_and_no_frozen_layer(
    method: dict[str, Any], architecture: dict[str, Any], shared: set[str], module: Path
) -> None:
    """What is shared ends equal at all sites, all else differs, and the frozen trunk keeps the plan's first values."""
    plan = plan_for(method, architecture)
    federation = federation_of(plan, module)

    for number in range(plan.rounds):
        federation.round(number)
    federation.finish()

    assert {tensor.name for tensor in manifest_of(plan).tensors} == shared
    one, other = (federation.own(site) for site in federation.studies)
    for name in BODY | LAST:
        is_equal = np.array_equal(one[name], other[name])
        assert is_equal == (name in shared or method["name"] == "fedbabu"), name  # its head keeps the common start
    frozen = {tensor.name: tensor for tensor in plan.architecture.frozen}
    for name in TRUNK:
        expected = initial_values(frozen[name], plan.seed)
        np.testing.assert_array_equal(one[name], expected)
        np.testing.assert_array_equal(other[name], expected)


@pytest.mark.parametrize(
    ("method", "architecture", "words"),
    [
        ({"name": "player-fl"}, listed("body", "body"), "have no order"),
        ({"name": "moon", "strength": 0.1}, listed("body", "body"), "own network does not show"),
        ({"name": "perfcl"}, EXTRACTORS, "own network does not show"),
        ({"name": "fenda-fl"}, LAYERS, "common"),
        ({"name": "fedbn"}, {"name": "named-tensors", "tensors": layer("a", 2, 2)}, "known normalisation layer"),
        ({"name": "fedavg"}, {"name": "named-tensors", "tensors": layer("a", 2, 2, frozen=True)}, "are frozen"),
    ],
)  # fmt: skip
def test_a_method_that_needs_more_than_is_declared_is_refused(
    method: dict[str, Any], architecture: dict[str, Any], words: str
) -> None:
    """By the plan or by the list of what leaves, with the key to set."""
    with pytest.raises((ValueError, ConfigurationError), match=words):
        manifest_of(make_plan(method=method, architecture=architecture))


def test_a_module_without_a_frozen_layer_is_refused(tmp_path: Path) -> None:
    """Before the first round, with the name of the tensor."""
    path = written(tmp_path, SOURCE.replace("nn.Linear(columns, 5)", "nn.Sequential(nn.Linear(columns, 5))"))

    with pytest.raises(ConfigurationError, match=r"has no trunk.weight|no parameter trunk"):
        federation_of(plan_for({"name": "fenda-fl"}, EXTRACTORS), path)


def test_frozen_and_trained_layers_start_from_the_file_that_the_plan_names(tmp_path: Path, module: Path) -> None:
    """The coordinator and every site start from it; frozen layers keep it, and all others start from the seed."""
    values = random_values({"trunk.weight": (5, 3), "trunk.bias": (5,), "first.weight": (4, 5), "first.bias": (4,)})
    named = {"name": "file", "seed": 5, "sha256": write_starting_file(tmp_path, values), "layers": ["trunk", "first"]}
    plan = plan_for({"name": "fedavg"}, LAYERS, start=named)
    federation = federation_of(plan, module, starts=starting_values(tmp_path, plan))
    seeded = federation_of(plan_for({"name": "fedavg"}, LAYERS), module).own("ahus")

    first = federation.run.views()["first.weight"].copy()
    starts = federation.own("ahus")
    for number in range(3):
        federation.round(number)

    np.testing.assert_array_equal(first, values["first.weight"])
    for name in starts:
        np.testing.assert_array_equal(starts[name], values.get(name, seeded[name]), err_msg=name)
    for site in federation.studies:
        assert not np.array_equal(federation.own(site)["first.weight"], values["first.weight"])
        for name in TRUNK:
            np.testing.assert_array_equal(federation.own(site)[name], values[name])


@pytest.mark.parametrize(
    ("method", "layers", "words"),
    [
        ("fedper", ["last"], "has no shared or frozen layer named last"),
        ("fedavg", ["nowhere"], "has no shared or frozen layer named nowhere"),
        ("local", None, None),
    ],
)
def test_a_private_layer_never_starts_from_the_file(method: str, layers: list[str] | None, words: str | None) -> None:
    """A layer that stays private starts from the site's secret; a plan that names it is refused. Frozen ones may."""
    plan = plan_for({"name": method}, LAYERS, start={"name": "file", "seed": 5, "sha256": "0" * 64, "layers": layers})

    if words is None:
        assert [tensor.name for tensor in starting_tensors(plan)] == [*TRUNK]
    else:
        with pytest.raises(ConfigurationError, match=words):
            manifest_of(plan)


def test_a_buffer_of_integers_cannot_be_frozen(tmp_path: Path) -> None:
    """It would silently become float32."""
    text = SOURCE.replace(
        "self.trunk =", 'self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))\n        self.trunk ='
    )
    frozen = {"name": "steps", "shape": [2], "bound": 0.0, "frozen": True}
    architecture = LAYERS | {"tensors": [*LAYERS["tensors"], frozen]}

    with pytest.raises(ConfigurationError, match=r"freezes steps of the module in .* which has the type torch\.int64"):
        federation_of(plan_for({"name": "fedavg"}, architecture), written(tmp_path, text))
