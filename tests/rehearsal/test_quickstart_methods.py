"""The option --method: any method, several at once, settings. Each becomes a plan that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from protos.errors import ConfigurationError
from protos.plan.methods import NETWORK_METHODS
from protos.plan.plan import Plan, plan_from_json
from quickstart.federation import Rehearsal, prepare
from quickstart.hospitals import HospitalData
from quickstart.plans import plan_of, studies_of
from tests.rehearsal.study import made_up_identities

AROUND = {
    "schedule": {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 5},
    "start": {"name": "equal", "seed": 0},
    "sites": [{"name": name, "identity": identity} for name, identity in made_up_identities().items()],
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> list[HospitalData]:
    """Three hospitals with columns of their own."""
    folder = tmp_path_factory.mktemp("hospitals")
    return [_hospital(folder, f"hospital-{number}", ["age", f"value{number}", f"other{number}"]) for number in range(3)]


def _hospital(folder: Path, name: str, columns: list[str]) -> HospitalData:
    target = {"name": "died", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
    features = [{"name": column, "role": "feature", "type": "numeric"} for column in columns]
    contract = folder / f"{name}.yaml"
    contract.write_text(yaml.safe_dump({"format": {"header": True}, "columns": [*features, target]}))
    return HospitalData(name, folder / "unread.csv", contract)


def plan_for(words: str, hospitals: list[HospitalData]) -> Plan:
    """The plan that the quickstart writes for a method as a person names it."""
    (study,) = studies_of([words])
    return plan_from_json(json.dumps(plan_of(study, hospitals, latent=8, is_masked=True) | AROUND))


@pytest.mark.parametrize("words", [*NETWORK_METHODS, "{name: fedprox, strength: 0.5}"])
def test_every_method_gets_a_plan_that_fits(words: str, hospitals: list[HospitalData]) -> None:
    """Network, columns and outputs follow from the method and its settings; no list of names has to be kept."""
    assert plan_for(words, hospitals).method_name in words


def test_an_impossible_plan_is_refused_before_anything_is_made(hospitals: list[HospitalData], tmp_path: Path) -> None:
    """More layers than the network has."""
    method = "{name: player-fl, layers: 99}"
    rehearsal = Rehearsal(
        folder=tmp_path, hospitals=hospitals, methods=("fedavg", method), rounds=2, seed=0, is_masked=True
    )

    with pytest.raises(ConfigurationError, match="is impossible in this plan"):
        prepare(rehearsal)

    assert not list(tmp_path.iterdir())
