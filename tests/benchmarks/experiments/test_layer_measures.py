"""The measures of layers, against what a run measures and against their definitions."""

from __future__ import annotations

import pytest
import torch

from benchmarks.experiments.layer_measures import (
    MEASURES,
    _measure,
    _of_site,
    _similarity,
    _trained,
    measure_layers,
    measure_shared,
)
from benchmarks.experiments.plans import experiment_plan
from protos.plan.plan import Plan
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.training.torch_losses import build_loss
from tests.for_each import for_each
from tests.laws.catalogue import COLUMNS, SITES, rows_at

NETWORK = {"name": "dense", "hidden": [4, 3]}


def plan_of(method: str, seed: int) -> Plan:
    """Two epochs of three batches, with AdamW."""
    return experiment_plan(
        SITES, seed, method={"name": method}, architecture=NETWORK, columns=COLUMNS, outputs=1,
        schedule={"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 3},
        optimiser={"name": "adamw", "learning_rate": 0.05}, weighting={"name": "equal"}, checkpoint="local",
    )  # fmt: skip


def test_what_is_measured_at_a_site_follows_the_definitions() -> None:
    """Trace, variance and sensitivity equal what first and second differences of the loss give, number by number."""
    plan, dataset = plan_of("fedavg", 1), rows_at(SITES[0])
    torch.manual_seed(1)
    network = build_network(plan.architecture, len(COLUMNS), 1).double()
    for value in network.parameters():
        value.data = torch.randn_like(value)
    layers = {"input": ["input.layer1.weight", "input.layer1.bias"], "head": ["head.layer3.weight", "head.layer3.bias"]}
    features, targets = torch.from_numpy(dataset.training.features).double(), torch.from_numpy(dataset.training.targets)
    loss = build_loss(plan.loss, dataset.task, 1, targets)

    sensitivities, variances, traces = _of_site(network, dataset, plan, layers)

    sensitivity = 0.0
    for names, cumulated, variance, trace in zip(layers.values(), sensitivities, variances, traces, strict=True):
        second, first, product = 0.0, [], []
        for name in names:
            flat = network.get_parameter(name).data.view(-1)
            for place in range(len(flat)):
                at = []
                for step in (-1e-2, 1e-2, 0.0):
                    flat[place] += step
                    with torch.no_grad():
                        at.append(float(loss(network(features), targets)))
                    flat[place] -= step
                second += (at[0] + at[1] - 2 * at[2]) / 1e-4
                first.append((at[1] - at[0]) / 2e-2)
                product.append(float(flat[place]) * first[-1])
        assert trace == pytest.approx(second, rel=0.02, abs=0.01)
        sensitivity += float(torch.tensor(product).square().mean())
        assert cumulated == pytest.approx(sensitivity, rel=0.01)
        assert variance == pytest.approx(float(torch.tensor(first).var(correction=0)), rel=0.01)


@for_each("seed", range(3))
def test_sites_start_alike_and_drift_apart(seed: int) -> None:
    """Before training every layer of two sites has the similarity 1; after two epochs on other rows none has."""
    sites, plan = {site: rows_at(site, seed) for site in SITES}, plan_of("fedavg", seed)

    start, after = measure_layers(sites, plan, epochs=0), measure_layers(sites, plan, epochs=2)

    assert start.keys() == set(MEASURES)
    assert start["similarity"] == pytest.approx([1.0] * 3)
    assert max(after["similarity"]) < 0.9999


@for_each("seed", range(3))
def test_the_shared_model_is_measured_after_its_last_sum(seed: int) -> None:
    """After one epoch it is the mean of the networks that were trained alone, so every measure equals the mean's."""
    sites = {site: rows_at(site, seed) for site in SITES}
    plan = plan_of("fedavg", seed)
    plan = plan.model_copy(update={"schedule": plan.schedule.model_copy(update={"epochs": 1})})
    networks = {name: _trained(name, dataset, plan, 1) for name, dataset in sites.items()}
    states = [network.state_dict() for network in networks.values()]
    mean = {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]}
    for network in networks.values():
        network.load_state_dict(mean)

    found, expected = measure_shared(sites, plan), _measure(networks, sites, plan)

    assert found["similarity"] == pytest.approx([1.0] * 3)
    for kind in MEASURES:
        assert found[kind] == pytest.approx(expected[kind], rel=1e-3)
    assert found["sensitivity"] != pytest.approx(measure_layers(sites, plan, epochs=1)["sensitivity"], rel=1e-3)


def test_similarity_ignores_turns_and_scale_and_nothing_else() -> None:
    """Linear CKA is 1 for a representation turned, moved and scaled, and small for one of independent numbers."""
    generator = torch.Generator().manual_seed(1)
    first, other = (torch.randn(400, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64))

    assert _similarity(first, 3.0 * first @ turn + 7.0) == pytest.approx(1.0)
    assert _similarity(first, other) < 0.1
