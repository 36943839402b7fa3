"""The service units are checked with systemd's own tools, without running them; tests/institutions runs them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from site_agent.desk.results.statistics_results import STATISTICS

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TIMERS = sorted((DEPLOY / "systemd").glob("*.timer"))
# The unit without any hardening scores 9.6. Tenths, as systemd-analyze counts them.
LARGEST_EXPOSURE = {
    "coordinator": 12, "coordinator@": 12, "coordinator-doctor": 5, "site-agent": 12, "site-agent@": 12,
    "site-gate": 5, "site-gate@": 5, "site-trainer": 7, "site-trainer@": 7, "site-doctor": 12,
    "site-directories@": 15,  # once, as root, for a moment, without network
}  # fmt: skip
GPU = DEPLOY / "examples/site-trainer-gpu.conf"
TEMPLATES = [unit for unit in UNITS if unit.stem in ("coordinator@", "site-agent@", "site-gate@", "site-trainer@")]
SERVICES = [unit for unit in UNITS if "directories" not in unit.stem]
# The differences between a service and its template for several federations.
PLACES = {
    "/etc/global-layers/hospital.yaml": "/etc/global-layers/%i/hospital.yaml",
    "/etc/global-layers/coordinator.yaml": "/etc/global-layers/%i/coordinator.yaml",
    "StateDirectory=global-layers/coordinator": "StateDirectory=global-layers/coordinators/%i",
    "coordinator: runs": "coordinator of %i: runs",
    "/var/lib/global-layers/site/": "/var/lib/global-layers/sites/%i/",
    "RuntimeDirectory=site-trainer": "RuntimeDirectory=site-trainer-%i",
    "RuntimeDirectory=site-gate": "RuntimeDirectory=site-gate-%i", "/run/site-trainer": "/run/site-trainer-%i",
    "/run/site-gate": "/run/site-gate-%i", "site-trainer.service": "site-trainer@%i.service",
    "site-gate.service": "site-gate@%i.service", "site-agent.service": "site-agent@%i.service",
    "agent: the one": "agent of %i: the one", "gate: the one": "gate of %i: the one",
    "trainer: the one": "trainer of %i: the one",
}  # fmt: skip
DIRECTORIES = "site-directories@%i.service"

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (Debian: apt install systemd), so the units are not verified",
)


def installed(folder: Path) -> Path:
    """A file system in which the units, their programs and systemd's own units are installed."""
    for unit in (*UNITS, *TIMERS):
        place = folder / "etc/systemd/system" / unit.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(unit, place)
        for program in re.findall(r"^Exec\w+=[-+!@:]*(\S+)", unit.read_text(), re.MULTILINE):
            stub = folder / program.lstrip("/")
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text("#!/bin/sh\n")
            stub.chmod(0o755)
    for systems in ("lib/systemd/system", "usr/lib/systemd/system"):
        if Path("/", systems).is_dir():
            shutil.copytree(Path("/", systems), folder / systems, symlinks=True, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a file system, which no test changes."""
    return installed(tmp_path_factory.mktemp("root"))


def _name_of(unit: Path) -> str:
    return unit.name.replace("@.", "@study.")


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze to its end."""
    command = ["systemd-analyze", "--no-pager", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@needs_systemd_analyze
@pytest.mark.parametrize("unit", [*UNITS, *TIMERS], ids=lambda unit: unit.name)
def test_systemd_finds_nothing_to_say(unit: Path, root: Path) -> None:
    """Verification prints nothing. Its exit status is not used, because it is 0 for a misspelt key."""
    done = analyze("verify", "--man=no", f"--root={root}", _name_of(unit))

    assert (done.stdout + done.stderr).strip() == ""


@needs_systemd_analyze
def test_verification_sees_a_misspelt_key(tmp_path: Path) -> None:
    """The check above can fail: one letter more in a key is reported."""
    root = installed(tmp_path)
    unit = root / "etc/systemd/system/coordinator.service"
    unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPrivilegess="))

    done = analyze("verify", "--man=no", f"--root={root}", unit.name)

    assert "NoNewPrivilegess" in done.stdout + done.stderr


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_is_barely_exposed(unit: Path, root: Path) -> None:
    """systemd's own measure of exposure does not rise above the earlier value."""
    threshold = LARGEST_EXPOSURE[unit.stem]

    done = analyze("security", "--offline=true", f"--threshold={threshold}", f"--root={root}", _name_of(unit))

    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_no_service_opens_a_device(unit: Path) -> None:
    """Without the drop-in for a graphics card no unit shows a real device to a program."""
    assert "PrivateDevices=yes" in unit.read_text().splitlines()
    assert "DeviceAllow" not in unit.read_text()


def test_the_drop_in_opens_one_card_and_nothing_else() -> None:
    """The control, the memory and the first card of one driver; no other device, no network, no writable path."""
    lines = [line for line in GPU.read_text().splitlines() if line and not line.startswith(("#", "["))]

    assert sorted(lines) == [
        "After=nvidia-persistenced.service",
        *(f"DeviceAllow=/dev/{name} rw" for name in ("nvidia-uvm", "nvidia0", "nvidiactl")),
        "PrivateDevices=no",
        "PrivateUsers=no",
        "Wants=nvidia-persistenced.service",
    ]


@pytest.mark.parametrize("name", ["site-trainer", "site-trainer@"])
def test_the_trainer_has_unix_sockets_alone(name: str) -> None:
    """The process with patients can open no connection of TCP, not even to a process of its own computer."""
    (unit,) = [unit for unit in UNITS if unit.stem == name]

    families = [line for line in unit.read_text().splitlines() if line.startswith("RestrictAddressFamilies=")]

    assert families == ["RestrictAddressFamilies=AF_UNIX"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda unit: unit.stem)
def test_a_template_is_its_service_elsewhere(template: Path) -> None:
    """Template and service differ only in paths and in the unit that makes the folders."""
    service = template.with_name(template.name.replace("@", ""))
    words = service.read_text()
    for here, there in PLACES.items():
        words = words.replace(
            f"{here}\n" if here.startswith(("State", "Runtime")) else here,
            there + "\n" * here.startswith(("State", "Runtime")),
        )

    lines = [line for line in template.read_text().splitlines() if DIRECTORIES not in line]

    assert lines[2:] == words.splitlines()


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_what_no_start_can_mend_is_not_started_again(unit: Path) -> None:
    """Refused (77) and configuration (78) prevent a restart, and the user is never root."""
    service = settings(unit)["Service"]

    if service["Type"] == "oneshot":  # its timer starts it the next day
        assert "Restart" not in service
    else:
        assert service["RestartPreventExitStatus"] == "77 78"
    assert service["User"] not in ("", "root")


def test_only_the_agent_has_a_network() -> None:
    """The kernel removes the network from the processes with the patients and with the keys."""
    without = [unit.stem for unit in UNITS if settings(unit)["Service"].get("PrivateNetwork") == "yes"]

    assert " ".join(without) == "coordinator-doctor site-directories@ site-gate site-gate@ site-trainer site-trainer@"


def test_no_service_but_the_gate_may_write_the_audit_log() -> None:
    """The log is in the gate's folder, which no other service of a site may write, and most cannot see."""
    for unit in (unit for unit in SERVICES if unit.stem.startswith("site-")):
        lines = unit.read_text().splitlines()
        writable, hidden = (
            [place.lstrip("-") for line in lines if line.startswith(key) for place in line.split("=", 1)[1].split()]
            for key in ("ReadWritePaths=", "InaccessiblePaths=")
        )
        is_gate = unit.stem.startswith("site-gate")
        assert any(place.endswith("/gate") for place in writable) is is_gate, unit.stem
        assert any(place.endswith("/gate") for place in hidden) is not is_gate, unit.stem
        assert all(place.count("/") > 4 for place in writable), unit.stem  # never a folder above


def test_the_trainer_may_write_where_its_program_writes() -> None:
    """Each folder that the trainer's sources name is made for it, and is hidden from the others."""
    sources = "".join(file.read_text() for file in (DEPLOY.parent / "site_agent/trainer").rglob("*.py"))
    named = set(re.findall(r"state(?:_path)? / \"(\w+)\"", sources)) - {"approvals"} | {STATISTICS}
    folders = (DEPLOY / "systemd/tmpfiles.d/global-layers-site.conf").read_text()
    made = set(re.findall(r"/site/(\w+) +0700 site-trainer", folders))

    def listed(kind: str, key: str) -> set[str]:
        lines = re.findall(rf"^{key}=.*", (DEPLOY / f"systemd/site-{kind}.service").read_text(), re.MULTILINE)
        return set(re.findall(r"/site/(\w+)", " ".join(lines)))

    assert {"models", "saves"} <= named <= made
    assert listed("trainer", "ReadWritePaths") == made - {"data"}  # a person fills it with `site-agent data`
    assert listed("agent", "InaccessiblePaths") == made | {"gate", "approvals"}
    assert listed("gate", "InaccessiblePaths") == made | {"agent"}
    assert listed("trainer", "InaccessiblePaths") == {"agent", "gate"}
    assert listed("agent", "ReadWritePaths") == {"agent"}
    assert listed("gate", "ReadWritePaths") == {"gate"}


def test_no_service_may_write_approvals() -> None:
    """The folder belongs to root, its group may read, and no unit lists it as writable."""
    folders = (DEPLOY / "systemd/tmpfiles.d/global-layers-site.conf").read_text()

    assert re.search(r"/site/approvals +0750 root +global-layers ", folders)
    assert not any("approvals" in settings(unit)["Service"].get("ReadWritePaths", "") for unit in UNITS)


def test_each_socket_has_one_caller() -> None:
    """Only the agent is in the group of the gate's socket, and only the gate in the group of the trainer's."""
    groups = {
        kind: set(settings(DEPLOY / f"systemd/site-{kind}.service")["Service"].get("SupplementaryGroups", "").split())
        for kind in ("agent", "gate", "trainer")
    }

    assert [kind for kind, names in groups.items() if "site-gate-socket" in names] == ["agent"]
    assert [kind for kind, names in groups.items() if "site-trainer-socket" in names] == ["gate"]


@pytest.mark.parametrize("unit", sorted((DEPLOY / "container").glob("*.container")), ids=lambda unit: unit.stem)
def test_a_container_has_the_power_of_its_service(unit: Path) -> None:
    """It has the same user, groups and network, and writes below the same folders."""
    service = DEPLOY / f"systemd/{unit.stem}.service"
    container, own = settings(unit)["Container"], settings(service)["Service"]
    assert (container["User"], container.get("Group", container["User"])) == (own["User"], own["Group"])
    groups = re.findall("^GroupAdd=(.*)", unit.read_text(), re.MULTILINE)
    assert sorted(groups) == sorted(own.get("SupplementaryGroups", "").split())
    assert (container.get("Network") == "none") is (own.get("PrivateNetwork") == "yes")
    writable = re.findall(r"^Volume=\S+:/var/lib/global-layers/(\S+?)$", unit.read_text(), re.MULTILINE)
    allowed = own.get("StateDirectory", "") + "".join(
        re.findall("^ReadWritePaths=.*", service.read_text(), re.MULTILINE)
    )
    assert all(folder in allowed for folder in writable if not folder.endswith((":ro", "site/data")))


def settings(unit: Path) -> configparser.ConfigParser:
    """The unit's sections; of a key that stands several times, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    parser.read(unit)
    return parser
