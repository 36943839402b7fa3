"""Private networks at the heart clinics in one process: their accuracy, and no round depends on other rows."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.private_networks import network_plan_of, network_studies
from coordinator.rounds.run import Run
from global_layers.one_process import Collection, run_rounds
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.privacy.accounting import PRIVATE_SCALE
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import Study
from site_agent.trainer.training.private_gradient import PrivateRows, private_sums
from tests.protos.privacy.test_patient_privacy import PRIVATE, WITH_LAYERS


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


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfedme", "local-adaptation"])
def test_a_personal_model_shapes_no_local_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second round, after the personal model has trained, the noisy sums follow from received values and noise."""
    content = json.loads(_federation(8.0, rounds=2)[0].canonical)
    content["privacy"] |= {"noise": "local"}
    content["schedule"] = {"aggregate": "every-round", "epochs": 4, "batches_per_epoch": 1, "epochs_per_round": 2}
    method = {"name": name} | ({"strength": 0.1} if name == "pfedme" else {})
    plan = plan_from_json(json.dumps(content | {"method": method}))
    study = network_studies(plan, uci_tables(CONCEPTS.parent), seed=1)["va"]
    first, training = study.manifest.initial_parameters(plan.seed), plan.private_training
    assert training is not None
    study.train(Asked(round=0), first)

    monkeypatch.setattr("site_agent.trainer.study.os.urandom", np.random.default_rng(4).bytes)
    sums = study.train(Asked(round=1), first + np.float32(0.125)).scalars

    arrays = [values.astype(np.float64) for values in study.manifest.views(first + np.float32(0.125)).values()]
    rows = study.dataset.training
    outcomes = np.asarray(rows.targets, np.float64)
    mine = PrivateRows.of(rows.features, outcomes, study.own.training_patients)
    assert sums == private_sums(training, arrays, mine, np.random.default_rng(4).bytes)


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


def _with_private_layers(name: str, epsilon: float, rounds: int) -> Plan:
    content = json.loads(_federation(epsilon, rounds)[0].canonical)
    changes = {"architecture": {"name": "dense", "hidden": [6, 5]}, "method": {"name": name}}
    return plan_from_json(json.dumps(content | changes | WITH_LAYERS[name]))


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_private_layers_follow_from_kept_sums_alone(name: str) -> None:
    """A trainer that lost its memory sends the same shared sums as one that made all rounds, given what the gate kept.
    Other kept sums give other shared sums, so private layers do take steps."""
    plan = _with_private_layers(name, 8.0, 3)
    training, tables = plan.private_training, uci_tables(CONCEPTS.parent)
    assert training is not None
    start, shared = manifest_of(plan).initial_parameters(plan.seed), len(training.names)
    kept = tuple(np.random.default_rng(2).integers(-(1 << 36), 1 << 36, training.own_numbers).tolist())
    trained, restarted = (network_studies(plan, tables, seed=1)["va"] for _ in range(2))

    for number, before in enumerate(((), kept[::-1])):
        own = trained.train(Asked(round=number, own_sums=before), start).scalars[shared:]
        assert len(own) == training.own_numbers
    sums = trained.train(Asked(round=2, own_sums=kept), start).scalars[:shared]
    again = restarted.train(Asked(round=2, own_sums=kept), start).scalars[:shared]
    other = network_studies(plan, tables, seed=1)["va"].train(Asked(round=2), start).scalars[:shared]

    assert sums == again != other


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_private_layers_rank_patients_at_each_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At epsilon 20 each site's network is far from chance, and private layers differ between sites."""
    plan = _with_private_layers(name, 20.0, 30)
    studies = network_studies(plan, uci_tables(CONCEPTS.parent), seed=1)
    generator = np.random.default_rng(0)
    monkeypatch.setattr("site_agent.trainer.study.os.urandom", generator.bytes)
    monkeypatch.setattr("global_layers.one_process.with_noise", partial(with_noise, random_bytes=generator.bytes))

    run_rounds(plan, studies)

    first, second, *_ = (study.conclude().values for study in studies.values())
    apart = {key.split(".")[0] for key, values in first.items() if not np.array_equal(values, second[key])}
    assert apart >= {"global-layers": {"input", "head"}, "lg-fedavg": {"input"}}.get(name, {"head"})
    assert not apart & {"global-layers": {"body"}, "lg-fedavg": {"body", "head"}}.get(name, {"input"})
    assert _auroc(studies) > 0.7


def test_local_noise_reaches_a_model_and_reads_the_operating_system_s_randomness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four rounds of five local steps at epsilon 8 rank patients, and the same round has other noise each time."""
    tables = uci_tables(CONCEPTS.parent)
    content = json.loads(_federation(8.0)[0].canonical)
    content["privacy"] |= {"noise": "local"}
    content["schedule"] = {"aggregate": "every-round", "epochs": 20, "batches_per_epoch": 1, "epochs_per_round": 5}
    plan = plan_from_json(json.dumps(content))

    def sums() -> tuple[int, ...]:
        study = network_studies(plan, tables, seed=1)["va"]
        return study.train(Asked(round=0), study.manifest.initial_parameters(plan.seed)).scalars

    first, second = sums(), sums()
    generator = np.random.default_rng(0)
    monkeypatch.setattr("site_agent.trainer.study.os.urandom", generator.bytes)
    studies = network_studies(plan, tables, seed=1)
    run = _played(Collection(plan), studies)

    assert first != second
    assert run.rounds_made == 4
    assert _auroc(studies) > 0.7
