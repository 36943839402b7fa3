"""A federation on masks: five hospitals with real images train a U-Net, by methods that share all or some layers.

Contracts, readers, network, training, gates, masks of sums and the engine are those of production, in one process and
in made-up time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from protos.errors import ConfigurationError
from protos.plan.manifest import manifest_of
from protos.plan.methods import NETWORK_METHODS
from protos.plan.plan import Plan
from quickstart.dirichlet_shares import deal
from quickstart.hospitals import HospitalData
from site_agent.desk.comparison.evaluation import dice_of_images
from site_agent.hospital import read_hospital
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.run_table import table_for_run
from site_agent.trainer.fitting import check_fit
from tests.federation import identity_of
from tests.mask_images import SIZE, U_NET, mask_contract, put_table
from tests.rehearsal.made_up_time import play
from tests.rehearsal.test_image_federation import configuration_of, masks_change_no_bit, outcomes_of, trained
from tests.site_agent.trainer.sites import make_plan

METHODS: dict[str, dict[str, Any]] = {
    "global-layers": {"name": "global-layers"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "strength": 0.1},
    "fedper": {"name": "fedper"},
    "moon": {"name": "moon", "strength": 1.0, "temperature": 0.5},
    "player-fl": {"name": "player-fl"},
    "ditto": {"name": "ditto", "strength": 0.1},
}
EVERY_TIME = ("global-layers", "fedavg")
ROWS = 450


def mask_hospitals(count: int, folder: Path, seed: int) -> list[HospitalData]:
    """The first digits dealt to so many hospitals, with unequal shares of the digits."""
    hospitals = []
    dealt = deal(np.asarray(load_digits().target)[:ROWS], count, np.random.default_rng(seed))
    for number, own in enumerate(dealt, start=1):
        name = f"hospital-{number}"
        table, contract = folder / f"{name}.csv", folder / f"{name}.contract.yaml"
        put_table(table, folder / name, own.tolist())
        contract.write_text(yaml.safe_dump(mask_contract(name)))
        hospitals.append(HospitalData(name, table, contract))
    return hospitals


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> list[HospitalData]:
    """Five hospitals with images and masks."""
    return mask_hospitals(5, tmp_path_factory.mktemp("masks"), seed=0)


def plan_for(method: dict[str, Any], hospitals: list[HospitalData], epochs: int = 2, **changes: Any) -> Plan:
    """A masked plan of these hospitals with a small U-Net."""
    sites = [{"name": one.name, "identity": identity_of(one.name)} for one in hospitals]
    return make_plan(
        method=method,
        architecture=U_NET,
        schedule={"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 5},
        optimiser={"name": "adamw", "learning_rate": 0.03},
        sites=sites,
        secure_aggregation="required",
        checkpoint="latest",
        **changes,
    )


@pytest.mark.parametrize(
    "method", [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_method_trains_a_u_net_and_masked_sums_change_no_bit(
    tmp_path: Path, method: str, hospitals: list[HospitalData]
) -> None:
    """Three hospitals end with equal parameters and equal models, masked and unmasked."""
    three = hospitals[:3]

    play(masks_change_no_bit(tmp_path, plan_for(METHODS[method], three), three))


@pytest.mark.slow
def test_hospitals_learn_to_draw_masks_of_images_that_they_never_see(
    tmp_path: Path, hospitals: list[HospitalData]
) -> None:
    """After ten epochs of masked FedAvg the mean Dice of the test images is above 0.85 at every hospital."""
    plan = plan_for(METHODS["fedavg"], hospitals, epochs=10)

    async def scene() -> None:
        _, trainers = await trained(tmp_path, plan, hospitals)

        for name, outcome in outcomes_of(trainers).items():
            study = trainers[name].study
            assert study is not None
            reached = dice_of_images(study.own.test.targets, outcome.test_outputs >= 0)
            assert reached.mean() > 0.85, (name, reached.mean())

    play(scene())


def fits(name: str, network: dict[str, Any], outputs: int | None) -> bool:
    """Whether a plan may have this method with the network."""
    settings = {
        "fedprox": {"strength": 0.1}, "moon": {"strength": 1.0}, "ditto": {"strength": 0.1}, "apfl": {"share": 0.4},
        "pfedme": {"inner_steps": 2, "strength": 1.0, "rate": 0.5},
    }  # fmt: skip
    method = {"name": name} | settings.get(name, {})
    plain = {"name": "sgd", "learning_rate": 0.1}
    try:
        manifest_of(make_plan(method=method, architecture=network, outputs=outputs, optimiser=plain))
    except (ValueError, ConfigurationError):
        return False
    return True


@pytest.mark.parametrize("has_normalisation", [False, True])
def test_a_u_net_has_the_methods_of_the_convolutional_network(has_normalisation: bool) -> None:
    """The layers have the same order and parts, so each method fits both or neither."""
    both = {"image": SIZE, "normalisation": has_normalisation}
    classes = {"name": "convolutional", "blocks": [4, 4], "hidden": [4]} | both

    fitting = {name for name in NETWORK_METHODS if fits(name, {"name": "u-net", "width": 4} | both, None)}

    with_classes = {name for name in NETWORK_METHODS if fits(name, classes, 10) or fits(name, classes, None)}
    assert fitting == with_classes
    assert not fits("fedavg", {"name": "u-net", "width": 4} | both, 1)  # no layer depends on outputs
    assert {"global-layers", "fedavg", "fedprox", "fedper", "player-fl"} <= fitting
    assert ("fedbn" in fitting) == has_normalisation


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": {"name": "convolutional", "image": SIZE, "blocks": [4], "hidden": []}}, "the network convol"),
        ({"architecture": {"name": "dense", "hidden": [4]}}, "network dense, but this site's outcome is a mask"),
        ({"architecture": U_NET | {"image": {"height": 4, "width": 16}}}, "reads images of 4 by 16 pixels, grey"),
    ],
)
def test_a_plan_that_draws_no_mask_of_this_size_is_refused(
    changes: dict[str, Any], words: str, hospitals: list[HospitalData], tmp_path: Path
) -> None:
    """A network of classes does not pass for one of masks, nor does a mask of equally many pixels."""
    plan = make_plan(method={"name": "local"}, **changes)
    hospital = read_hospital(configuration_of(hospitals[0], tmp_path / "one"))

    with pytest.raises(ConfigurationError, match=words):
        check_fit(plan, prepare_rows(*table_for_run(hospital, None))[0], plan.site_names[0])


def test_the_rows_of_a_hospital_are_real_images_with_masks(hospitals: list[HospitalData], tmp_path: Path) -> None:
    """Each mask has the bright pixels of its image; some masks are empty."""
    dataset, preprocessing = prepare_rows(
        *table_for_run(read_hospital(configuration_of(hospitals[0], tmp_path / "one")), None)
    )
    scale = preprocessing.pixel_scales[0]

    part = dataset.training
    brightness = part.features * scale.deviation + scale.mean

    np.testing.assert_array_equal(part.targets, brightness > 8.5 * 15 / 255)
    assert 0 < (part.targets.sum(axis=1) == 0).sum() < len(part) / 4
