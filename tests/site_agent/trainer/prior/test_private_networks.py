"""Private networks at the heart clinics in one process: their accuracy, and no round depends on other rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.private_networks import network_plan_of, network_studies
from coordinator.rounds.run import Run
from global_layers.one_process import Collection, run_rounds
from protos.plan.plan import Plan, plan_from_json
from protos.privacy.accounting import PRIVATE_SCALE
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import Study
from tests.protos.privacy.test_patient_privacy import PRIVATE


def _federation(epsilon: float, rounds: int = 20) -> tuple[Plan, dict[str, Study]]:
    tables = uci_tables(CONCEPTS.parent)
    plan = network_plan_of(tables, epsilon, rounds=rounds)
    return plan, network_studies(plan, tables, seed=1)


def _auroc(studies: dict[str, Study]) -> float:
    said = {name: study.conclude().test_outputs[:, 0] for name, study in studies.items()}
    found = [roc_auc_score(studies[name].own.test.targets, outputs) for name, outputs in said.items()]
    return float(np.mean(found))


def test_a_private_network_ranks_patients() -> None:
    """At epsilon 8 the clinics' shared regression is far from chance, although no number is exact."""
    plan, studies = _federation(8.0)
    collection = Collection(plan)
    generator = np.random.default_rng(0)
    collection.noise = lambda numbers: with_noise(plan, numbers, generator.bytes)

    run = _played(collection, studies)

    assert _auroc(studies) > 0.7
    assert run.rounds_made == plan.schedule.rounds


def _played(collection: Collection, studies: dict[str, Study]) -> Run:
    run = collection.run
    for number in range(collection.plan.schedule.rounds):
        collection.make(number, studies)
    finish, values = run.result()
    for study in studies.values():
        study.close(Asked(round=finish.round, layers=finish.layers), np.array(values))
    return run


def test_without_noise_a_private_round_is_a_step_along_the_clipped_gradient() -> None:
    """With a wide clip and no noise the private run ends near the plain run of the same steps."""
    plan, studies = _federation(1.0, rounds=10)
    content = json.loads(plan.canonical)
    content["privacy"] |= {"clip": 1000.0, "patients": sum(len(study.own.training) for study in studies.values())}
    wide = plan_from_json(json.dumps(content))
    private = network_studies(wide, uci_tables(CONCEPTS.parent), seed=1)
    plain_plan = plan_from_json(
        json.dumps(
            content
            | {"privacy": None, "masking": {"required": False}, "weighting": {"name": "rows", "largest_rows": 1024}}
        )
    )
    plain = network_studies(plain_plan, uci_tables(CONCEPTS.parent), seed=1)
    collection = Collection(wide)
    collection.noise = list

    exact = _played(collection, private).parameters
    other = run_rounds(plain_plan, plain).run.parameters

    # Row counts are rounded to two significant bits in the plain run, so the two do not agree to the last digit.
    assert np.corrcoef(exact, other)[0, 1] > 0.99


@pytest.mark.parametrize("name", [name for name in PRIVATE if name not in ("fedavg", "fedbabu")])
def test_every_private_method_sends_the_sums_of_fedavg(name: str) -> None:
    """At equal shared values each method sends the same integers in each round, whatever the site trains for itself."""
    plan, _ = _federation(1.0, rounds=3)
    content = json.loads(plan.canonical) | {"architecture": {"name": "dense", "hidden": [5]}}
    tables, generator = uci_tables(CONCEPTS.parent), np.random.default_rng(6)
    studies = [
        network_studies(plan_from_json(json.dumps(content | {"method": one})), tables, seed=1)["va"]
        for one in ({"name": "fedavg"}, {"name": name} | ({"share_rate": 0.0} if name == "apfl" else {}))
    ]
    starts = [studies[0].manifest.initial_parameters(plan.seed)]
    starts += [generator.standard_normal(len(starts[0])).astype(np.float32) / 3 for _ in range(2)]

    sums = [[study.train(Asked(round=place), start).scalars for place, start in enumerate(starts)] for study in studies]

    assert sums[0] == sums[1]
    assert len(set(sums[0])) == 3
    for study in studies:
        study.close(Asked(round=3), starts[-1])
    found = [study.conclude().test_outputs for study in studies]
    has_own = name in ("ditto", "apfl", "local-adaptation")
    assert (not np.array_equal(*found)) is has_own


def test_layers_that_keep_their_first_values_send_nothing_and_shape_no_other_term() -> None:
    """FedBABU sums the gradients of its shared layers alone, clipped as one vector."""
    plan, _ = _federation(1.0, rounds=3)
    changes = {"architecture": {"name": "dense", "hidden": [5]}, "method": {"name": "fedbabu"}, "outputs": None}
    fixed = plan_from_json(json.dumps(json.loads(plan.canonical) | changes))
    study = network_studies(fixed, uci_tables(CONCEPTS.parent), seed=1)["va"]
    training = fixed.private_training
    assert training is not None

    (first, second) = (
        study.train(Asked(round=number), study.manifest.initial_parameters(fixed.seed) + number).scalars
        for number in range(2)
    )

    assert {tensor.part.value for tensor in training.tensors} == {"input"}
    assert len(first) == len(second) == len(training.names) == study.manifest.parameters
    rows = np.asarray(study.own.training.targets).size
    assert 0 < np.linalg.norm(np.array(first, np.float64)) / PRIVATE_SCALE <= rows
