"""A federation across booted institutions: real systemd, the built packages, and everything that goes wrong.

The tests stand in the order of a federation's life and share it; each leaves it under way for the next one.
Run them with `tests/run.sh -m slow tests/institutions`, as root.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.institutions.federation import AUTHORITY, COORDINATOR_FILE, HOSPITAL_FILE, HOSPITALS, SITE, Federation
from tests.institutions.machines import Machine, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

SERVICES = [
    ("coordinator", "coordinator"),
    *((name, unit) for name in HOSPITALS[:1] for unit in ("site-agent", "site-trainer")),
]


def restarted(machine: Machine, unit: str, before: str) -> bool:
    """Whether a unit runs with another main process than before."""
    now = machine.property(unit, "MainPID")
    return now not in ("0", before) and machine.property(unit, "ActiveState") == "active"


def test_a_masked_study_is_trained_to_the_end(federation: Federation) -> None:
    """Installed, enrolled and approved institutions train masked; coordinator and hospitals keep what they should."""
    federation.goes_on(by=1)  # the second study begins when the first is over

    folder = "/var/lib/global-layers/coordinator/state/runs"
    (run,) = [name for name in federation.coordinator.run("ls", folder).split() if name.startswith("first-")]
    record = json.loads(federation.coordinator.run("cat", f"{folder}/{run}/record.json"))
    assert record["is_complete"]
    assert record["masked"]
    for name in HOSPITALS:
        reports = federation.machines[name].run("ls", f"{SITE}/reports", user="site-trainer")
        assert f"{run}.json" in reports


def test_hospitals_listen_nowhere_and_drop_what_comes_in(federation: Federation) -> None:
    """No hospital has an open port, and a call from the coordinator's machine gets no answer."""
    probe = "import socket, sys; s = socket.socket(); s.settimeout(2); sys.exit(s.connect_ex((sys.argv[1], 22)) != 11)"

    for name in HOSPITALS:
        machine = federation.machines[name]
        assert machine.run("ss", "--no-header", "--listening", "--tcp", "--udp") == ""
        federation.coordinator.run("python3", "-c", probe, machine.address)


def test_the_processes_are_parted(federation: Federation) -> None:
    """The trainer sees no network interface but its own loopback, and each process runs as its own user."""
    hospital = federation.hospital(1)
    trainer, agent = (hospital.property(unit, "MainPID") for unit in ("site-trainer", "site-agent"))

    seen = hospital.run("nsenter", "-t", trainer, "-n", "ip", "-brief", "link")

    assert [line.split()[0] for line in seen.splitlines()] == ["lo"]
    assert hospital.run("stat", "-c", "%U", f"/proc/{trainer}") == "site-trainer"
    assert hospital.run("stat", "-c", "%U", f"/proc/{agent}") == "site-agent"
    # Root looks with each process's own eyes: what is the other's is not there, whoever asks.
    assert hospital.run("nsenter", "-t", agent, "-m", "ls", f"{SITE}/models") == ""
    assert hospital.run("nsenter", "-t", trainer, "-m", "ls", f"{SITE}/keys") == ""
    assert hospital.run("ls", f"{SITE}/models", user="site-trainer") != ""
    assert hospital.run("ls", f"{SITE}/keys", user="site-agent") != ""


@pytest.mark.parametrize(("name", "unit"), SERVICES, ids=[unit for _, unit in SERVICES])
def test_a_killed_service_comes_back_and_the_study_goes_on(federation: Federation, name: str, unit: str) -> None:
    """After kill -9 systemd starts the service again, and further rounds are made."""
    machine = federation.machines[name]
    before = machine.property(unit, "MainPID")

    machine.run("kill", "-9", before)

    wait_until(lambda: restarted(machine, unit, before), f"{unit} is back", seconds=60)
    federation.goes_on()


@pytest.mark.parametrize(("name", "unit"), SERVICES[:2], ids=[unit for _, unit in SERVICES[:2]])
def test_a_service_that_hangs_is_started_again(federation: Federation, name: str, unit: str) -> None:
    """The watchdog ends a process that is stopped, the journal says so, and further rounds are made."""
    machine = federation.machines[name]
    before = machine.property(unit, "MainPID")

    machine.run("kill", "-STOP", before)

    wait_until(lambda: restarted(machine, unit, before), f"{unit} is back", seconds=60)
    assert "Watchdog timeout" in machine.journal(unit)
    federation.goes_on()


def test_a_hospital_that_reboots_comes_back(federation: Federation) -> None:
    """After a reboot the services start by themselves, and further rounds are made."""
    hospital = federation.hospital(1)
    before = hospital.leader()

    hospital.run("systemctl", "reboot", "--no-block")

    wait_until(lambda: hospital.process.poll() is None and _is_another(hospital, before), "rebooted", seconds=60)
    wait_until(hospital.is_up, "booted again", seconds=60)
    federation.goes_on()


def test_the_coordinators_certificate_is_renewed(federation: Federation) -> None:
    """After `pki renew` and a restart every hospital accepts the new certificate, and further rounds are made."""
    office = federation.coordinator
    before = office.run("sha256sum", f"{AUTHORITY}/coordinator.crt")

    said = office.run("pki", "renew", "--directory", AUTHORITY, user="coordinator")
    office.run("systemctl", "restart", "coordinator")

    assert "valid until" in said
    assert office.run("sha256sum", f"{AUTHORITY}/coordinator.crt") != before
    federation.goes_on()


def test_a_hospital_is_upgraded_during_a_study(federation: Federation) -> None:
    """An upgrade keeps the hospital's file and its state, restarts what ran, and further rounds are made."""
    hospital = federation.hospital(2)
    kept = ("sha256sum", HOSPITAL_FILE, f"{SITE}/keys/tls.key", "/etc/systemd/system/site-agent.service.d/address.conf")
    hospital.run("sh", "-c", "echo '# of this hospital' >> /etc/systemd/system/site-agent.service.d/address.conf")
    before = hospital.run(*kept)

    newer = "dpkg --force-unsafe-io --install /srv/packages/global-layers-site_*-2_*.deb"
    hospital.run("sh", "-c", newer, seconds=300)

    assert hospital.run("dpkg-query", "--show", "--showformat", "${Version}", "global-layers-site").endswith("-2")
    assert hospital.run(*kept) == before
    federation.goes_on()


def test_a_downgrade_is_refused(federation: Federation) -> None:
    """dpkg does not put the older package in the newer one's place, says why, and the services go on."""
    hospital = federation.hospital(2)

    older = "dpkg --force-unsafe-io --install /srv/packages/global-layers-site_*-1_*.deb"
    said = hospital.run("sh", "-c", older, may_fail=True, seconds=300)

    assert "is older" in said
    assert "Nothing was changed" in said
    assert hospital.run("dpkg-query", "--show", "--showformat", "${Version}", "global-layers-site").endswith("-2")
    assert hospital.property("site-agent", "ActiveState") == "active"


def test_a_full_disk_stops_what_leaves_until_there_is_room(federation: Federation) -> None:
    """On a full disk nothing leaves the hospital; when there is room again, further rounds are made."""
    hospital = federation.hospital(3)
    hospital.run("sh", "-c", "cat /dev/zero > /var/lib/global-layers/filler", may_fail=True)
    said = "cannot be written|No space left|disk|room"
    wait_until(
        lambda: re.search(said, hospital.journal("site-agent") + hospital.journal("site-trainer")) is not None,
        "the hospital says that its disk is full",
        seconds=60,
    )
    standing = federation.rounds_made("long")

    hospital.run("rm", "/var/lib/global-layers/filler")

    assert federation.goes_on() > 0
    assert federation.rounds_made("long") > standing


def test_nothing_of_it_broke_an_audit_log(federation: Federation) -> None:
    """Through kills, hangs, a reboot, an upgrade and a full disk, every hospital's log is unbroken."""
    for name in HOSPITALS:
        words = ("site-agent", "audit", "verify", "--config", HOSPITAL_FILE)
        assert "unbroken" in federation.machines[name].run(*words, user="site-agent")


def test_the_journal_is_json_without_secrets(federation: Federation) -> None:
    """Events are JSON lines; no line has a key, a path of the table or a traceback."""
    for name in HOSPITALS:
        lines = federation.machines[name].journal("site-agent").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        assert {"program", "event", "level", "timestamp"} <= set(events[-1])
        assert not [line for line in lines if "Traceback" in line or "patients.csv" in line or "PRIVATE KEY" in line]


def test_a_revoked_hospital_is_out_at_once_and_stays_out(federation: Federation) -> None:
    """Revoked, a hospital's agent ends with 77 within seconds, and systemd does not start it again."""
    hospital = federation.hospital(3)

    federation.coordinator.run("pki", "revoke", HOSPITALS[2], "--directory", AUTHORITY, user="coordinator")

    wait_until(
        lambda: hospital.property("site-agent", "ExecMainStatus") == "77", "the agent has ended with 77", seconds=30
    )
    assert hospital.property("site-agent", "ActiveState") == "failed"
    assert hospital.property("site-agent", "SubState") == "failed"


def test_a_person_ends_the_study(federation: Federation) -> None:
    """`coordinator stop` ends the run for good, with a record that says so."""
    words = ("coordinator", "stop", "--config", COORDINATOR_FILE, "--yes")

    assert "has ended" in federation.coordinator.run(*words, user="coordinator")


def _is_another(machine: Machine, before: int) -> bool:
    try:
        return machine.leader() != before
    except AssertionError:
        return False
