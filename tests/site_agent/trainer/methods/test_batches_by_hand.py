"""The rows of each step of a method, and the optimiser's memory between rounds, written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from protos.plan.canonical import digest
from tests.site_agent.trainer.methods.by_hand import Loss, Values, mean, moved, risk, slope, tensors
from tests.site_agent.trainer.methods.tiny import AHUS, BERLIN, RATE, Federation, Table, check, schedule, tiny_plan

TABLES: dict[str, Table] = {"ahus": AHUS, "berlin": BERLIN}
HALVES: dict[str, Any] = {"aggregate": "every-epoch", "epochs": 3, "batches_per_epoch": 2}


def _batches(site: str, seed: int) -> Iterator[Loss]:
    """The task's loss on one batch after the other: two equal ones of each permutation, what is over left out."""
    rows, targets = (np.array(values) for values in TABLES[site])
    size = len(rows) // 2
    generator = np.random.default_rng(int.from_bytes(digest("batch order", seed, site)[:7], "little"))
    while True:
        order = generator.permutation(len(rows))
        for chosen in (order[:size], order[size : 2 * size]):
            yield risk((rows[chosen].tolist(), targets[chosen].tolist()))


def _begin(
    method: str | dict[str, Any], **changes: Any
) -> tuple[Federation, dict[str, Values], dict[str, Iterator[Loss]]]:
    federation = Federation(tiny_plan(method, **({"schedule": HALVES} | changes)))
    own = {site: tensors(federation.own(site)) for site in TABLES}
    return federation, own, {site: _batches(site, federation.plan.seed) for site in TABLES}


def test_an_epoch_is_two_batches_and_the_next_one_is_drawn_again() -> None:
    """FedAvg on two rows and one row at a time; the third row of three is left over, another one each epoch."""
    federation, own, batches = _begin("fedavg")
    values = own["ahus"]

    for number in range(3):
        federation.round(number)
        ends = []
        for losses in batches.values():
            end = values
            for _ in range(2):
                end = moved(end, slope(next(losses), end))
            ends.append(end)
        values = mean(ends)
        check(federation.shared, values)


def test_fine_tuning_goes_on_with_the_next_epoch_and_a_fresh_optimiser() -> None:
    """Without the momentum that training had gathered."""
    momentum = {"name": "sgd", "learning_rate": RATE, "momentum": 0.6}
    method = {"name": "local-adaptation", "fine_tuning_epochs": 2}
    federation, _, batches = _begin(method, optimiser=momentum)
    for number in range(3):
        federation.round(number)
    federation.finish()
    values = tensors(federation.shared)

    for site, losses in batches.items():
        for _ in range(6):
            next(losses)
        tuned, speed = values, {n: torch.zeros_like(value) for n, value in values.items()}
        for _ in range(4):
            along = slope(next(losses), tuned)
            speed = {n: 0.6 * speed[n] + along[n] for n in along}
            tuned = moved(tuned, speed)
        outcome = federation.studies[site].conclude()
        check({n: a.astype(float) for n, a in outcome.values.items()}, tuned)


def test_an_optimiser_remembers_and_stays_at_its_site() -> None:
    """Each site's momentum goes on where its last round ended, although the values were replaced in between."""
    federation = Federation(tiny_plan(
        "fedavg", schedule=schedule(3), optimiser={"name": "sgd", "learning_rate": RATE, "momentum": 0.6}
    ))  # fmt: skip
    values = tensors(federation.shared)
    speed = {site: {n: torch.zeros_like(value) for n, value in values.items()} for site in TABLES}

    for number in range(3):
        federation.round(number)
        ends = []
        for site, table in TABLES.items():
            end = values
            for _ in range(2):
                along = slope(risk(table), end)
                speed[site] = {n: 0.6 * speed[site][n] + along[n] for n in along}
                end = moved(end, speed[site])
            ends.append(end)
        values = mean(ends)
        check(federation.shared, values)
