"""A federation of containers: the images, and each container with what its Quadlet unit says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from quickstart.hospitals import dealt_hospitals
from tests.institutions.conftest import ROOT
from tests.institutions.federation import COORDINATOR_FILE, EXAMPLE, HOSPITAL_FILE, HOSPITALS, SITE
from tests.institutions.machines import wait_until
from tests.institutions.runbook import File, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

FOLDER: Final = ROOT / "deploy/container"
# Also where control groups are of the old kind, and nobody may raise a limit.
PODMAN: Final = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
RUN: Final = ("run", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
FLAGS: Final = {"GroupAdd": "--group-add", "DropCapability": "--cap-drop"}
PKI: Final = "/usr/lib/global-layers/coordinator/bin/pki"
OFFICE_STATE: Final = "/var/lib/global-layers/coordinator"
PATIENTS: Final = "/var/lib/global-layers/patients"


@dataclass(frozen=True)
class Containers:
    """Containers of one test, in a store of their own. Each institution has its files in a folder with its name."""

    folder: Path

    def podman(self, *words: object, program: tuple[str, ...] = PODMAN) -> str:
        """Run podman, and return what it prints."""
        store = ("--root", self.folder / "store", "--runroot", self.folder / "runs")
        command = [str(word) for word in (*program, *store, *words)]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, unit: str, where: str, *words: str, root: bool = False, first: tuple[str, ...] = ("--rm",)) -> str:
        """Run a command with what a unit allows, or the unit's own. Root is who approves, and keeps its rights."""
        file = (FOLDER / f"{unit}.container").read_text()
        lines = [line.partition("=")[::2] for line in file.splitlines() if "=" in line and not line.startswith("#")]
        said, options, users = dict(lines), list[str](), list[str]()
        for key, value in lines:
            if key == "Volume":
                mine = re.sub("^/etc/global-layers", str(self.folder / where), value)
                mine = re.sub(f"^{PATIENTS}", str(self.folder / where / "patients"), mine)
                mine = mine if mine.startswith("/") else f"{where}-{mine}"
                options += ["--volume", mine.removesuffix(":ro") if root else mine]
            elif key in FLAGS and not (root and key == "DropCapability"):
                options += [FLAGS[key], value]
            elif key in ("User", "Group"):
                users.append(value)
        assert {said["ReadOnly"], said["NoNewPrivileges"]} == {"true"}
        options += ["--read-only", "--security-opt", "no-new-privileges", "--user", "root" if root else ":".join(users)]
        # On loopback the office is this computer.
        options += ["--network", said.get("Network", "host")]
        return self.podman(*RUN, *first, *options, said["Image"], *(words or said["Exec"].split()))

    def start(self, unit: str, where: str) -> None:
        """Start the container of a unit."""
        self.run(unit, where, first=("--detach", "--name", f"{where}-{unit}"))

    def await_event(self, name: str, event: str) -> None:
        """Wait until the log of a hospital's gate has an event."""
        wait_until(lambda: event in self.podman("logs", f"{name}-site-gate"), f"{event} at {name}")


@pytest.fixture(scope="module")
def containers(packages: Path, debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Both images, made from the packages."""
    if missing := [one for one in ("podman", "buildah", "runc") if shutil.which(one) is None]:
        pytest.skip(f"{', '.join(missing)} not installed, so no image is built")
    made = Containers(tmp_path_factory.mktemp("containers"))
    made.podman("import", "--quiet", debian, "localhost/base")
    try:
        made.podman(*RUN, "--rm", "--network", "none", "localhost/base", "true")
    except AssertionError as refused:
        pytest.skip(f"no container can be started here: {refused}")
    here = made.folder / "packages"
    here.mkdir()
    for package in packages.glob("*-1_*.deb"):
        (here / package.name).hardlink_to(package)
    for name in ("coordinator", "site"):
        words = ("--isolation", "chroot", "--layers=false", "--build-arg", "BASE=localhost/base", "--target", name)
        words += ("--file", str(FOLDER / "Containerfile"), "--tag", f"global-layers-{name}")
        made.podman("build", *words, here, program=("buildah",))
    yield made
    made.podman("rm", "--all", "--force", "--time", "1")
    made.podman("volume", "rm", "--all", "--force")
    made.podman("rmi", "--all", "--force")


def test_a_federation_of_containers_trains(containers: Containers) -> None:
    """The runbook's first federation. Gates and trainers have no device but loopback, and none sees another's files."""
    files = {step.path: step.content for step in steps("First federation") if isinstance(step, File)}
    office, dealt = containers.folder / "office", containers.folder / "dealt"
    office.mkdir(), dealt.mkdir()
    (office / "coordinator.yaml").write_text(files[COORDINATOR_FILE].replace("0.0.0.0:", "127.0.0.1:1"))
    authority = ("--directory", f"{OFFICE_STATE}/authority")
    places = ("--address", "localhost:18443", "--enrolment-address", "localhost:18444")
    containers.run("coordinator", "office", PKI, "init", "--federation", "heart", *places, *authority)
    containers.start("coordinator", "office")
    plan = files["/etc/global-layers/plan.yaml"]
    for name, data in zip(HOSPITALS, dealt_hospitals(len(HOSPITALS), dealt, seed=0), strict=True):
        folder, invitation = containers.folder / name, f"{OFFICE_STATE}/{name}.invitation"
        (folder / "patients").mkdir(parents=True)
        shutil.copyfile(data.table, folder / "patients/patients.csv")
        shutil.copyfile(data.contract, folder / "patients/contract.yaml")
        containers.run("coordinator", "office", PKI, "invite", name, *authority, "--output", invitation)
        (folder / "invitation").write_text(containers.run("coordinator", "office", "cat", invitation))
        paper = files[HOSPITAL_FILE].replace(f"{SITE}/gate/{EXAMPLE}.invitation", "/etc/global-layers/invitation")
        (folder / "hospital.yaml").write_text(paper.replace(EXAMPLE, name))
        for unit in ("site-trainer", "site-gate", "site-agent"):
            containers.start(unit, name)
        containers.await_event(name, "enrolment_awaits_approval")
        said = containers.podman("exec", f"{name}-site-gate", "site-agent", "identity", "--config", HOSPITAL_FILE)
        identity = said.split()[-1]
        containers.podman("exec", "office-coordinator", PKI, "approve", name, *authority, "--fingerprint", identity)
        plan = plan.replace(f"fingerprint-of-{name}", identity)
    (office / "plan.yaml").write_text(plan)
    with (office / "coordinator.yaml").open("a") as file:
        file.write("plans: [plan.yaml]\n")
    containers.podman("restart", "office-coordinator")
    for name in HOSPITALS:
        containers.await_event(name, "approval_awaited")
        for unit in ("site-gate", "site-trainer"):
            assert containers.podman("exec", f"{name}-{unit}", "cat", "/proc/net/dev").count(":") == 1
        with pytest.raises(AssertionError, match="Permission denied"):
            containers.podman("exec", f"{name}-site-gate", "ls", PATIENTS)
        approve = ("site-agent", "approve", "--config", HOSPITAL_FILE, "--by", "A. Jones", "--yes")
        containers.run("site-gate", name, *approve, root=True)

    assert containers.podman("wait", "office-coordinator").strip() == "0"
    for name in HOSPITALS:
        containers.run("site-gate", name, "site-agent", "audit", "verify", "--config", HOSPITAL_FILE)
        assert "heart-v1" in containers.run("site-trainer", name, "ls", f"{SITE}/models")
