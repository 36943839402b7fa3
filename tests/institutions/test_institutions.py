"""A federation of booted institutions: real systemd, the built packages, and all kinds of failures. The tests have the
order of a federation's life and share it. Each leaves it running for the next one. They come after its beginning and
the break-ins (test_beginning.py, test_break_ins.py)."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.institutions.federation import (
    COORDINATOR_FILE,
    HOSPITAL_FILE,
    HOSPITALS,
    NEW_OFFICE,
    OFFICE,
    REGISTRY,
    SITE,
    TABLE,
    Federation,
)
from tests.institutions.machines import Machine, wait_until
from tests.institutions.runbook import Commands, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

RUNS = "/var/lib/global-layers/coordinator/state/runs"
SERVICES = [
    (OFFICE, "coordinator"),
    (HOSPITALS[1], "site-agent"),
    (HOSPITALS[2], "site-gate"),
    (HOSPITALS[0], "site-trainer"),
]


def restarted(machine: Machine, unit: str, before: str) -> bool:
    """Whether a unit runs with another main process than before."""
    now = machine.property(unit, "MainPID")
    return now not in ("0", before) and machine.property(unit, "ActiveState") == "active"


def _main_processes(federation: Federation) -> dict[str, str]:
    return {unit: federation.machines[name].property(unit, "MainPID") for name, unit in SERVICES}


def _are_back(federation: Federation, before: dict[str, str]) -> None:
    for name, unit in SERVICES:
        machine = federation.machines[name]
        wait_until(lambda: restarted(machine, unit, before[unit]), f"{unit} is back")  # noqa: B023


def test_hospitals_listen_nowhere_and_drop_what_comes_in(under_way: Federation) -> None:
    """No hospital has an open port, and a call from the coordinator's machine gets no answer."""
    probe = "import socket, sys; s = socket.socket(); s.settimeout(2); sys.exit(s.connect_ex((sys.argv[1], 22)) != 11)"

    for name in HOSPITALS:
        machine = under_way.machines[name]
        assert machine.run("ss", "--no-header", "--listening", "--tcp", "--udp") == ""
        under_way.office.run("python3", "-c", probe, machine.address)


def test_the_processes_are_parted(under_way: Federation) -> None:
    """Gate and trainer have no network interface but loopback, and each process is a user that sees its own folder."""
    hospital = under_way.machines[HOSPITALS[0]]
    processes = {kind: hospital.property(f"site-{kind}", "MainPID") for kind in ("agent", "gate", "trainer")}
    folders = {"agent": "agent", "gate": "gate", "trainer": "models"}

    for kind, process in processes.items():
        seen = hospital.run("nsenter", "-t", process, "-n", "ip", "-brief", "link").splitlines()
        assert ([line.split()[0] for line in seen] == ["lo"]) == (kind != "agent")
        assert hospital.run("stat", "-c", "%U", f"/proc/{process}") == f"site-{kind}"
        assert hospital.run("ls", f"{SITE}/{folders[kind]}", user=f"site-{kind}") != ""
        # Root checks from each process's view: files of another process are not visible.
        for other in folders.keys() - {kind}:
            assert hospital.run("nsenter", "-t", process, "-m", "ls", f"{SITE}/{folders[other]}") == ""


def test_no_side_breaks_out(under_way: Federation) -> None:
    """Only the agent reaches the coordinator, only the trainer reads patients, and no service writes an approval."""
    hospital = under_way.machines[HOSPITALS[0]]
    call = "import socket, sys; s = socket.socket(); s.settimeout(5); print(s.connect_ex((sys.argv[1], 8443)))"
    table, approval = (
        f"cat {TABLE} 2> /dev/null || echo kept",
        f"(echo x > {SITE}/approvals/x.json) 2> /dev/null || echo kept",
    )

    assert hospital.run("head", "-c", "1", TABLE, user="site-trainer") != ""
    for kind in ("agent", "gate", "trainer"):
        process = hospital.property(f"site-{kind}", "MainPID")
        become = ("setpriv", f"--reuid=site-{kind}", f"--regid=site-{kind}", "--init-groups")
        called = hospital.run("nsenter", "-t", process, "-n", "python3", "-c", call, under_way.office.address)
        assert (called == "0") == (kind == "agent")
        for eyes in ((), ("nsenter", "-t", process, "-m")):
            assert hospital.run(*eyes, *become, "sh", "-c", approval) == "kept"
            if kind != "trainer":
                assert hospital.run(*eyes, *become, "sh", "-c", table) == "kept"


def test_each_socket_has_one_caller(under_way: Federation) -> None:
    """The kernel lets the agent alone connect to the gate, and the gate alone to the trainer."""
    hospital = under_way.machines[HOSPITALS[0]]
    places = {"gate": "/run/site-gate/gate.sock", "trainer": "/run/site-trainer/trainer.sock"}
    callers = {"gate": "agent", "trainer": "gate"}
    call = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"

    for owner, place in places.items():
        for kind in {"agent", "gate", "trainer"} - {owner, callers[owner]}:
            words = ("python3", "-c", call, place)
            assert "PermissionError" in hospital.run(*words, user=f"site-{kind}", may_fail=True)


def test_the_doctor_looks_every_day(under_way: Federation) -> None:
    """Its timers are set; under their sandbox both programs' doctors find no failure while a study trains."""
    under_way.follow("A look every day")

    for machine, program in ((under_way.office, "coordinator"), *((each, "site") for each in under_way.hospitals)):
        assert machine.property(f"{program}-doctor.timer", "NextElapseUSecRealtime") != ""
        assert machine.property(f"{program}-doctor", "ExecMainStatus") in ("0", "3"), machine.journal(
            f"{program}-doctor"
        )


def test_killed_services_come_back_and_the_study_goes_on(under_way: Federation) -> None:
    """After kill -9 of every kind of service at once, systemd starts each again, and further rounds are made."""
    before = _main_processes(under_way)

    for name, unit in SERVICES[:-1]:
        under_way.machines[name].run("kill", "-9", before[unit])
    under_way.follow("A site hangs")  # there a person kills the trainer

    _are_back(under_way, before)
    under_way.goes_on()


def test_services_that_hang_are_started_again(under_way: Federation) -> None:
    """All three stopped at once: each one's watchdog ends it, its journal reports it, and further rounds are made."""
    before = _main_processes(under_way)

    for name, unit in SERVICES:
        under_way.machines[name].run("kill", "-STOP", before[unit])

    _are_back(under_way, before)
    for name, unit in SERVICES:
        assert "Watchdog timeout" in under_way.machines[name].journal(unit)
    under_way.goes_on()


def test_a_hospital_that_reboots_comes_back(under_way: Federation) -> None:
    """After a reboot the services start by themselves, and further rounds are made."""
    hospital = under_way.machines[HOSPITALS[1]]
    before = hospital.leader()

    hospital.run("systemctl", "reboot", "--no-block")

    wait_until(lambda: hospital.process.poll() is None and _is_another(hospital, before), "rebooted")
    wait_until(hospital.is_up, "booted again")
    under_way.goes_on()


def test_the_coordinators_certificate_is_renewed(under_way: Federation) -> None:
    """As the runbook renews it, without a restart: whoever calls next sees the new one, and a hospital accepts it."""
    hospital = under_way.machines[HOSPITALS[0]]
    ask = ("python3", "-c", "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 8444)))")
    before, coordinator = under_way.office.run(*ask), under_way.office.property("coordinator", "MainPID")
    agent = hospital.property("site-agent", "MainPID")

    under_way.follow("Certificate trouble", only="the office")

    assert under_way.office.run(*ask) != before
    hospital.run("systemctl", "restart", "--no-block", "site-agent")
    wait_until(lambda: restarted(hospital, "site-agent", agent), "the agent has reconnected")
    under_way.goes_on()
    assert under_way.office.property("coordinator", "MainPID") == coordinator


def test_backups_are_made_during_a_study(under_way: Federation) -> None:
    """The runbook's backups of a hospital and of the office take all that they have, and further rounds are made."""
    under_way.follow("Backup and restore")

    under_way.goes_on()


def test_a_hospitals_computer_is_lost_and_the_study_goes_on_with_another(under_way: Federation) -> None:
    """From a backup, hospital.yaml and the table a new computer takes the lost one's place, as the runbook says."""
    name, paper = HOSPITALS[0], f"{HOSPITALS[0]}.backup"
    stop_and_backup = next(step for step in steps("Backup and restore") if isinstance(step, Commands)).lines[:2]
    hospital = under_way.machines[name]
    for line in stop_and_backup:
        hospital.run("sh", "-c", line)
    under_way.safe[f"{name}: {paper}"] = (hospital.root / "root" / paper).read_bytes()
    under_way.safe[f"{name}: hospital.yaml"] = (hospital.root / HOSPITAL_FILE.lstrip("/")).read_bytes()

    under_way.institutions.replace(name)
    under_way.bring(name, paper, "hospital.yaml", "patients.csv", "contract.yaml")
    under_way.follow("Disaster recovery", only=name)

    under_way.goes_on()
    assert under_way.machines[name].property("site-agent", "ActiveState") == "active"


def test_the_coordinator_moves_to_another_computer(under_way: Federation) -> None:
    """As the runbook moves it: the study goes on at the new computer, and no site receives a message."""
    processes = [machine.property("site-agent", "MainPID") for machine in under_way.hospitals]
    old = under_way.office
    under_way.institutions.boot(NEW_OFFICE)
    under_way.follow("Moving the coordinator", only="the office")
    standing = old.run("ls", f"{RUNS}")
    for path in [*(old.root / "etc/global-layers").glob("*.yaml"), *(old.root / "root").glob("moving.*")]:
        under_way.machines[NEW_OFFICE].place(f"/srv/{path.name}", path.read_bytes(), mode="0600")

    under_way.office_name = NEW_OFFICE
    under_way.follow("Moving the coordinator", only="the new office")
    under_way.call_office(under_way.office)

    under_way.goes_on()
    assert under_way.office.run("ls", f"{RUNS}") == standing
    assert [machine.property("site-agent", "MainPID") for machine in under_way.hospitals] == processes


def test_the_issuing_certificate_is_renewed_with_the_root_key(under_way: Federation) -> None:
    """With the sealed root key and its passphrase, as the runbook says; further rounds are made."""
    for paper in ("root.key.sealed", "passphrase"):
        under_way.office.place(f"/srv/{paper}", under_way.safe[paper], mode="0600")

    under_way.follow("Disaster recovery", only="the office")

    under_way.goes_on()


def test_a_further_federation_shares_the_computers(under_way: Federation) -> None:
    """By template units the same four computers complete a study of another federation while the first one goes on."""
    under_way.follow("A further federation on the same computers", everywhere=True)

    office, unit = under_way.office, f"coordinator@{REGISTRY}"
    wait_until(lambda: office.property(unit, "ActiveState") == "inactive", "its study is over")
    assert office.property(unit, "ExecMainStatus") == "0"
    record = office.run("sh", "-c", f"cat /var/lib/global-layers/coordinators/{REGISTRY}/state/runs/*/record.json")
    assert json.loads(record)["is_complete"]
    for hospital in under_way.hospitals:
        places = f"/var/lib/global-layers/sites/{REGISTRY}"
        assert "census" in hospital.run("ls", f"{places}/reports", user="site-trainer")
        assert hospital.run("ls", f"{places}/gate", user="site-gate") != ""
    under_way.goes_on()


def test_a_hospital_is_upgraded_during_a_study_and_never_downgraded(under_way: Federation) -> None:
    """The runbook's upgrade keeps the hospital's files and state, its downgrade is refused, and rounds go on."""
    hospital = under_way.machines[HOSPITALS[0]]
    kept = (
        "sha256sum",
        HOSPITAL_FILE,
        f"{SITE}/agent/tls.key",
        "/etc/systemd/system/site-agent.service.d/address.conf",
    )
    hospital.run("sh", "-c", "echo '# of this hospital' >> /etc/systemd/system/site-agent.service.d/address.conf")
    before, process = hospital.run(*kept), hospital.property("site-agent", "MainPID")

    under_way.follow("Upgrade")

    assert hospital.run("dpkg-query", "--show", "--showformat", "${Version}", "global-layers-site").endswith("-2")
    assert hospital.run(*kept) == before
    wait_until(lambda: restarted(hospital, "site-agent", process), "the newer agent has connected")
    under_way.goes_on()


def test_a_full_disk_stops_what_leaves_until_there_is_room(under_way: Federation) -> None:
    """With a full disk the hospital sends nothing. After space is free again, further rounds are made."""
    hospital = under_way.machines[HOSPITALS[2]]
    units = ("site-gate", "site-agent", "site-trainer")  # whoever writes first says why
    before, starts = [hospital.journal(unit) for unit in units], hospital.property("site-gate", "NRestarts")

    hospital.run("sh", "-c", "cat /dev/zero > /var/lib/global-layers/filler", may_fail=True)

    wait_until(lambda: hospital.property("site-gate", "ActiveState") != "active", "the agent has ended")
    standing = under_way.rounds_made()
    wait_until(lambda: hospital.property("site-gate", "NRestarts") != starts, "it is started again")
    said = "".join(hospital.journal(unit).removeprefix(old) for unit, old in zip(units, before, strict=True))
    assert re.search("MB free|No space left", said)
    assert under_way.rounds_made() <= standing + 1  # what had left before may complete one more

    hospital.run("rm", "/var/lib/global-layers/filler")
    under_way.follow("Disk full")

    under_way.goes_on()


def test_a_table_that_is_not_there_yet_is_waited_for(under_way: Federation) -> None:
    """As when a drive is mounted after the services have started: no unit stays down, and nobody has to do anything."""
    hospital = under_way.machines[HOSPITALS[1]]
    hospital.run("mv", "/var/lib/global-layers/patients", "/var/lib/global-layers/later")

    hospital.run("systemctl", "restart", "--no-block", "site-trainer", "site-gate", "site-agent")
    wait_until(lambda: int(hospital.property("site-trainer", "NRestarts")) > 1, "the trainer was started again")
    hospital.run("mv", "/var/lib/global-layers/later", "/var/lib/global-layers/patients")

    under_way.goes_on()


def test_nothing_of_it_broke_an_audit_log(under_way: Federation) -> None:
    """Through kills, hangs, a reboot, an upgrade and a full disk, every hospital's log is unbroken."""
    for name in HOSPITALS:
        words = ("site-agent", "audit", "verify", "--config", HOSPITAL_FILE)
        assert "unbroken" in under_way.machines[name].run(*words, user="site-gate")


def test_the_journal_is_json_without_secrets(under_way: Federation) -> None:
    """Events are JSON lines; no line has a key, a path of the table or a traceback."""
    for name in HOSPITALS:
        lines = under_way.machines[name].journal("site-gate").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        assert {"program", "event", "level", "timestamp"} <= set(events[-1])
        assert not [line for line in lines if "Traceback" in line or "patients.csv" in line or "PRIVATE KEY" in line]


def test_a_hospital_withdraws_and_comes_back(under_way: Federation) -> None:
    """A hospital takes itself out of the study, which waits for it, and goes on when it has agreed again."""
    under_way.follow("A site must leave at once", only=HOSPITALS[2])

    wait_until(lambda: (under_way.status().get("run") or {}).get("phase") == "interrupted", "they wait")
    assert "withdrawn" in json.dumps(under_way.status()["sites"][HOSPITALS[2]])
    under_way.follow("A site that left comes back")
    under_way.goes_on()


def test_a_revoked_hospital_is_out_at_once_and_stays_out(under_way: Federation) -> None:
    """Revoked in the middle of a study, a hospital's agent ends with 77 and is not started again; the others wait."""
    hospital = under_way.machines[HOSPITALS[2]]

    under_way.follow("A site must leave at once", only="the office")

    wait_until(
        lambda: hospital.property("site-gate", "ExecMainStatus") == "77", "the gate has ended with 77", seconds=30
    )
    assert hospital.property("site-gate", "ActiveState") == "failed"
    assert hospital.property("site-gate", "SubState") == "failed"
    # Masks need three, so no round is made without it.
    wait_until(lambda: (under_way.status().get("run") or {}).get("phase") == "interrupted", "they wait")


def test_a_person_ends_the_study(under_way: Federation) -> None:
    """`coordinator stop` ends the run for good: on record, never taken up again, and no agent goes on by itself."""
    office = under_way.office
    run, restarts = under_way.status()["run"]["run"], office.property("coordinator", "NRestarts")

    said = office.run("coordinator", "stop", "--config", COORDINATOR_FILE, "--yes", user="coordinator")

    assert said == f"{run} has ended."
    wait_until(lambda: office.property("coordinator", "ActiveState") == "inactive", "the coordinator ends")
    record = json.loads(office.run("cat", f"{RUNS}/{run}/record.json"))
    assert (record["is_complete"], record["reason"]) == (False, "it was stopped by a person")
    # Wanted, so no failure: not started again, not even once.
    assert {name: office.property("coordinator", name) for name in ("Result", "ExecMainStatus", "NRestarts")} == {
        "Result": "success", "ExecMainStatus": "0", "NRestarts": restarts
    }  # fmt: skip
    for name in HOSPITALS:
        hospital = under_way.machines[name]
        wait_until(lambda: hospital.property("site-gate", "ActiveState") == "failed", "it ends")  # noqa: B023
        assert hospital.property("site-gate", "ExecMainStatus") == "77"


def test_a_hospital_that_lost_everything_takes_part_again(under_way: Federation) -> None:
    """With a new identity, a new invitation and a new version of the plan the revoked one is in a study to its end."""
    under_way.follow("A hospital that lost everything")

    office = under_way.office
    wait_until(lambda: office.property("coordinator", "ActiveState") == "inactive", "the study is over")
    assert json.loads(office.run("sh", "-c", f"cat {RUNS}/heart-v2-*/record.json"))["is_complete"]
    for hospital in under_way.hospitals:
        wait_until(lambda: hospital.property("site-gate", "ActiveState") == "inactive", "it ends")  # noqa: B023
        assert hospital.property("site-gate", "ExecMainStatus") == "0"


def test_a_clinical_question_is_answered_at_every_hospital(under_way: Federation) -> None:
    """A statistics plan: the trainer's unit may write its results, and they are the same everywhere."""
    office = under_way.office
    plan = yaml.safe_load(office.run("cat", "/etc/global-layers/plan.yaml"))
    concept = {"kind": "codes", "name": "diagnosis", "definition": "Of the tumour.", "codes": ["no", "yes"]}
    analysis = {"name": "patients", "table_one": {"columns": ["diagnosis"]}}
    common = {"fewest_sites": 3, "smallest_cell": 10, **{key: plan[key] for key in ("version", "sites")}}

    under_way.begin_study(
        {"kind": "statistics", "study": "answers", "concepts": [concept], "analyses": [analysis], **common}
    )

    wait_until(lambda: office.property("coordinator", "ActiveState") == "inactive", "the question is answered")
    found = {office.run("sh", "-c", f"cat {RUNS}/answers-*/results.json")}
    found |= {each.run("sh", "-c", f"cat {SITE}/statistics/*/results.json") for each in under_way.hospitals}
    assert len(found) == 1
    assert "refused" not in json.loads(found.pop())["analyses"][0]


def _is_another(machine: Machine, before: int) -> bool:
    try:
        return machine.leader() != before
    except AssertionError:
        return False
