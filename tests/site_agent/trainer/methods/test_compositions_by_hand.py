"""Composed methods equal the combination that a person would write by hand: two sites, three rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.site_agent.trainer.methods.by_hand import (
    Loss,
    Values,
    descended,
    less,
    mean,
    module_forward,
    moved,
    part,
    risk,
    slope,
    tensors,
)
from tests.site_agent.trainer.methods.tiny import (
    AHUS,
    BERLIN,
    DEEP,
    NORMALISED,
    RATE,
    STEPS,
    Federation,
    Table,
    check,
    tiny_plan,
)

TABLES: dict[str, Table] = {"ahus": AHUS, "berlin": BERLIN}
SITES: dict[str, Loss] = {site: risk(table) for site, table in TABLES.items()}


def _begin(*methods: dict[str, Any], **changes: Any) -> tuple[Federation, dict[str, Values]]:
    federation = Federation(tiny_plan({"name": "composition", "of": list(methods)}, **changes))
    return federation, {site: tensors(federation.own(site)) for site in SITES}


def _share(own: dict[str, Values], *names: str) -> tuple[Values, dict[str, Values]]:
    shared = part(mean(own.values()), *names)
    return shared, {site: values | shared for site, values in own.items()}


def test_global_layers_with_fedprox() -> None:
    """The shared inner layer is held near what was received; the private layers are free."""
    federation, own = _begin(
        {"name": "global-layers"}, {"name": "fedprox", "strength": 1.2}, architecture=DEEP, columns=None, outputs=None
    )

    for number in range(3):
        federation.round(number)
        for site, loss in SITES.items():
            values, received = own[site], part(own[site], "body")
            for _ in range(STEPS):
                along = slope(loss, values)
                values = moved(values, along | {n: along[n] + 1.2 * (values[n] - received[n]) for n in received})
            own[site] = values
        shared, own = _share(own, "body")
        check(federation.shared, shared)
    federation.finish()

    for site in SITES:
        check(federation.used(site), own[site])


@pytest.mark.parametrize("threshold", [1.0001, 1e6], ids=["first-layer", "all-but-the-last"])
def test_player_fl_with_ditto(threshold: float) -> None:
    """Layers up to the chosen one are shared; the personal model is held near them and has layers of its own above."""
    federation, own = _begin(
        {"name": "player-fl", "threshold": threshold}, {"name": "ditto", "strength": 0.9}, architecture=DEEP
    )
    names = ["input"] if threshold < 2 else ["input", "body"]
    personal = dict(own)

    federation.round(0)
    for number in range(1, 4):
        federation.round(number)
        for site, loss in SITES.items():
            received = part(own[site], *names)
            for _ in range(STEPS):
                v = personal[site]
                along = slope(loss, v)
                personal[site] = moved(v, along | {n: along[n] + 0.9 * (v[n] - received[n]) for n in received})
            own[site] = descended(loss, own[site], STEPS)
        shared, own = _share(own, *names)
        check(federation.shared, shared)
        for site in SITES:
            check(federation.used(site), personal[site])


def _scaffold(
    names: tuple[str, ...],
    federation: Federation,
    own: dict[str, Values],
    losses: dict[str, Loss],
    tolerance: float = 5e-6,
) -> None:
    """Three rounds of SCAFFOLD on these tensors, plain descent on all others."""
    shared = {n: own["ahus"][n] for n in names}
    control = {n: torch.zeros_like(value) for n, value in shared.items()}
    controls = dict.fromkeys(SITES, control)
    for number in range(3):
        federation.round(number)
        updates = []
        for site, loss in losses.items():
            values = own[site]
            for _ in range(STEPS):
                along = slope(loss, values)
                values = moved(values, along | {n: along[n] - controls[site][n] + control[n] for n in names})
            own[site] = values
            following = {n: controls[site][n] - control[n] + (shared[n] - values[n]) / (STEPS * RATE) for n in names}
            updates.append(less(following, controls[site]))
            controls[site] = following
        shared = {n: value for n, value in mean(own.values()).items() if n in names}
        moved_by = mean(updates)
        control = {n: control[n] + moved_by[n] for n in names}
        own |= {site: values | shared for site, values in own.items()}
        check(federation.shared, shared, tolerance)
        check(federation.control, control, tolerance)
    federation.finish()
    for site in SITES:
        check(federation.used(site), own[site], tolerance)


def test_scaffold_with_fedbn() -> None:
    """The control variates are those of all layers but the normalisations, which take plain steps of their own."""
    federation, own = _begin({"name": "scaffold"}, {"name": "fedbn"}, architecture=NORMALISED)
    network = module_forward(federation.plan)
    normalised = [name for name in own["ahus"] if "normalisation" in name]
    assert normalised

    names = tuple(name for name in own["ahus"] if name not in normalised)
    _scaffold(names, federation, own, {site: risk(table, network) for site, table in TABLES.items()}, tolerance=3e-5)


def test_ditto_with_fedadagrad_and_fine_tuning() -> None:
    """The personal model is what is fine-tuned, and the coordinator's rule moves the shared one alone."""
    federation, own = _begin(
        {"name": "ditto", "strength": 0.5}, {"name": "fedadagrad", "rate": 0.2, "offset": 1e-2},
        {"name": "local-adaptation", "fine_tuning_epochs": 2},
    )  # fmt: skip
    shared, personal = own["ahus"], dict(own)
    first = {n: torch.zeros_like(value) for n, value in shared.items()}
    second = dict(first)

    for number in range(3):
        federation.round(number)
        for site, loss in SITES.items():
            for _ in range(STEPS):
                v, along = personal[site], slope(loss, personal[site])
                personal[site] = moved(v, {n: along[n] + 0.5 * (v[n] - shared[n]) for n in v})
        update = less(mean(descended(loss, shared, STEPS) for loss in SITES.values()), shared)
        first = {n: 0.9 * first[n] + 0.1 * d for n, d in update.items()}
        second = {n: second[n] + d**2 for n, d in update.items()}
        shared = {n: shared[n] + 0.2 * first[n] / (second[n].sqrt() + 1e-2) for n in shared}
        check(federation.shared, shared, tolerance=1e-5)
    federation.finish()

    for site, loss in SITES.items():
        tuned = federation.studies[site].conclude()
        check({n: a.astype(float) for n, a in tuned.values.items()}, descended(loss, personal[site], 2), 1e-5)
