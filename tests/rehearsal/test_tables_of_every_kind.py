"""Federations on images, and on concepts of four clinics. Contracts, readers, networks, training, gates, masks of sums
and the engine are those of production, in one process and in made-up time. Only the sockets between the processes are
missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from quickstart.dirichlet_shares import CONCENTRATION, FEWEST_OF_CLASS, deal
from quickstart.hospitals import HospitalData, uci_hospitals
from quickstart.image_hospitals import SIZE, digit_hospitals
from quickstart.plans import plan_of, studies_of
from site_agent.hospital import read_hospital
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.run_table import table_for_run
from site_agent.trainer.fitting import check_fit
from site_agent.trainer.study import Study
from tests.federation import Federation, identity_of
from tests.for_each import for_each
from tests.hostile.real_trainers import RealTrainer
from tests.laws.masked_runs import decisions, unmasked
from tests.rehearsal.made_up_time import play
from tests.site_agent.trainer.sites import LOOSE_POLICY, NAMES, fingerprint, make_plan, make_site

Columns = list[dict[str, Any]]
DENSE = {"name": "dense", "hidden": [16]}
ADAMW = {"name": "adamw", "learning_rate": 0.01}


# Images: scikit-learn's digits.
CONVOLUTIONAL = {"name": "convolutional", "image": SIZE, "blocks": [4, 4], "hidden": [8]}
IMAGE_NAMES = tuple(f"hospital-{number}" for number in range(1, 4))


def put_images(folder: Path, hospital: HospitalData) -> Path:
    """The file of a hospital whose images exist."""
    folder.mkdir(parents=True)
    data = {"table": str(hospital.table), "contract": str(hospital.contract), "split": {"seed": 0}}
    training = {"simple_models": False, "siloed_baseline": False, "draws": "published"}
    content = {"site": hospital.name, "state": "state", "policy": LOOSE_POLICY, "training": training}
    content["data"] = data | {"unaccepted_warnings": "tell"}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    return folder / "hospital.yaml"


Images = dict[str, HospitalData]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Hospitals with images."""
    return {one.name: one for one in digit_hospitals(len(IMAGE_NAMES), tmp_path_factory.mktemp("digits"), seed=0)}


Put = Callable[[Path, str, Images], Path]


@dataclass(frozen=True)
class Kind:
    """Tables of one kind: how a hospital's files are put, the hospitals' names, and keys of the plan."""

    put: Put
    names: tuple[str, ...]
    keys: dict[str, Any] = field(default_factory=dict)

    def plan(self, epochs: int = 1, **changes: Any) -> Plan:
        """A masked plan of these hospitals, fedavg unless a method is named."""
        around = {
            "method": {"name": "fedavg"},
            "schedule": {"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 5}, "optimiser": ADAMW,
            "sites": [{"name": name, "identity": identity_of(name)} for name in self.names],
            "masking": {"required": True}, "checkpoint": "latest",
        }  # fmt: skip
        return make_plan(**(around | self.keys | changes))


def _of_images(**keys: Any) -> Kind:
    return Kind(lambda folder, site, images: put_images(folder, images[site]), IMAGE_NAMES, keys)


DIGITS = _of_images(architecture=CONVOLUTIONAL, outputs=10)
KINDS = {
    "images": DIGITS,
    "images, some layers private": _of_images(
        architecture=CONVOLUTIONAL, outputs=10, method={"name": "player-fl"}
    ),
}  # fmt: skip


def read(configuration: Path) -> tuple[Dataset, Preprocessing]:
    """A hospital's rows as its trainer reads them."""
    return prepare_rows(*table_for_run(read_hospital(configuration)))


async def trained(folder: Path, kind: Kind, plan: Plan, images: Images) -> tuple[Federation, dict[str, Study]]:
    """A run of a plan to its end."""
    network, trainers = Federation(folder, plan), dict[str, RealTrainer]()
    for site in kind.names:
        trainers[site] = RealTrainer(site, kind.put(folder / "files" / site, site, images))
        network.add(site, trainer=trainers[site], secure_aggregation="not-required")
    await network.finish()
    assert {name: site.error for name, site in network.sites.items() if site.error is not None} == {}
    await network.close()
    return network, {name: one.study for name, one in trainers.items() if one.study is not None}


async def _masks_change_no_bit(folder: Path, kind: Kind, plan: Plan, images: Images) -> None:
    masked, with_masks = await trained(folder / "masked", kind, plan, images)
    plain, without = await trained(folder / "plain", kind, unmasked(plan), images)

    released = [site.records("contribution_released") for site in masked.sites.values()]
    assert all(records and all(record["masked"] for record in records) for records in released)
    assert masked.vector().tobytes() == plain.vector().tobytes()
    assert decisions(masked) == decisions(plain)
    models = {name: fingerprint(one.conclude()) for name, one in with_masks.items()}
    assert models == {name: fingerprint(one.conclude()) for name, one in without.items()}
    assert len(models) == len(kind.names)


@pytest.mark.parametrize("name", KINDS)
def test_tables_of_every_kind_are_trained_on_and_masks_change_no_bit(tmp_path: Path, name: str, images: Images) -> None:
    """Equal parameters, decisions and models at all hospitals, masked and unmasked."""
    play(_masks_change_no_bit(tmp_path, KINDS[name], KINDS[name].plan(), images))


def test_concepts_of_four_clinics_are_trained_on_and_masks_change_no_bit(tmp_path: Path) -> None:
    """Each clinic's columns become the plan's concepts, and cholesterol is of the three clinics that measured it."""
    clinics = {one.name: one for one in uci_hospitals(tmp_path)}
    (study,) = studies_of(["federated-prior"])
    concepts = plan_of(study, list(clinics.values()), latent=8, is_masked=True)["concepts"]
    keys = {"concepts": concepts, "architecture": DENSE, "outputs": 1}
    kind = Kind(lambda folder, site, _: put_images(folder, clinics[site]), tuple(sorted(clinics)), keys)
    plan = kind.plan()
    assert len(plan.concepts) == 12
    recorded = {concept.name: concept.recorded_by for concept in plan.concepts}
    assert recorded["total-cholesterol"] == ("cleveland", "hungarian", "va")

    play(_masks_change_no_bit(tmp_path / "runs", kind, plan, {}))


# Plans that do not fit a table

OF_COLUMNS = Kind(
    lambda folder, _, __: make_site(folder, columns=slice(0, 6)), NAMES, {"method": {"name": "global-layers"}}
)
FITTING: dict[str, tuple[Kind, dict[str, Any]]] = {
    "images of their size": (DIGITS, {}),
    "a table of numbers": (OF_COLUMNS, {}),
}
REFUSED: dict[str, tuple[Kind, dict[str, Any]]] = {
    "images in colour": (DIGITS, {"architecture": CONVOLUTIONAL | {"image": SIZE | {"channels": 3}}}),
    "as many pixels in another shape": (
        DIGITS, {"architecture": CONVOLUTIONAL | {"image": {"height": 4, "width": 16}}},
    ),
    "images of a table without": (
        OF_COLUMNS, {"architecture": CONVOLUTIONAL | {"image": {"height": 2, "width": 3}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FITTING, *REFUSED])
def test_a_plan_for_another_table_is_refused(tmp_path: Path, name: str, images: Images) -> None:
    """Sizes, shapes and columns must be those of the table."""
    kind, changes = (FITTING | REFUSED)[name]
    site = kind.names[0]
    dataset = read(kind.put(tmp_path / "one", site, images))[0]
    plan = kind.plan(**changes)

    if name in FITTING:
        check_fit(plan, dataset, site)
    else:
        with pytest.raises(ConfigurationError):
            check_fit(plan, dataset, site)


# Methods that fit a network

SETTINGS = {
    "fedprox": {"strength": 0.1}, "moon": {"strength": 1.0}, "ditto": {"strength": 0.1}, "apfl": {"share": 0.4},
    "pfedme": {"inner_steps": 2, "strength": 1.0, "rate": 0.5},
}  # fmt: skip


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
