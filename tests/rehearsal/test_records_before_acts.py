"""Certificates change only after the log has recorded it. If the log cannot be written, nothing changes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.network.enrolment_calls import Membership
from host.audit_log import AuditLog
from host.record_store import StoreError
from pki.enrolment_decisions import handle_renewal
from pki.register import Register
from protos.errors import UnavailableError
from protos.wire.upkeep_messages import RenewalAnswered, RenewalAsked
from site_agent.gate.site_upkeep import SiteUpkeep
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.gates import nothing
from tests.rehearsal.relayed_stream import certificates_in_process


def _no_room(*_: object, **__: object) -> None:
    raise StoreError(what="There is no space.", consequence="Nothing was done.", remedy="Free space.")


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """A federation that was founded long ago, so that the coordinator's own certificate is due."""
    return Office.found(tmp_path / "office", now=utc_now() - timedelta(days=120))


def _upkeep_of(keys: SiteKeys, folder: Path) -> tuple[SiteUpkeep, AuditLog]:
    audit = AuditLog(folder / "audit.log", site="a", now=utc_now)
    key, certificates = keys.identity_key(), certificates_in_process(keys)
    upkeep = SiteUpkeep(site="a", identity_key=key, certificates=certificates, audit=audit, now=utc_now)
    asyncio.run(certificates.look())
    return upkeep, audit


def test_the_coordinators_own_certificate_is_renewed_once_that_is_on_record(office: Office) -> None:
    """Where the log takes nothing the certificate stays; afterwards it is renewed and recorded."""
    place, records = office.authority.coordinator_certificate_path, list[tuple[str, object]]()
    before = place.read_bytes()
    with Register(office.authority.register_path) as register:
        with pytest.raises(StoreError):
            Membership(office.authority, register, utc_now, _no_room).renew_own()
        assert place.read_bytes() == before

        def record(event: str, **facts: object) -> None:
            records.append((event, facts["ends"]))

        assert Membership(office.authority, register, utc_now, record).renew_own()

    ends = office.authority.coordinator_leaf().not_valid_after_utc
    assert place.read_bytes() != before
    assert records == [("own_certificate_renewed", ends.isoformat())]


def test_a_certificate_is_put_in_force_once_that_is_on_record(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that records the request and not the renewal changes no certificate."""
    keys = office.enrol("a", now=utc_now() - timedelta(days=31))
    upkeep, audit = _upkeep_of(keys, tmp_path)
    before = keys.tls_key_path.read_bytes(), keys.certificate_path.read_bytes()
    (asked,) = asyncio.run(upkeep._renewal())
    assert isinstance(asked, RenewalAsked)
    with Register(office.authority.register_path) as register:
        chain = handle_renewal(office.authority, register, asked, utc_now()).chain_pem

    with monkeypatch.context() as full:
        full.setattr(audit, "write", _no_room)
        with pytest.raises(StoreError):
            asyncio.run(upkeep.take(RenewalAnswered(chain, ""), nothing))
        assert (keys.tls_key_path.read_bytes(), keys.certificate_path.read_bytes()) == before
    with pytest.raises(UnavailableError):
        asyncio.run(upkeep.take(RenewalAnswered(chain, ""), nothing))
    renewed = keys.certificate_sha256()

    assert keys.certificate_sha256() == renewed
    assert [facts["certificate_sha256"] for facts in audit.records("certificate_renewed")] == [renewed]
    audit.close()
