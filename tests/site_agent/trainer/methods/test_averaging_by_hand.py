"""Methods with one model for all sites, compared step by step with their formulas. Each test has two sites, plain
descent and three rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.site_agent.trainer.methods.by_hand import (
    Values,
    contrast,
    dense_features,
    descended,
    less,
    mean,
    moved,
    risk,
    slope,
    tensors,
)
from tests.site_agent.trainer.methods.tiny import (
    AHUS,
    BERLIN,
    DEEP,
    LOGISTIC,
    MLP,
    RATE,
    STEPS,
    Federation,
    Table,
    check,
    schedule,
    tiny_plan,
)

SITES = {"ahus": risk(AHUS), "berlin": risk(BERLIN)}
TABLES: dict[str, Table] = {"ahus": AHUS, "berlin": BERLIN}
by_network = pytest.mark.parametrize("network", [LOGISTIC, MLP, DEEP], ids=["logistic", "mlp", "deep"])


def _local(values: Values) -> dict[str, Values]:
    """Each site's model after the plain steps of a round."""
    return {name: descended(loss, values, STEPS) for name, loss in SITES.items()}


def test_fedavg_by_numbers_alone() -> None:
    """One step of logistic regression from 0: the logit is 0, so the slope is the mean of (1/2 - target) times row."""
    plan = tiny_plan("fedavg", architecture=LOGISTIC, schedule=schedule(1, steps=1))
    federation = Federation(plan)
    federation.run.parameters[:] = 0.0

    federation.round(0)

    # ahus: (0.5*0.5 - 0.5*1.5 - 0.5*0.75 - 0.5*1.0) / 4 and so on; berlin has three rows.
    ahus = np.array([(0.25 - 0.75 - 0.375 - 0.5) / 4, (-0.5 - 0.125 + 1.0 - 0.5) / 4, 0.0])
    berlin = np.array([(0.5 + 0.125 - 1.0) / 3, (-0.25 + 0.375 + 0.25) / 3, -0.5 / 3])
    after = -0.5 * (ahus + berlin) / 2
    check(federation.shared, {"head.layer1.weight": after[None, :2], "head.layer1.bias": after[2:]})


@by_network
def test_fedavg(network: dict[str, Any]) -> None:
    """Every round the mean of what the sites make of the shared model; every site ends with the last mean."""
    federation = Federation(tiny_plan("fedavg", architecture=network))
    values = tensors(federation.shared)

    for number in range(3):
        federation.round(number)
        values = mean(_local(values).values())
        check(federation.shared, values)
    federation.finish()

    for site in SITES:
        check(federation.used(site), values)


def test_fedavg_by_rows() -> None:
    """Weighed by training rows: four at one site, three at the other."""
    federation = Federation(tiny_plan("fedavg", weighting={"name": "rows", "largest_rows": 8}))
    values = tensors(federation.shared)

    for number in range(3):
        federation.round(number)
        values = mean(_local(values).values(), weights=(4.0, 3.0))
        check(federation.shared, values)


@by_network
@pytest.mark.parametrize("strength", [0.01, 1.5])
def test_fedprox(network: dict[str, Any], strength: float) -> None:
    """Each gradient becomes g + strength * (y - x); from the second step of a round on it pulls."""
    federation = Federation(tiny_plan({"name": "fedprox", "strength": strength}, architecture=network))
    values = tensors(federation.shared)

    for number in range(3):
        federation.round(number)
        ends = []
        for loss in SITES.values():
            own = values
            for _ in range(STEPS):
                pull = {name: strength * (own[name] - values[name]) for name in own}
                own = moved(own, {name: found + pull[name] for name, found in slope(loss, own).items()})
            ends.append(own)
        values = mean(ends)
        check(federation.shared, values)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_servers(name: str) -> None:
    """m and v of the mean update, without bias correction; x += rate * m / (sqrt(v) + offset)."""
    method: dict[str, Any] = {"name": name, "rate": 0.1, "first_decay": 0.8, "offset": 1e-3}
    method |= {} if name == "fedadagrad" else {"second_decay": 0.95}
    federation = Federation(tiny_plan(method))
    values = tensors(federation.shared)
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}

    for number in range(3):
        federation.round(number)
        update = less(mean(_local(values).values()), values)
        for each, d in update.items():
            first[each] = 0.8 * first[each] + 0.2 * d
            if name == "fedadam":
                second[each] = 0.95 * second[each] + 0.05 * d**2
            elif name == "fedyogi":
                second[each] = second[each] - 0.05 * torch.sign(second[each] - d**2) * d**2
            else:
                second[each] = second[each] + d**2
            values[each] = values[each] + 0.1 * first[each] / (second[each].sqrt() + 1e-3)
        check(federation.shared, values, tolerance=2e-5)  # a square root near 0 enlarges the rounding


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_scaffold(rate: float) -> None:
    """Option II: y -= lr * (g - c_i + c); c_i+ = c_i - c + (x - y) / (K * lr); x += rate * mean; c += mean of dc_i."""
    federation = Federation(tiny_plan({"name": "scaffold", "rate": rate}))
    values = tensors(federation.shared)
    control = {name: torch.zeros_like(value) for name, value in values.items()}
    own = {site: dict(control) for site in SITES}

    for number in range(3):
        federation.round(number)
        updates, moves = [], []
        for site, loss in SITES.items():
            model = values
            for _ in range(STEPS):
                found = slope(loss, model)
                model = moved(model, {n: found[n] - own[site][n] + control[n] for n in found})
            following = {n: own[site][n] - control[n] + (values[n] - model[n]) / (STEPS * RATE) for n in values}
            updates.append(less(following, own[site]))
            moves.append(less(model, values))
            own[site] = following
        move, update = mean(moves), mean(updates)
        values = {n: values[n] + rate * move[n] for n in values}
        control = {n: control[n] + update[n] for n in control}
        check(federation.shared, values)
        check(federation.control, control, tolerance=5e-6)


@pytest.mark.parametrize("network", [MLP, DEEP], ids=["mlp", "deep"])
def test_moon(network: dict[str, Any]) -> None:
    """From the second round on the features are drawn to those of the shared model and away from the site's last."""
    federation = Federation(tiny_plan({"name": "moon", "strength": 2.0, "temperature": 0.5}, architecture=network))
    values = tensors(federation.shared)
    last: dict[str, Values] = {}

    for number in range(3):
        federation.round(number)
        for site, table in TABLES.items():
            rows = torch.tensor(table[0], dtype=torch.float64)
            received, left = values, last.get(site)

            def loss(own: Values, site: str = site, rows: Tensor = rows, left: Values | None = left) -> Tensor:
                if left is None:
                    return SITES[site](own)
                near, far = dense_features(received, rows), dense_features(left, rows)  # noqa: B023
                return SITES[site](own) + 2.0 * contrast(dense_features(own, rows), near, far, 0.5)

            last[site] = descended(loss, values, STEPS)
        values = mean(last.values())
        check(federation.shared, values)
