"""Methods that need a network of two kinds of parts, step by step against their formulas: two sites, three rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from protos.plan.architecture import network_tensors
from tests.site_agent.trainer.methods.by_hand import (
    Loss,
    Values,
    contrast,
    cross_entropy,
    descended,
    layer,
    mean,
    module_forward,
    moved,
    part,
    risk,
    slope,
    tensors,
)
from tests.site_agent.trainer.methods.tiny import AHUS, BERLIN, NORMALISED, STEPS, Federation, Table, check, tiny_plan

TABLES: dict[str, Table] = {"ahus": AHUS, "berlin": BERLIN}
PARALLEL: dict[str, Any] = {"name": "parallel", "common": [2], "unique": [3, 2], "activation": "tanh"}
COLUMNS: dict[str, Any] = {"name": "columns", "hidden": [3, 2], "activation": "tanh"}


def _extracted(values: Values, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The common extractor sees column a, which both sites have; the unique one, deeper and wider, sees both."""
    unique = torch.tanh(layer(values, "unique.layer2", torch.tanh(layer(values, "unique.layer1", rows))))
    return torch.tanh(layer(values, "common.layer1", rows[:, :1])), unique


def _parallel(values: Values, rows: Tensor) -> Tensor:
    return layer(values, "head.output", torch.cat(_extracted(values, rows), dim=-1)).squeeze(-1)


def _begin(method: str | dict[str, Any], **changes: Any) -> tuple[Federation, dict[str, Values]]:
    federation = Federation(tiny_plan(method, **changes))
    return federation, {site: tensors(federation.own(site)) for site in TABLES}


def _rows(site: str) -> Tensor:
    return torch.tensor(TABLES[site][0], dtype=torch.float64)


def _compare(
    federation: Federation, own: dict[str, Values], loss_of: Callable[[str, Values], Loss], last: dict[str, Values]
) -> None:
    """Three rounds, after which the common extractor is the mean. `last` gets each site's values before that."""
    for number in range(3):
        federation.round(number)
        own = {site: descended(loss_of(site, own[site]), own[site], STEPS) for site in TABLES}
        last.update(own)
        shared = part(mean(own.values()), "common")
        own = {site: values | shared for site, values in own.items()}
        check(federation.shared, shared)
    federation.finish()

    for site in TABLES:
        check(federation.used(site), own[site])


def test_fenda_fl() -> None:
    """One loss moves both extractors and the head; the mean is of the common extractor alone."""
    federation, own = _begin("fenda-fl", architecture=PARALLEL, columns=["a"], outputs=None)
    assert own["ahus"]["unique.layer1.weight"].shape == (3, 2)
    assert torch.equal(own["ahus"]["common.layer1.weight"], own["berlin"]["common.layer1.weight"])

    _compare(federation, own, lambda site, _: risk(TABLES[site], _parallel), {})


def test_perfcl() -> None:
    """The common features near the received ones and far from the last own; the unique ones near the last own."""
    method = {"name": "perfcl", "common_strength": 1.5, "unique_strength": 0.7, "temperature": 0.4}
    federation, own = _begin(method, architecture=PARALLEL, columns=["a"], outputs=None)
    last: dict[str, Values] = {}

    def loss_of(site: str, received: Values) -> Loss:
        task, rows, left = risk(TABLES[site], _parallel), _rows(site), last.get(site)
        if left is None:
            return task
        near, before = _extracted(received, rows)[0], _extracted(left, rows)

        def loss(values: Values) -> Tensor:
            common, unique = _extracted(values, rows)
            of_unique = contrast(unique, before[1], near, 0.4)
            return task(values) + 1.5 * contrast(common, near, before[0], 0.4) + 0.7 * of_unique

        return loss

    _compare(federation, own, loss_of, last)


def _common_column(values: Values, rows: Tensor) -> list[Tensor]:
    first = torch.tanh(layer(values, "common.layer1", rows[:, :1]))
    second = torch.tanh(layer(values, "common.layer2", first))
    return [first, second, layer(values, "common.output", second)]


def _joint(values: Values, rows: Tensor, heard: list[Tensor], strength: float) -> Tensor:
    """softmax(z_c + z_u): z_u(i+1) = tanh(W z_u(i) + b + mu U z_c(i)), the last without tanh; column b is unique."""

    def hearing(name: str, inputs: Tensor, other: Tensor) -> Tensor:
        mapped = layer(values, name, inputs)
        return mapped + strength * other @ values[f"{name}.lateral.weight"].T if strength else mapped

    first = torch.tanh(layer(values, "unique.layer1", rows[:, 1:]))
    second = torch.tanh(hearing("unique.layer2", first, heard[0]))
    return (heard[2] + hearing("unique.output", second, heard[1])).squeeze(-1)


@pytest.mark.parametrize("strength", [0.0, 0.6])
def test_chfl(strength: float) -> None:
    """Per batch the common column on its own loss, then, on what it says after that, the unique one jointly."""
    architecture = COLUMNS | {"lateral": strength}
    federation, own = _begin("chfl", architecture=architecture, columns=["a"])
    assert ("unique.output.lateral.weight" in own["ahus"]) == (strength > 0)

    for number in range(3):
        federation.round(number)
        for site, table in TABLES.items():
            rows, targets = _rows(site), torch.tensor(table[1], dtype=torch.float64)
            values = own[site]
            for _ in range(STEPS):
                along = slope(
                    lambda v: cross_entropy(_common_column(v, rows)[-1].squeeze(-1), targets),  # noqa: B023
                    values,
                    part(values, "common"),
                )
                values = moved(values, along)
                heard = [z.detach() for z in _common_column(values, rows)]
                along = slope(
                    lambda v: cross_entropy(_joint(v, rows, heard, strength), targets),  # noqa: B023
                    values,
                    part(values, "unique"),
                )
                values = moved(values, along)
            own[site] = values
            check(federation.own(site), values)
        shared = part(mean(own.values()), "common")
        own = {site: values | shared for site, values in own.items()}
        check(federation.shared, shared)


def test_chfl_evaluates_both_columns() -> None:
    """What a site predicts is the sum of both columns' results."""
    federation, _ = _begin("chfl", architecture=COLUMNS | {"lateral": 0.6}, columns=["a"])
    federation.rounds()
    federation.finish()

    for site in TABLES:
        study = federation.studies[site]
        outcome, rows = study.conclude(), torch.from_numpy(study.dataset.test.features).double()
        values = tensors({name: array.astype(float) for name, array in outcome.values.items()})
        expected = _joint(values, rows, _common_column(values, rows), 0.6)
        torch.testing.assert_close(
            torch.from_numpy(outcome.test_outputs[:, 0]).double(), expected, atol=1e-5, rtol=1e-5
        )


def test_fedbn() -> None:
    """Weights and biases of every normalisation are the site's own and are trained; the mean is of all others."""
    plan = tiny_plan("fedbn", architecture=NORMALISED, optimiser={"name": "sgd", "learning_rate": 0.5})
    federation = Federation(plan)
    forward = module_forward(plan)
    kept = [t.name for t in network_tensors(plan.architecture, columns=2, outputs=1) if t.is_normalisation]
    own = {site: tensors(federation.own(site)) for site in TABLES}

    for number in range(3):
        federation.round(number)
        own = {site: descended(risk(table, forward), own[site], STEPS) for site, table in TABLES.items()}
        shared = {name: value for name, value in mean(own.values()).items() if name not in kept}
        own = {site: values | shared for site, values in own.items()}
        check(federation.shared, shared, tolerance=1e-5)
    federation.finish()

    assert kept
    assert any(not torch.equal(own["ahus"][name], own["berlin"][name]) for name in kept)
    for site in TABLES:
        check(federation.used(site), own[site], tolerance=1e-5)
