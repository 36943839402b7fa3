"""Reasons that stop a study at a site: values that do not fit the plan, and models that diverge."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from protos.wire.messages import MalformedMessage
from site_agent.trainer import site_network
from site_agent.trainer.failures import NetworkDiffers, TrainingDiverged
from site_agent.trainer.study import Study
from tests.site_agent.trainer.sites import (
    conclude,
    first_values,
    make_plan,
    make_site,
    make_study,
    numbers_of,
    update_of,
)


@pytest.mark.parametrize("flaw", ["short", "long", "nan", "infinite"])
def test_shared_values_that_do_not_fit_are_refused(tmp_path: Path, flaw: str) -> None:
    """Another number of values, or one that is not finite; the network stays as it was."""
    plan = make_plan()
    study = make_study(make_site(tmp_path), plan)
    received, before = first_values(plan, study), numbers_of(study)
    match flaw:
        case "short":
            received = received[:-1]
        case "long":
            received = np.append(received, np.float32(0))
        case _:
            received[17] = np.nan if flaw == "nan" else -np.inf

    with pytest.raises(MalformedMessage):
        update_of(study, 0, received)
    with pytest.raises(MalformedMessage):
        conclude(study, received)

    assert numbers_of(study) == before


@pytest.mark.parametrize("wrong", ["more", "buffer", "shape"])
def test_a_network_that_is_not_the_plans_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """One tensor too many, one that would be kept unseen, or another shape: nothing is trained."""

    build_network = site_network.build_network

    def other(*sizes: Any) -> nn.Module:
        network = build_network(*sizes)
        match wrong:
            case "more":
                network.add_module("extra", nn.Linear(2, 2))
            case "buffer":
                network.register_buffer("seen", torch.zeros(3))
            case _:
                layer = network.get_submodule("body.layer3.linear")
                layer.weight = nn.Parameter(layer.weight.data.new_zeros(3, 3))
        return network

    monkeypatch.setattr(site_network, "build_network", other)

    with pytest.raises(NetworkDiffers):
        make_study(make_site(tmp_path), make_plan())


def _poison(study: Study) -> None:
    study._training.flat.private.data.fill_(math.nan)


@pytest.mark.parametrize("checkpoint", ["local", "latest"])
def test_a_diverged_model_is_told_and_never_reported(tmp_path: Path, checkpoint: str) -> None:
    """If no finite model remains, there are three sentences. The baseline beside it is absent, not wrong."""
    plan = make_plan(checkpoint=checkpoint, method={"name": "local"})
    study = make_study(make_site(tmp_path), plan)

    _poison(study)

    with pytest.raises(TrainingDiverged, match="smaller learning_rate"):
        conclude(study, np.empty(0, np.float32))


def test_a_finite_round_survives_a_later_divergence(tmp_path: Path) -> None:
    """The best round before it is kept, and the losses that were not finite are null in the report."""
    plan = make_plan(method={"name": "local"})
    study = make_study(make_site(tmp_path), plan)
    nothing = np.empty(0, np.float32)
    update_of(study, 0, nothing)
    update_of(study, 1, nothing)

    _poison(study)
    outcome = conclude(study, nothing)

    assert outcome.choice["round"] == 1
    assert all(np.isfinite(array).all() for array in outcome.values.values())
    assert json.loads(json.dumps(outcome.choice, allow_nan=False))["validation_losses"][-1] == [3, None]
