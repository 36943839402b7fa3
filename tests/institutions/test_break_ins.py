"""An attacker controls one service of a booted hospital. The attacker has its user, files, sockets and sandbox, with
another program in it: reaching_out.py, which runs in the machine. What an attacker can do with the messages of a socket
is the same on every computer (tests/hostile)."""

from __future__ import annotations

import json

import pytest

from tests.institutions.break_ins import KINDS, once, program, put_back
from tests.institutions.federation import HOSPITALS, Federation
from tests.institutions.reaching_out import tries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

# All that each service may do on the computer of what `reaching_out.py` tries.
POWERS = {
    "agent": {"read the TLS key", "call the coordinator", "send a datagram"},
    "gate": {"read the identity key", "write the audit log", "read an approval", "read an approved plan"},
    "trainer": {"read the table", "read a model", "read a report", "read an approval", "read an approved plan"},
}


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
