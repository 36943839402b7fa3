"""Rules that need every site's vector, compared with numbers computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.views import only_columns
from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.single_vectors import LayerMixtures, PlainMean, federate_vectors
from protos.plan.architecture import Constant, Part, TensorSpec
from protos.plan.manifest import Manifest

MANIFEST = Manifest(
    (
        TensorSpec("body.layer1.weight", (1,), Part.BODY, Constant(0.0)),
        TensorSpec("body.layer2.weight", (2,), Part.BODY, Constant(0.0)),
    ),
    (),
)


def test_a_mixture_learns_along_what_a_site_did_with_it() -> None:
    """The bias of logit j moves by rate * a_j (<c, y_j> - sum_k a_k <c, y_k>), summed over the sites. Two sites with y
    = (0, 1, 1) and (2, 3, 5), so a = 1/2 each. Site 1 then changes by (1, 0, 0), site 2 by (0, 1, -1). In layer 1: <c,
    y> of site 1 is (0, 2), so its logits move by 1/4 * (0 - 2) = -1/2 and +1/2; site 2's by 0. In layer 2: site 1's by
    0; of site 2 <c, y> is (0, -2), so its move by +1/2 and -1/2."""
    rule = LayerMixtures(MANIFEST, 2, seed=1, rate=0.1)
    rule.next_values(np.zeros((2, 3), np.float32), np.array([[0, 1, 1], [2, 3, 5]], np.float32))

    rule.learn(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64))

    moved = rule.output_bias.detach().numpy()
    np.testing.assert_allclose(moved, [[-0.05, 0.05], [0.05, -0.05]], atol=1e-12)


def test_the_mean_over_vectors_is_the_deployments() -> None:
    """Sites trained with the plain rule end at the result of the network's integers, to the integers' precision."""
    sites = breast_cancer(1)
    same = {name: only_columns(each, sites["cluj"].columns) for name, each in sites.items()}
    plan = plan_of(same, 1, {"name": "fedavg"})

    mine = federate_vectors(plan, same, lambda _plan, _manifest, _sites: PlainMean())

    for name, outcome in federate(plan, same)[1].items():
        np.testing.assert_allclose(mine[name].test_outputs, outcome.test_outputs, atol=1e-4)


def plan_of(sites: Sites, seed: int, method: dict[str, str]) -> Any:  # a Plan
    """Two rounds of a method that reads the same columns everywhere."""
    keys: dict[str, Any] = {} if method["name"] == "fedper" else {"outputs": 1}
    return experiment_plan(
        sites,
        seed,
        method=method,
        columns=sites["cluj"].columns,
        architecture={"name": "dense", "hidden": [4]},
        schedule={"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 3},
        optimiser={"name": "sgd", "learning_rate": 0.1},
        weighting={"name": "equal"},
        **keys,
    )
