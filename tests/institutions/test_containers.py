"""A federation of containers: on booted systems of Debian 13, podman makes services of the Quadlet units."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quickstart.hospitals import dealt_hospitals
from tests.institutions.conftest import ROOT, mask
from tests.institutions.federation import (
    COORDINATOR_FILE,
    EXAMPLE,
    HOSPITAL_FILE,
    HOSPITALS,
    OFFICE,
    OFFICE_NAME,
    SITE,
    together,
)  # fmt: skip
from tests.institutions.machines import Institutions, Machine, wait_until
from tests.institutions.runbook import File, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

FOLDER: Final = ROOT / "deploy/container"
UNITS: Final = ("site-trainer", "site-gate", "site-agent")
OFFICE_STATE: Final = "/var/lib/global-layers/coordinator"
AUTHORITY: Final = ("--directory", f"{OFFICE_STATE}/authority")
PKI: Final = ("podman", "run", "--rm", "--volume", f"coordinator:{OFFICE_STATE}", "global-layers-coordinator", "pki")
PATIENTS: Final = "/var/lib/global-layers/patients"
STORAGE: Final = """[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
[storage.options]
additionalimagestores = ["/srv/images"]
"""
# A container in a container: layers need a disk that is none itself, and groups of processes may have no such limit.
ARGUMENTS: Final = ("--capability=all", "--system-call-filter=@keyring bpf", "--tmpfs=/var/lib/containers")
NO_LIMIT: Final = "[containers]\npids_limit = 0\n"


def prepare(root: Path, name: str) -> None:
    """Lay down the units, as the page says."""
    mask(root)
    (root / "etc/containers/systemd").mkdir(parents=True, exist_ok=True)
    (root / "etc/containers/storage.conf").write_text(STORAGE)
    (root / "etc/containers/containers.conf").write_text(NO_LIMIT)
    for unit in ("coordinator",) if name == OFFICE else UNITS:
        shutil.copy(FOLDER / f"{unit}.container", root / "etc/containers/systemd")


@pytest.fixture(scope="module")
def machines(
    packages: Path, debian: Path, trixie: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Machine]]:
    """An office and three hospitals with podman, which have both images, made from the packages."""
    if missing := [one for one in ("podman", "buildah") if shutil.which(one) is None]:
        pytest.skip(f"{', '.join(missing)} not installed, so no image is built")
    folder, here = tmp_path_factory.mktemp("containers"), tmp_path_factory.mktemp("packages")
    store = ("--root", str(folder / "images"), "--runroot", str(folder / "runs"))
    for package in packages.glob("*-1_*.deb"):
        shutil.copy(package, here)
    subprocess.run(["podman", *store, "import", "--quiet", debian, "localhost/base"], check=True)
    for name in ("coordinator", "site"):
        words = ("--isolation", "chroot", "--layers=false", "--build-arg", "BASE=localhost/base", "--target", name)
        words += ("--file", str(FOLDER / "Containerfile"), "--tag", f"global-layers-{name}", str(here))
        subprocess.run(["buildah", *store, "build", *words], check=True)
    arguments = [*ARGUMENTS, f"--bind-ro={folder / 'images'}:/srv/images"]
    with Institutions(
        lambda _: trixie, tmp_path_factory.mktemp("booted"), prepare=prepare, further_names={OFFICE: OFFICE_NAME},
        arguments=lambda _: arguments,
    ) as institutions:  # fmt: skip
        institutions.boot(OFFICE, *HOSPITALS)
        together(lambda one: one.run("mount", "-o", "remount,bind,rw", "/proc/sys"), institutions.machines.values())
        yield institutions.machines
    subprocess.run(["podman", *store, "rmi", "--all", "--force"], check=True)


def test_a_federation_of_containers_trains(machines: dict[str, Machine], tmp_path: Path) -> None:
    """The runbook's first federation. Gates and trainers have no device but loopback, and none sees another's files.
    Services that are stopped, restarted or killed during the study go on with it."""
    files = {step.path: step.content for step in steps("First federation") if isinstance(step, File)}
    commands = re.findall("^podman .*$", (ROOT / "docs/hospital.md").read_text(), re.MULTILINE)
    office, hospitals = machines[OFFICE], [machines[name] for name in HOSPITALS]
    plan = files["/etc/global-layers/plan.yaml"].replace("epochs: 6", "epochs: 200")

    def await_event(hospital: Machine, event: str) -> None:
        wait_until(lambda: event in hospital.journal("site-gate"), f"{event} at {hospital.name}")

    office.run(*PKI, "init", "--federation", "heart", "--address", f"{OFFICE_NAME}:8443",
               "--enrolment-address", f"{OFFICE_NAME}:8444", *AUTHORITY)  # fmt: skip
    office.place(COORDINATOR_FILE, files[COORDINATOR_FILE].encode())
    office.run("systemctl", "start", "coordinator")
    for hospital, data in zip(hospitals, dealt_hospitals(len(HOSPITALS), tmp_path, seed=0), strict=True):
        for path in (data.table, data.contract):
            name = "patients.csv" if path == data.table else "contract.yaml"
            hospital.place(f"{PATIENTS}/{name}", path.read_bytes(), owner="64703:64703", mode="0600")
        invitation = f"{OFFICE_STATE}/{hospital.name}.invitation"
        office.run(*PKI, "invite", hospital.name, *AUTHORITY, "--output", invitation)
        content = office.run("podman", "exec", "coordinator", "cat", invitation)
        hospital.place("/etc/global-layers/invitation", content.encode(), owner="64702:64702", mode="0600")
        paper = files[HOSPITAL_FILE].replace(f"{SITE}/gate/{EXAMPLE}.invitation", "/etc/global-layers/invitation")
        hospital.place(HOSPITAL_FILE, paper.replace(EXAMPLE, hospital.name).encode())
        hospital.run("systemctl", "start", "site-gate")
    for hospital in hospitals:
        await_event(hospital, "enrolment_awaits_approval")
        words = ("podman", "exec", "site-gate", "site-agent", "identity", "--config", HOSPITAL_FILE)
        identity = hospital.run(*words).split()[-1]
        office.run(
            "podman", "exec", "coordinator", "pki", "approve", hospital.name, *AUTHORITY, "--fingerprint", identity
        )
        plan = plan.replace(f"fingerprint-of-{hospital.name}", identity)
    office.place("/etc/global-layers/plan.yaml", plan.encode())
    office.place(COORDINATOR_FILE, (files[COORDINATOR_FILE] + "plans: [plan.yaml]\n").encode())
    office.run("systemctl", "restart", "coordinator")
    for hospital in hospitals:
        await_event(hospital, "approval_awaited")
        for unit in ("site-gate", "site-trainer"):
            assert hospital.run("podman", "exec", unit, "cat", "/proc/net/dev").count(":") == 1
        with pytest.raises(AssertionError, match="Permission denied"):
            hospital.run("podman", "exec", "site-gate", "ls", PATIENTS)
        for command in commands:
            hospital.run(*command.replace(" -it", "").replace('"A. Jones"', "A.Jones --yes").split())

    def closed() -> int:
        return office.journal("coordinator").count("round_closed")

    wait_until(lambda: closed() > 1, "the study is under way")
    office.run("systemctl", "kill", "--signal", "KILL", "coordinator")
    hospitals[0].run("systemctl", "restart", "site-gate")
    hospitals[1].run("systemctl", "stop", "site-trainer")
    assert 1 < closed() < 200
    hospitals[1].run("systemctl", "start", "site-trainer")
    wait_until(lambda: office.property("coordinator", "ActiveState") == "inactive", "the study is over")
    assert closed() >= 200
    for hospital in hospitals:
        hospital.run("systemctl", "start", *UNITS[:2])
        assert "heart-v1" in hospital.run("podman", "exec", "site-trainer", "ls", f"{SITE}/models")
        hospital.run("podman", "exec", "site-gate", "site-agent", "audit", "verify", "--config", HOSPITAL_FILE)
