"""The researcher's own network, word for word from the page, trains a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from site_agent.trainer.data.dataset import Dataset
from tests.deploy.test_documentation import ROOT, fenced
from tests.laws.catalogue import COLUMNS, SITES, rows_at
from tests.plan_changes import few_sites_are_enough

PAGE = ROOT / "docs" / "researcher.md"
# A module with the tensors that the page declares under "Parts and frozen layers".
MODULE_WITH_PARTS = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, rows):
        return rows * self.weight


class Own(nn.Module):
    def __init__(self, columns, outputs):
        super().__init__()
        self.trunk = nn.Linear(columns, 32, bias=False)
        self.first = nn.Linear(32, 64, bias=False)
        self.scale = Scaled(64)
        self.last = nn.Linear(64, outputs, bias=False)

    def forward(self, rows):
        return self.last(torch.tanh(self.scale(self.first(torch.tanh(self.trunk(rows))))))


def build(columns, outputs):
    return Own(columns, outputs)
"""
TRAINING: dict[str, Any] = {
    "schedule": {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 2},
    "optimiser": {"name": "adamw", "learning_rate": 0.001},
    "weighting": {"name": "equal"},
}


def keys_of(key: str, place: int = 0) -> dict[str, Any]:
    """The keys of the block of a plan on the page in which a key or a network stands."""
    blocks = [yaml.safe_load(block) for block in fenced(PAGE, "yaml")]
    found = [block for block in blocks if key in block or block.get("architecture", {}).get("name") == key]
    return dict(found[place])


def written(folder: Path, text: str) -> Path:
    """The module's file, which only its owner may write."""
    path = folder / "network.py"
    path.write_text(text)
    path.chmod(0o600)
    return path


def sites_of(columns: int) -> dict[str, Dataset]:
    """Made-up rows of two sites, whose columns are repeated until there are enough."""
    found: dict[str, Dataset] = {}
    for site in SITES:
        dataset = rows_at(site)
        parts = {}
        for name in ("training", "validation", "test"):
            examples = getattr(dataset, name)
            repeated = np.tile(examples.features, (1, -(-columns // len(COLUMNS))))[:, :columns]
            parts[name] = replace(examples, features=np.ascontiguousarray(repeated))
        found[site] = replace(dataset, columns=tuple(f"column {place}" for place in range(columns)), **parts)
    return found


def test_the_module_on_the_page_trains_a_federation(tmp_path: Path) -> None:
    """The page's file and its plan fit each other, and every site ends with a model that was chosen by its loss."""
    (text,) = (block for block in fenced(PAGE, "python") if "class Own(" in block)
    with few_sites_are_enough():
        plan = experiment_plan(
            SITES, 1, method={"name": "ditto"}, checkpoint="local", **keys_of("named-tensors"), **TRAINING
        )

    _, outcomes = federate(plan, {site: rows_at(site) for site in SITES}, user_module=written(tmp_path, text))

    assert outcomes.keys() == set(SITES)
    assert all(np.isfinite(outcome.test_outputs).all() for outcome in outcomes.values())


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg", "fedbn"])
def test_a_module_with_the_declared_parts_fits_the_methods_of_the_table(method: str, tmp_path: Path) -> None:
    """Every method that the page names for a key of the example trains with the example's tensors."""
    training = TRAINING | {"schedule": {"aggregate": "every-epoch", "epochs": 11, "batches_per_epoch": 2}}
    with few_sites_are_enough():
        plan = experiment_plan(
            SITES, 1, method={"name": method}, checkpoint="local", **keys_of("named-tensors", 1), **training
        )

    _, outcomes = federate(plan, sites_of(9), user_module=written(tmp_path, MODULE_WITH_PARTS))

    assert all(np.isfinite(outcome.test_outputs).all() for outcome in outcomes.values())
