"""A federation whose coordinator serves in a process, and one hospital with a small table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
import yaml

from tests.coordinator.test_serve import Place, place_in
from tests.site_agent.test_cli import CONTRACT, HOSPITAL


@dataclass(frozen=True)
class Scene:
    """A coordinator's place and a hospital's."""

    place: Place
    hospital: Path

    def change(self, **keys: object) -> None:
        """Write keys into hospital.yaml."""
        self.hospital.write_text(yaml.safe_dump(yaml.safe_load(self.hospital.read_text()) | keys))


def scene_in(folder: Path) -> Scene:
    """Three members; hospital a has its keys, its table is in order and its policy allows the plan."""
    place = place_in(folder)
    home = folder / "hospital"
    (home / "state").mkdir(mode=0o700, parents=True)
    shutil.copytree(folder / "a", home / "state" / "agent")
    (home / "state" / "gate").mkdir(mode=0o700)
    (home / "state" / "agent" / "identity.key").rename(home / "state" / "gate" / "identity.key")
    policy = HOSPITAL["policy"] | {"secure_aggregation": "not-required"}
    document = {name: value for name, value in HOSPITAL.items() if name != "invitation"}
    document |= {"coordinator": place.address, "policy": policy}
    (home / "hospital.yaml").write_text(yaml.safe_dump(document))
    (home / "contract.yaml").write_text(yaml.safe_dump(CONTRACT, sort_keys=False))
    rows = [f"P{number},{20 + number % 60},{'yes' if number % 3 else 'no'}" for number in range(60)]
    (home / "table.csv").write_text("\n".join(["patient,age,ill", *rows]) + "\n")
    return Scene(place, home / "hospital.yaml")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene of a test's own."""
    yield scene_in(tmp_path)
    structlog.reset_defaults()
