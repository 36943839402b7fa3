"""A member that fills another member's disk with records that its own requests cause."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

import pki.register
from coordinator.network.enrolment_calls import Membership
from pki.register import MOST_EACH_DAY, Register
from site_agent.gate.site_certificates import SiteCertificates, renewal_of
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process


def _with_any_number_of_certificates() -> AbstractContextManager[None]:
    return patched(pki.register, MOST_EACH_DAY=10**9)


def endless_certificates(weakened: bool) -> bool:
    """Request one certificate after another, each for a new key, also after the coordinator was started again."""
    with scratch() as folder, in_copy(weakened, _with_any_number_of_certificates):
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


ATTACKS = (Attack(name="endless-certificates", without="the daily limit of certificates", run=endless_certificates),)
