"""Reasons that stop a study at a site: values that do not fit the plan, and models that diverge."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from protos.wire.messages import MalformedMessage
from site_agent.trainer.failures import TrainingDiverged
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
