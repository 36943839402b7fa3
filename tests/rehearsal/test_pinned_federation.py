"""A gate belongs to one federation for ever: to its name and its authority, whatever invitation or agent it sees."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from host.audit_log import AuditLog
from pki.enrolment_decisions import invite_site
from pki.identity_key import make_identity_key
from pki.names import SiteName
from pki.register import Register
from protos.errors import ConfigurationError
from site_agent.framed_messages import packed
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate_socket import Answer, Order, Shown
from site_agent.service.enrolling import enrol_where_needed
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.test_return_after_revocation import hospital_of


class Agent:
    """What the agent shows; `orders` is all that it was asked to do."""

    def __init__(self, keys: SiteKeys | None) -> None:
        self.keys, self.orders = keys, list[Order]()

    async def __call__(self, order: Order) -> Answer:
        """Show what the agent has, whatever is ordered."""
        self.orders.append(order)
        parts = [b"", b""]
        if self.keys is not None:
            parts = [self.keys.certificate_path.read_bytes(), self.keys.root_certificate_path.read_bytes()]
        return Shown("localhost:1", "localhost:1", packed(parts))


def look(folder: Path, keys: SiteKeys) -> None:
    """Let a gate with this folder see what the agent has."""
    audit = AuditLog(folder / "gate.sqlite", site="a", now=utc_now)
    try:
        asyncio.run(SiteCertificates(Agent(keys), audit).look())
    finally:
        audit.close()


@pytest.mark.parametrize("name", ["liver", "heart"])
def test_another_federation_is_refused_whatever_the_agent_shows(tmp_path: Path, name: str) -> None:
    """Also one of the same name, if its authority is another one; a restart of the gate changes nothing."""
    look(tmp_path, Office.found(tmp_path / "office").enrol("a"))
    other = Office.found(tmp_path / "other", name)

    with pytest.raises(ConfigurationError):
        look(tmp_path, other.enrol("a"))


def test_an_invitation_to_another_federation_is_refused_before_anything_is_made_or_sent(tmp_path: Path) -> None:
    """The agent has lost its certificates. The gate remembers, and orders neither a key nor a call."""
    office, other = Office.found(tmp_path / "office"), Office.found(tmp_path / "other", "liver")
    hospital = hospital_of(office, tmp_path)
    look(tmp_path, SiteKeys(tmp_path / "state" / "agent"))
    with Register(other.authority.register_path) as register:
        invitation = invite_site(
            other.authority, register, SiteName("a"), valid_for=timedelta(hours=1), is_pre_approved=True, now=utc_now()
        )
    invitation.save(tmp_path / "invitation.yaml")
    invited = hospital.model_copy(update={"invitation": str(tmp_path / "invitation.yaml")})
    agent, audit = Agent(None), AuditLog(tmp_path / "gate.sqlite", site="a", now=utc_now)
    key = make_identity_key(tmp_path / "key")

    with pytest.raises(ConfigurationError):
        asyncio.run(enrol_where_needed(invited, SiteCertificates(agent, audit), key, audit))

    assert len(agent.orders) == 1  # to look
    audit.close()
