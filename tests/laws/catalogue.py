"""Every method of the catalogue, each in a small plan that it fits."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from protos.plan.architecture import ImageSize
from protos.plan.methods import NETWORK_METHODS
from protos.plan.plan import Plan, plan_from_json
from site_agent.trainer.data.dataset import Dataset, Examples
from tests.plan_changes import changed, few_sites_are_enough

SITES: Final = ("ahus", "berlin")
COLUMNS: Final = ("a", "b", "c")

_DENSE: Final = {"name": "dense", "hidden": [4, 3], "activation": "tanh"}
_PARALLEL: Final = {"name": "parallel", "common": [3], "unique": [4, 3], "activation": "tanh"}
# Rows of three columns are images of three pixels.
_NORMALISED: Final = {
    "name": "convolutional", "image": {"height": 1, "width": 3, "channels": 1}, "blocks": [2], "hidden": [],
    "normalisation": True,
}  # fmt: skip
_ALL: Final[dict[str, Any]] = {"columns": list(COLUMNS), "outputs": 1}
_PLAIN: Final = {"optimiser": {"name": "sgd", "learning_rate": 0.1}}

# A plan's settings beside the method's name: by default all columns and outputs agree.
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "global-layers": {"columns": [], "outputs": None},
    "chfl": {"columns": ["a", "b"], "architecture": {"name": "columns", "hidden": [4, 3], "lateral": 0.5}},
    "fenda-fl": {"columns": ["a", "b"], "outputs": None, "architecture": _PARALLEL},
    "perfcl": {"columns": ["a", "b"], "outputs": None, "architecture": _PARALLEL},
    "scaffold": _PLAIN,
    "fedper": {"outputs": None},
    "fedrep": {"outputs": None, "schedule": {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 3}},
    "fedbabu": {"outputs": None},
    "fedbn": {"architecture": _NORMALISED, "columns": []},
    "lg-fedavg": {"columns": []},
    "local": {"columns": [], "outputs": None},
}
_OF_ONE_LAYER: Final = "player-fl of one layer"
_METHODS: Final[dict[str, dict[str, Any]]] = {
    "player-fl": {"threshold": 1.0001},
    "fedrep": {"head_epochs": 2},
    "fedprox": {"strength": 0.5},
    "moon": {"strength": 1.0},
    "pfedme": {"inner_steps": 2, "strength": 1.0, "rate": 0.5},
    "ditto": {"strength": 0.5},
    "apfl": {"share": 0.4},
    _OF_ONE_LAYER: {"layers": 1},
}
NAMES: Final = (*NETWORK_METHODS, _OF_ONE_LAYER)
# Of the networks that read a table, only this one has a normalisation.
_OF_A_TABLE: Final[dict[str, Any]] = {
    "architecture": {
        "name": "global-layers-network", "latent": 8, "gate": False, "input_normalisation": True,
        "transformer_blocks": 0, "entities": False,
    },
    "columns": list(COLUMNS),
}  # fmt: skip


def catalogue_plan(name: str, *, dropout: float = 0.0, **changes: Any) -> Plan:
    """Four rounds of four steps, three of which are an epoch; dropout where the network has it."""
    method = "player-fl" if name == _OF_ONE_LAYER else name
    content: dict[str, Any] = {
        "kind": "network",
        "study": "laws",
        "version": 1,
        "method": {"name": method} | _METHODS.get(method, {}) | _METHODS.get(name, {}),
        "architecture": _DENSE,
        "schedule": {"aggregate": "every-steps", "rounds": 4, "steps_per_round": 4, "batch_rows": 4},
        "optimiser": {"name": "adamw", "learning_rate": 0.05},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 3},
        "sites": [{"name": site, "identity": "-".join(["aaa" + site[0]] * 8)} for site in SITES],
        "masking": {"required": False},
        **_ALL,
        **_SETTINGS.get(name, {}),
    }
    content = changed(content, changes)
    content["architecture"] = _with_dropout(content["architecture"], dropout)
    with few_sites_are_enough():
        return plan_from_json(json.dumps(content))


def plan_of_a_table(name: str, **changes: Any) -> Plan:
    """The plan of `catalogue_plan`, with a network that reads the rows of a table file."""
    return catalogue_plan(name, **((_OF_A_TABLE if "fedbn" in name else {}) | changes))


def _with_dropout(architecture: dict[str, Any], rate: float) -> dict[str, Any]:
    match architecture["name"]:
        case "columns" | "global-layers-network":
            return architecture
        case _:
            return architecture | {"dropout": rate}


def rows_at(site: str, seed: int = 0) -> Dataset:
    """Rows of three columns with an outcome that follows two of them; equal seeds give equal ones."""
    generator = np.random.default_rng([seed, SITES.index(site)])

    def examples(count: int) -> Examples:
        features = generator.normal(size=(count, len(COLUMNS))).astype(np.float32)
        hidden = features[:, 0] - features[:, SITES.index(site) + 1] + 0.3 * generator.normal(size=count)
        return Examples(features=features, targets=(hidden > 0).astype(np.float32))

    return Dataset(
        training=examples(13), validation=examples(7), test=examples(5), columns=COLUMNS,
        task="binary", classes=("no", "yes"), image=ImageSize(height=1, width=3, channels=1),
    )  # fmt: skip
