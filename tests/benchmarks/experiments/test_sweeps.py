"""A sweep in one process chooses what a deployed federation chooses: the lowest sum of validation losses."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.federations import federate, federate_sweep
from benchmarks.experiments.tables.rehearsal import rehearsal_plan
from protos.plan.plan import Plan


def test_the_rate_with_the_lowest_summed_loss_is_chosen() -> None:
    """The chosen models are those of the better rate's own run, to the last bit, at any place in the list."""
    sites = breast_cancer(0)
    settings = json.loads(rehearsal_plan(sites, 0, "global-layers").canonical) | {"checkpoint": "global"}
    keys = {"keys": ["optimiser.learning_rate"], "alternatives": [[1e-3], [1e-9]]}
    plan = Plan.model_validate_json(json.dumps(settings | {"sweep": keys}))
    _, alone = federate(plan, sites)

    chosen, outcomes = federate_sweep(plan.alternatives[1], sites)

    assert chosen == plan
    for name, outcome in outcomes.items():
        np.testing.assert_array_equal(outcome.test_outputs, alone[name].test_outputs)
