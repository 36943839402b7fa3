"""A hospital's own network trains under the methods that its listed tensors allow. Its other values stay at the
site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from protos.plan.plan import Plan
from site_agent.trainer.study import Study
from tests.laws.catalogue import rows_at
from tests.site_agent.trainer.methods.tiny import Federation, tiny_plan

SOURCE = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, columns, outputs):
        super().__init__()
        self.first = nn.Linear(columns, 4)
        self.scale = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(4, outputs)

    def forward(self, rows):
        return self.last(self.drop(torch.relu(self.scale(self.first(rows)))))


def build(columns, outputs):
    return Own(columns, outputs)
"""
LISTED: dict[str, Any] = {
    "name": "named-tensors",
    "tensors": [
        {"name": "first.weight", "shape": [4, 3], "bound": 0.5},
        {"name": "first.bias", "shape": [4], "bound": 0},
    ],
}
METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"}, {"name": "fedprox", "strength": 0.5}, {"name": "fedadam"}, {"name": "global-layers"},
    {"name": "ditto", "strength": 0.5}, {"name": "pfedme", "strength": 1.0, "inner_steps": 2, "rate": 0.5},
    {"name": "apfl"}, {"name": "local-adaptation"}, {"name": "scaffold"}, {"name": "local"},
]  # fmt: skip
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The hospital's file."""
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    path.chmod(0o600)
    return path


def _plan(method: dict[str, Any]) -> Plan:
    return tiny_plan(
        method, architecture=LISTED, columns=None, outputs=None,
        schedule={"aggregate": "every-steps", "rounds": 3, "steps_per_round": 4, "batch_rows": 4},
        optimiser={"name": "sgd", "learning_rate": 0.1},
    )  # fmt: skip


def _federation(method: dict[str, Any], module: Path) -> Federation:
    rows = {site: rows_at(site) for site in ("ahus", "berlin")}
    return Federation(_plan(method), rows, user_module=module)


def _used(study: Study) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in study._training.local.evaluated().values().items()}


@by_method
def test_only_the_listed_tensors_leave(method: dict[str, Any], module: Path) -> None:
    """The head, the normalisation and its running means are the site's; each site trains them on."""
    federation = _federation(method, module)
    start = {site: _used(study) for site, study in federation.studies.items()}

    for number in range(3):
        for answer in federation.round(number).values():
            assert answer.updates.size == (0 if method["name"] == "local" else 16)
    federation.finish()

    for site, study in federation.studies.items():
        used = _used(study)
        assert used.keys() == start[site].keys()
        assert {"scale.running_mean", "scale.num_batches_tracked"} < used.keys()
        moved = {name for name in used if used[name] != start[site][name]}
        assert {"first.weight", "last.weight", "scale.weight"} <= moved
    if method["name"] == "fedavg":
        one, other = (federation.own(site) for site in federation.studies)
        np.testing.assert_array_equal(one["first.weight"], other["first.weight"])
        assert not np.array_equal(one["scale.running_mean"], other["scale.running_mean"])
        assert not np.array_equal(one["last.weight"], other["last.weight"])


@by_method
def test_a_saved_state_has_the_buffers_too(method: dict[str, Any], module: Path) -> None:
    """Restored into a fresh study of the same file, the rest of the run gives equal bits."""
    federation = _federation(method, module)
    for number in range(2):
        federation.round(number)
    study = federation.studies["ahus"]
    fresh = Study(federation.plan, rows_at("ahus"), seeds=federation.studies["ahus"].seeds, user_module=module)
    fresh._training.local.restore(load(save(study._training.local.state())))
    fresh._rounds_taken = study._rounds_taken

    asked, down = federation.asked(2), federation.down(2)
    answers = [each.train(asked, down) for each in (study, fresh)]

    assert answers[0].updates.tobytes() == answers[1].updates.tobytes()
    assert _used(study) == _used(fresh)
    assert torch.equal(study._training.validation_losses(), fresh._training.validation_losses())
