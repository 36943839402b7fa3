"""An attacker controls one service of a booted hospital.

The attacker has its user, files, sockets and sandbox, with another program in it.

Each test has a study of its own and takes back what it has changed. The drivers are the programs taken_over_*.py and
reaching_out.py, which run inside the machine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.institutions.break_ins import AS_AGENT, KINDS, agent_left_out, impatient, once, program, put_back, taken_over
from tests.institutions.federation import HOSPITAL_FILE, HOSPITALS, SITE, Federation
from tests.institutions.machines import Machine
from tests.institutions.reaching_out import tries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

# All that each service may do on the computer of what `reaching_out.py` tries.
POWERS = {
    "agent": {"read the TLS key", "call the coordinator", "send a datagram"},
    "gate": {"read the identity key", "write the audit log", "read an approval", "read an approved plan"},
    "trainer": {"read the table", "read a model", "read a report", "read an approval", "read an approved plan"},
}
# The records of one kind in an audit log, a line each.
RECORDS = """
import sqlite3, sys
found = sqlite3.connect(sys.argv[1]).execute("SELECT line FROM records WHERE event = ? ORDER BY number", sys.argv[2:])
for (line,) in found:
    print(line)
"""
# The messages of a site that makes rounds.
SENT = {*("Hello", "Join", "KeyAdvert", "KeySessionAcknowledgement", "Ready", "Chunk", "Refusal"), "LogHeads"}


def recorded(hospital: Machine, event: str) -> list[dict[str, Any]]:
    """The facts of each record of one kind in the audit log."""
    words = ("python3", "-c", RECORDS, f"{SITE}/gate/gate.sqlite", event)
    return [json.loads(line)["facts"] for line in hospital.run(*words, user="site-gate").splitlines()]


def relayed(hospital: Machine, *words: str, seconds: int) -> dict[str, Any]:
    """What an agent of another kind says at its end; the gate's own agent is left out meanwhile."""
    command = program(hospital, "taken_over_agent.py").split()
    told = hospital.run(*AS_AGENT, *command, str(seconds), *words, seconds=seconds + 120)
    facts: dict[str, Any] = json.loads(told.splitlines()[-1])
    print(facts)
    return facts


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_owns_a_service_has_its_power_and_no_other(founded: Federation, kind: str) -> None:
    """Under its unit's sandbox a service can do its work, and nothing else of a list that root can do completely."""
    hospital = founded.machines[HOSPITALS[1]]
    command = f"{program(hospital, 'reaching_out.py')} {founded.office.address}"

    found = once(hospital, kind, command)
    by_root = json.loads(hospital.run(*command.split()).splitlines()[-1])

    put_back(hospital)
    assert set(found) == POWERS[kind]
    assert set(by_root) == set(tries(""))


def test_whoever_owns_an_agent_gets_nothing_that_the_log_does_not_name(founded: Federation) -> None:
    """The agent's user changes the messages that it relays: the gate stops its part.

    The audit log names everything that was sent.
    """
    founded.begin_long_study("tampered")
    hospital = founded.machines[HOSPITALS[1]]

    with agent_left_out(hospital):
        facts = relayed(hospital, "7", seconds=40)  # the first message that it changes comes after a few rounds

    released = {facts["round"] for facts in recorded(hospital, "contribution_released")}
    assert facts["sent"]["rounds"]
    assert {int(number) for number in facts["sent"]["rounds"]} <= released
    assert facts["done"].keys() & {"repeated", "replayed", "altered"}
    assert "Traceback" not in hospital.journal("site-gate")
    for machine in founded.hospitals:
        put_back(machine)


def test_whoever_owns_a_trainer_sends_contributions_and_nothing_else(founded: Federation) -> None:
    """The trainer's user gives any answers: only complete contributions of the approved plan pass the gate.

    No unmasked text in the site's messages has a word of the trainer's. An agent that keeps the gate's refusals to
    itself lets the study go on, so that the trainer can try one thing after the other.
    """
    founded.begin_long_study("answered")
    hospital, done = founded.machines[HOSPITALS[1]], f"{SITE}/scores/taken-over"
    driver = f"{program(hospital, 'taken_over_trainer.py')} 1"

    with agent_left_out(hospital), impatient(hospital, "gate"), taken_over(hospital, "trainer", driver):
        facts = relayed(hospital, "1", "watch", seconds=100)

    acts = hospital.run("cat", done).splitlines()
    hospital.run("rm", done)
    print(acts)
    joined = recorded(hospital, "run_joined")[-1]
    released = [each for each in recorded(hospital, "contribution_released") if each["run"] == joined["run"]]
    assert len(set(acts)) >= 4
    assert facts["sent"]["naming a patient"] == []
    assert facts["sent"]["kinds"].keys() <= SENT
    assert joined["run"].startswith("answered-")
    assert {each["manifest"] for each in released} == {joined["manifest"]}
    for number, sent in facts["sent"]["rounds"].items():
        assert sent <= sum(each["bytes"] for each in released if each["round"] == int(number))
    assert "unbroken" in hospital.run("site-agent", "audit", "verify", "--config", HOSPITAL_FILE, user="site-gate")
    assert "Traceback" not in hospital.journal("site-gate")
    for machine in founded.hospitals:
        put_back(machine)


def test_whoever_owns_a_gate_gets_one_update_a_round_of_an_approved_plan(founded: Federation) -> None:
    """The gate's user sends any requests to the trainer: other plans train nothing, and a round has one answer.

    Each answer is as long as the approved plan says. No failure has text, no request for another stage, draw or layer
    is answered, and an approval in another's name cannot be written.
    """
    hospital = founded.machines[HOSPITALS[1]]
    put_back(hospital)
    for study in ("asked", "withdrawn"):
        founded.approve(hospital, study)
    words = ("--config", HOSPITAL_FILE, "--plan", "/srv/withdrawn.yaml", "--by", "A. Jones")
    hospital.run("site-agent", "withdraw", *words)

    with impatient(hospital, "trainer"):
        hospital.run("systemctl", "restart", "site-trainer")
        facts = once(hospital, "gate", f"{program(hospital, 'taken_over_gate.py')} 90 1 asked withdrawn")

    print(facts)
    put_back(hospital)
    assert len(facts["asked"]) >= 6
    assert facts["forged"] == []
    assert facts["wrong"] == []
    assert facts["updates"]
    assert set(facts["updates"].values()) == {1}
    assert "Traceback" not in hospital.journal("site-trainer")
