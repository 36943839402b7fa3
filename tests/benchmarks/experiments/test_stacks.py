"""A stack of copies is trained as each copy would be alone, with every method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.views import only_columns
from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.stacks import can_stack, federate_stack

SEEDS = (3, 4)
DENSE = {"name": "dense", "hidden": [6, 5]}
LAYERS = {
    "name": "global-layers-network",
    "latent": 8,
    "gate": True,
    "input_normalisation": True,
    "transformer_blocks": 1,
    "entity_width": 4,
    "heads": 2,
}
PARALLEL = {"name": "parallel", "common": [4], "unique": [4]}
COLUMNS = {"name": "columns", "hidden": [6, 5], "lateral": 0.5}
SGD = {"optimiser": {"name": "sgd", "learning_rate": 0.05}}
ROWS = {"weighting": {"name": "rows", "largest_rows": 128}}
# Method, network, and what else the plan says.
STACKED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "global-layers": ({"name": "global-layers"}, LAYERS, {}),
    "global-layers, rate": ({"name": "global-layers", "update_rate": 0.5}, LAYERS, {"checkpoint": "global"}),
    "chfl": ({"name": "chfl"}, COLUMNS, {}),
    "fenda-fl": ({"name": "fenda-fl"}, PARALLEL, ROWS),
    "perfcl": ({"name": "perfcl"}, PARALLEL, {}),
    "fedavg": ({"name": "fedavg"}, DENSE, ROWS),
    "fedprox": ({"name": "fedprox"}, DENSE, {"checkpoint": "global"}),
    "fedadam": ({"name": "fedadam"}, DENSE, {"checkpoint": "latest"}),
    "fedyogi": ({"name": "fedyogi"}, DENSE, {}),
    "fedadagrad": ({"name": "fedadagrad"}, DENSE, {}),
    "scaffold": ({"name": "scaffold"}, DENSE, SGD),
    "moon": ({"name": "moon", "strength": 1.0}, DENSE, {}),
    "fedper": ({"name": "fedper"}, DENSE, {}),
    "fedrep": ({"name": "fedrep", "head_epochs": 2}, DENSE, {}),
    "fedbabu": ({"name": "fedbabu"}, DENSE, {}),
    "local-adaptation": ({"name": "local-adaptation"}, DENSE, {}),
    "ditto": ({"name": "ditto"}, DENSE, {}),
    "pfedme": ({"name": "pfedme"}, DENSE, SGD),
    "apfl": ({"name": "apfl"}, DENSE, {}),
    "fedbn": ({"name": "fedbn"}, LAYERS, {}),
    "lg-fedavg": ({"name": "lg-fedavg"}, DENSE, {}),
    "local": ({"name": "local"}, DENSE, {}),
}
SINGLE = ("player-fl", "player-fl-random")


NEED_NO_COLUMNS = {"global-layers", "global-layers, rate", "global-layers, baseline", "local", "lg-fedavg"}
NEED_NO_OUTPUTS = {*NEED_NO_COLUMNS - {"lg-fedavg"}, "fedper", "fedrep", "fedbabu", "fenda-fl", "perfcl"}


def federation(name: str, seed: int) -> Sites:
    """Three sites with the ten columns that all have, or for some methods each with its own."""
    sites = breast_cancer(seed)
    network = STACKED[name][1] if name in STACKED else DENSE
    if network in (PARALLEL, COLUMNS) or name in NEED_NO_COLUMNS:
        return sites
    return {site: only_columns(dataset, sites["cluj"].columns) for site, dataset in sites.items()}


def plan_of(name: str, seed: int, sites: Sites) -> Any:  # a Plan
    """Two rounds of one epoch."""
    method, network, more = STACKED.get(name, ({"name": name}, DENSE, {}))
    keys: dict[str, Any] = {"method": method, "architecture": network, "weighting": {"name": "equal"}}
    if name not in NEED_NO_COLUMNS:
        # CHFL's unique column needs something of its own at every site.
        keys["columns"] = sites["cluj"].columns[:8] if network == COLUMNS else sites["cluj"].columns
    if name not in NEED_NO_OUTPUTS:
        keys["outputs"] = 1
    keys["schedule"] = {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 3}
    keys["optimiser"] = {"name": "adamw", "learning_rate": 0.01}
    return experiment_plan(sites, seed, **(keys | more))


# Of the others every second one runs by default. These never do: they stack what another method of the list stacks too,
# or what the laws of a site's training do.
SLOW = ("global-layers, rate", "fedyogi", "fedadagrad", "fedper", "fedbabu", "local-adaptation", "lg-fedavg", "local")
BY_NAME = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW or number % 2 else ())
    for number, name in enumerate(STACKED)
]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_stack_is_its_copies(name: str) -> None:
    """Outputs and chosen rounds of each copy are those of its federation alone, to 1e-5."""
    data = {seed: federation(name, seed) for seed in SEEDS}
    plans = [plan_of(name, seed, data[seed]) for seed in SEEDS]

    stacked = federate_stack(plans, {site: [data[seed][site] for seed in SEEDS] for site in data[SEEDS[0]]})
    singles = [federate(plan, data[plan.seed])[1] for plan in plans]

    close = {"rtol": 1e-5, "atol": 1e-5}
    for site, outcome in stacked.items():
        for place, single in enumerate(singles):
            np.testing.assert_allclose(outcome.test_outputs[place], single[site].test_outputs, **close)
            np.testing.assert_allclose(outcome.validation_outputs[place], single[site].validation_outputs, **close)
            assert outcome.rounds[place] == single[site].choice["round"]


@pytest.mark.parametrize("name", SINGLE)
def test_what_chooses_layers_is_not_stacked(name: str) -> None:
    """Copies that would exchange different layers are refused; they run one by one."""
    data = {seed: federation(name, seed) for seed in SEEDS}
    plans = [plan_of(name, seed, data[seed]) for seed in SEEDS]

    assert not can_stack(plans[0])
    with pytest.raises(ValueError, match="differ in their seed alone"):
        federate_stack(plans, {site: [data[seed][site] for seed in SEEDS] for site in data[SEEDS[0]]})


def test_plans_that_differ_in_more_than_the_seed_are_refused() -> None:
    """A copy with another learning rate would silently be trained with the first copy's rate."""
    sites = federation("fedavg", 3)
    plans = [plan_of("fedavg", 3, sites), plan_of("fedprox", 4, sites)]

    with pytest.raises(ValueError, match="differ in their seed alone"):
        federate_stack(plans, {site: [sites[site]] * 2 for site in sites})
