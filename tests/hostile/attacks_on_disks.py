"""A member that fills another member's disk with records that its own upkeep messages cause.

Each message is genuine and correctly signed. The attacker wants the other side to store more in a day than its budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import audit.recording_budget
import pki.register
from coordinator.network.enrolment_calls import Membership
from pki.register import MOST_EACH_DAY, Register
from site_agent.gate.certificate_renewal import renewal_of
from site_agent.gate.site_certificates import SiteCertificates
from tests.hostile import log_floods
from tests.hostile.attack import Attack, in_copy, scratch
from tests.hostile.log_floods import Clock, FloodedCoordinator, FloodedSite, flood, without_a_budget
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process

_BUDGET_BYTES = 20_000  # in the place of two million, so that an attack takes no hour


def full_log(weakened: bool, victim: type[FloodedSite] | type[FloodedCoordinator]) -> bool:
    """Send checkpoints to a program, also after its restart, until its log has three times its budget."""
    with pytest.MonkeyPatch.context() as patch, scratch() as folder, in_copy(weakened, without_a_budget):
        patch.setattr(audit.recording_budget, "EACH_DAY_BYTES", _BUDGET_BYTES)
        patch.setattr(log_floods, "MOST_IN_A_STEP", 50)
        *_, size = flood(victim(folder, Clock()), 4 * log_floods.STEP_SECONDS)
        assert size > _BUDGET_BYTES / 2  # the budget was used: nothing else stopped the attack
        return size > 3 * _BUDGET_BYTES


@contextmanager
def with_any_number_of_certificates() -> Iterator[None]:
    """A register that stores every certificate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pki.register, "MOST_EACH_DAY", 10**9)
        yield


def endless_certificates(weakened: bool) -> bool:
    """Request one certificate after another, each for a new key, also after the coordinator was started again."""
    with scratch() as folder, in_copy(weakened, with_any_number_of_certificates):
        office = Office.found(folder / "office")
        keys = office.enrol("a")
        certificates = certificates_in_process(keys)
        asyncio.run(certificates.look())
        refusals = [_renewed(office, certificates) for _ in range(MOST_EACH_DAY + 5)]
    assert weakened or "certificates within a day" in refusals[-1]
    return not any(refusals)


def _renewed(office: Office, certificates: SiteCertificates) -> str:
    """Request the next certificate from a coordinator that has just started; why it was refused."""
    asked = asyncio.run(renewal_of(certificates, "a", office.keys("a").identity_key()))
    with Register(office.authority.register_path) as register:
        return Membership(office.authority, register, utc_now).renew(asked).refusal


ATTACKS = (
    Attack(
        name="hospital-log-filled-with-checkpoints",
        tries="a coordinator sends checkpoints of an invented log until the hospital's disk is full",
        without="the daily budget of records",
        run=partial(full_log, victim=FloodedSite),
    ),
    Attack(
        name="coordinator-log-filled-with-checkpoints",
        tries="a site sends checkpoints of an invented log until the coordinator's disk is full",
        without="the daily budget of records",
        run=partial(full_log, victim=FloodedCoordinator),
    ),
    Attack(
        name="endless-certificates",
        tries="a site requests new certificates without end, which the register stores for good",
        without="the daily limit of certificates",
        run=endless_certificates,
    ),
)
