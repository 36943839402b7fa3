"""A federation on images: five hospitals with divided digits as PNG files, trained by every method that fits.

Contracts, readers, networks, training, gates, masks and the engine are those of production, in one process and in
made-up time. Only the sockets between the processes are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from protos.errors import ConfigurationError
from protos.plan.manifest import manifest_of
from protos.plan.methods import NETWORK_METHODS
from protos.plan.plan import Plan
from quickstart.dirichlet_shares import CONCENTRATION, FEWEST_OF_CLASS, deal
from quickstart.hospitals import HospitalData
from quickstart.image_hospitals import SIZE, digit_hospitals
from quickstart.plans import plan_of, studies_of
from site_agent.hospital import read_hospital
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.run_table import table_for_run
from site_agent.trainer.fitting import check_fit
from site_agent.trainer.study import Outcome
from tests.federation import Federation, identity_of
from tests.for_each import for_each
from tests.hostile.real_trainers import RealTrainer
from tests.laws.masked_runs import decisions, unmasked
from tests.rehearsal.made_up_time import play
from tests.site_agent.trainer.sites import LOOSE_POLICY, fingerprint, make_plan, make_site

# Everything shared, and layers that stay private. Continuous integration runs the others.
OFTEN = ("fedavg", "player-fl")
OTHERS = tuple(sorted({*NETWORK_METHODS} - {*OFTEN, "chfl"}))
EFFICIENT = ("fedbn", "fedper", "moon", "player-fl", "scaffold")
CONVOLUTIONAL = {"name": "convolutional", "image": SIZE, "blocks": [4, 4], "hidden": [8]}
PARALLEL = {"name": "parallel-convolutional", "image": SIZE, "common": [4, 4], "unique": [4, 4]}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> list[HospitalData]:
    """Five hospitals with images."""
    return digit_hospitals(5, tmp_path_factory.mktemp("digits"), seed=0)


def plan_for(method: str, hospitals: list[HospitalData], epochs: int = 2) -> Plan:
    """The quickstart's plan for a method, with a small network."""
    (study,) = studies_of([method])
    sites = [{"name": one.name, "identity": identity_of(one.name)} for one in hospitals]
    around = {
        "schedule": {"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 5},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "sites": sites,
        "seed": 0,
    }
    made = plan_of(study, hospitals, latent=16, is_masked=True)
    return Plan.model_validate_json(json.dumps(around | made | ({} if method == "scaffold" else around)))


def configuration_of(hospital: HospitalData, folder: Path) -> Path:
    """A hospital's file, in a folder of its own."""
    folder.mkdir(parents=True)
    content = {
        "site": hospital.name,
        "state": "state",
        "policy": LOOSE_POLICY,
        "data": {
            "table": str(hospital.table),
            "contract": str(hospital.contract),
            "split": {"seed": 0, "stratified": True},
            "unaccepted_warnings": "tell",
        },
        "training": {"simple_models": False, "siloed_baseline": False, "draws": "published"},
    }
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    return folder / "hospital.yaml"


async def trained(folder: Path, plan: Plan, hospitals: list[HospitalData]) -> tuple[Federation, dict[str, RealTrainer]]:
    """A run of a plan to its end."""
    network, trainers = Federation(folder, plan), dict[str, RealTrainer]()
    for hospital in hospitals:
        configuration = configuration_of(hospital, folder / "files" / hospital.name)
        trainers[hospital.name] = RealTrainer(hospital.name, configuration)
        network.add(hospital.name, trainer=trainers[hospital.name], secure_aggregation="not-required")
    await network.finish()
    assert {name: site.error for name, site in network.sites.items() if site.error is not None} == {}
    await network.close()
    return network, trainers


def outcomes_of(trainers: Mapping[str, RealTrainer]) -> dict[str, Outcome]:
    """Each hospital's chosen model and its predictions."""
    studies = {name: trainer.study for name, trainer in trainers.items()}
    return {name: study.conclude() for name, study in studies.items() if study is not None}


def digests_of(trainers: Mapping[str, RealTrainer]) -> dict[str, str]:
    """Of each hospital's chosen model and its predictions."""
    return {name: fingerprint(outcome) for name, outcome in outcomes_of(trainers).items()}


async def masks_change_no_bit(folder: Path, plan: Plan, hospitals: list[HospitalData]) -> None:
    """Assert that a masked plan and the same one without masks end with equal parameters, decisions and models."""
    masked, with_masks = await trained(folder / "masked", plan, hospitals)
    plain, without = await trained(folder / "plain", unmasked(plan), hospitals)

    released = [site.records("contribution_released") for site in masked.sites.values()]
    assert all(records and all(record["masked"] for record in records) for records in released)
    assert masked.vector().tobytes() == plain.vector().tobytes()
    assert decisions(masked) == decisions(plain)
    models = digests_of(with_masks)  # once: some methods are fine-tuned where a study ends
    assert len(models) == len(hospitals)
    assert models == digests_of(without)


@pytest.mark.parametrize("method", [*OFTEN, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_a_method_trains_on_images_and_masks_change_no_bit(
    tmp_path: Path, method: str, hospitals: list[HospitalData]
) -> None:
    """Every method that fits ends with equal parameters and equal models at three hospitals, masked and unmasked."""
    three = hospitals[:3]

    play(masks_change_no_bit(tmp_path, plan_for(method, three), three))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", *EFFICIENT])
def test_efficientnet_trains_on_images_and_masks_change_no_bit(
    tmp_path: Path, method: str, hospitals: list[HospitalData]
) -> None:
    """A small EfficientNet that starts at random ends with equal parameters and models, masked and unmasked."""
    network = {"name": "efficientnet-b0", "image": SIZE, "normalisation": "image", "width": 0.1, "depth": 0.25}
    three = hospitals[:3]
    plan = plan_for(method, three, epochs=1).canonical
    changed = Plan.model_validate_json(json.dumps(json.loads(plan) | {"architecture": network}))

    play(masks_change_no_bit(tmp_path, changed, three))


def test_efficientnet_has_the_methods_of_the_convolutional_network() -> None:
    """Its normalisations stay private with fedbn, its layers have an order, and all methods of images fit."""
    blocks = CONVOLUTIONAL | {"normalisation": True}
    efficient = {"name": "efficientnet-b0", "image": SIZE, "normalisation": "fixed"}

    def fitting(architecture: dict[str, Any]) -> set[str]:
        found, plain = set(), {"name": "sgd", "learning_rate": 0.1}
        for name, outputs in product(NETWORK_METHODS, (10, None)):
            try:
                plan = make_plan(method={"name": name}, architecture=architecture, outputs=outputs, optimiser=plain)
                found |= {name} if manifest_of(plan) else set()
            except (ValueError, ConfigurationError):
                continue
        return found

    assert fitting(efficient) == fitting(blocks)
    assert {"fedavg", "fedbn", "fedper", "player-fl"} <= fitting(efficient)


def test_augmented_images_are_trained_on_and_masks_change_no_bit(tmp_path: Path, hospitals: list[HospitalData]) -> None:
    """A plan with augmentation ends with other parameters than one without, masked and unmasked with the same."""
    three = hospitals[:3]
    plan = plan_for("fedavg", three, epochs=1)
    steps = {"augmentation": [{"name": "flip"}, {"name": "shift", "pixels": 1}]}
    augmented = Plan.model_validate_json(json.dumps(json.loads(plan.canonical) | steps))

    async def scene() -> None:
        masked, with_masks = await trained(tmp_path / "masked", augmented, three)
        plain, without = await trained(tmp_path / "plain", unmasked(augmented), three)
        unchanged, _ = await trained(tmp_path / "unchanged", unmasked(plan), three)

        assert masked.vector().tobytes() == plain.vector().tobytes()
        assert digests_of(with_masks) == digests_of(without)
        assert plain.vector().tobytes() != unchanged.vector().tobytes()

    play(scene())


@pytest.mark.slow
def test_hospitals_learn_from_images_that_they_never_see(tmp_path: Path, hospitals: list[HospitalData]) -> None:
    """After thirty epochs of masked FedAvg four of five test images of all hospitals are recognised."""

    async def scene() -> None:
        _, trainers = await trained(tmp_path, plan_for("fedavg", hospitals, epochs=30), hospitals)

        right = []
        for name, outcome in outcomes_of(trainers).items():
            study = trainers[name].study
            assert study is not None
            right.append(outcome.test_outputs.argmax(axis=1) == study.dataset.test.targets)
        assert np.concatenate(right).mean() > 0.8

    play(scene())


@pytest.mark.parametrize(
    ("method", "architecture", "words"),
    [
        ({"name": "chfl"}, CONVOLUTIONAL, "and the network columns can only be used together"),
        ({"name": "fedbn"}, CONVOLUTIONAL, "no tensor of a known normalisation layer"),
        ({"name": "fenda-fl"}, CONVOLUTIONAL, "common"),
        ({"name": "player-fl"}, PARALLEL, "has parallel branches"),
        ({"name": "perfcl"}, PARALLEL | {"unique": [4]}, "must have outputs of the same width"),
        ({"name": "perfcl"}, PARALLEL | {"unique": [4, 3]}, "must have outputs of the same width"),
        ({"name": "fedper"}, PARALLEL, "body"),
    ],
)
def test_a_method_that_does_not_fit_a_network_of_images_is_refused(
    method: dict[str, Any], architecture: dict[str, Any], words: str
) -> None:
    """By the plan or by the list of what leaves, with the reason, before a site is asked."""
    with pytest.raises((ValueError, ConfigurationError), match=words):
        manifest_of(make_plan(method=method, architecture=architecture, outputs=10))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"height": 8, "width": 8, "channels": 3}, "reads images of 8 by 8 pixels, colour. This site has images of 8"),
        ({"height": 4, "width": 16}, "reads images of 4 by 16 pixels, grey. This site has images of 8 by 8 pixels"),
    ],
)
def test_a_plan_for_images_of_another_size_is_refused(
    declared: dict[str, Any], words: str, hospitals: list[HospitalData], tmp_path: Path
) -> None:
    """Equally many pixels in another shape are another size; both sizes are in the error."""
    plan = make_plan(architecture=CONVOLUTIONAL | {"image": declared})
    hospital = read_hospital(configuration_of(hospitals[0], tmp_path / "one"))

    with pytest.raises(ConfigurationError, match=words):
        check_fit(plan, prepare_rows(*table_for_run(hospital, None))[0], plan.site_names[0])


def test_a_plan_for_images_is_refused_by_a_table_without(tmp_path: Path) -> None:
    """A table of numbers is not accepted as images because it has as many columns."""
    hospital = read_hospital(make_site(tmp_path, columns=slice(0, 6)))
    plan = make_plan(architecture=CONVOLUTIONAL | {"image": {"height": 2, "width": 3}})

    with pytest.raises(ConfigurationError, match="This site has a table without images"):
        check_fit(plan, prepare_rows(*table_for_run(hospital, None))[0], plan.site_names[0])


@pytest.mark.parametrize("count", [2, 5, 12])
@for_each("seed", range(20))
def test_every_row_is_dealt_once_and_every_site_has_every_class(seed: int, count: int) -> None:
    """Shares differ as Dirichlet(0.5) has them; nobody is without a class."""
    classes = np.random.default_rng(seed).integers(0, 10, 1797)

    dealt = deal(classes, count, np.random.default_rng(seed))

    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(1797))
    counts = np.stack([np.bincount(classes[rows], minlength=10) for rows in dealt])
    assert counts.min() >= FEWEST_OF_CLASS
    shares = (counts - FEWEST_OF_CLASS) / (counts - FEWEST_OF_CLASS).sum(axis=0)
    expected = (1 - 1 / count) / (count * CONCENTRATION + 1) / count  # the variance of one share
    assert shares.var() == pytest.approx(expected, rel=0.6)
