"""A revoked site that kept its state comes back with a new invitation, at a real enrolment port."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from deploy.quickstart.ports import free_port
from host.audit_log import AuditLog
from pki.enrolment_decisions import invite_site
from pki.identity_key import read_identity_key
from pki.names import SiteName
from pki.register import Register, SiteState
from site_agent.gate_socket import Order
from site_agent.hospital import Hospital, read_hospital
from site_agent.service.enrolling import enrol_where_needed
from tests.logged import lines_of
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, eventually, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process
from tests.rehearsal.test_upkeep import enrolling
from tests.site_agent.test_approval_commands import RULES


def hospital_of(office: Office, folder: Path) -> Hospital:
    """The configuration of site a, enrolled at this office."""
    office.enrol("a")
    (folder / "state").mkdir(mode=0o700)
    (office.folder / "a").rename(folder / "state" / "agent")
    (folder / "state" / "gate").mkdir(mode=0o700)
    shutil.copy(folder / "state" / "agent" / "identity.key", folder / "state" / "gate" / "identity.key")
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": RULES, "data": data}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    tell_port(folder, f"localhost:{free_port()}")
    return read_hospital(folder / "hospital.yaml")


def tell_port(folder: Path, address: str) -> None:
    """Write where the enrolment port is, as enrolment does."""
    record = {"coordinator": "localhost:1", "enrolment": address}
    (folder / "state" / "agent" / "federation.json").write_text(json.dumps(record))


def events(folder: Path) -> list[str]:
    """What the audit log of the site says."""
    lines = lines_of(folder / "state" / "gate" / "gate.sqlite")
    return [json.loads(line)["facts"]["event"] for line in lines]


class Returning:
    """Site a, which this office has enrolled; `orders` is all that its agent was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.office = folder, Office.found(folder / "office")
        hospital = hospital_of(self.office, folder)
        self.hospital: Hospital = hospital.model_copy(update={"invitation": str(folder / "a.invitation")})
        self.register = Register(self.office.authority.register_path)
        self.orders: list[Order] = []

    @property
    def keys(self) -> SiteKeys:
        """Its TLS key and certificates."""
        return SiteKeys.load(self.folder / "state" / "agent")

    @property
    def state(self) -> SiteState:
        """Its state in the office's register."""
        return self.register.site(SiteName("a")).state

    def revoke(self) -> None:
        """Revoke the site, as `pki revoke` does."""
        self.office.revoke("a")

    def invite(self, port: str, site: str = "a") -> None:
        """Replace the file of the invitation, as the hospital does with the office's new one."""
        authority = self.office.authority
        invitation = invite_site(
            authority, self.register, SiteName(site), valid_for=timedelta(hours=1), is_pre_approved=False, now=utc_now()
        )
        place = Path(str(self.hospital.invitation))
        place.unlink(missing_ok=True)
        content = json.loads(invitation.to_json())
        place.write_text(
            json.dumps(content | {"site": "a", "enrolment": port, "coordinator": "moved.example.org:8443"})
        )

    def approve(self) -> None:
        """Approve the request, as `pki approve` does."""
        fingerprint = self.register.site(SiteName("a")).identity_fingerprint
        assert fingerprint is not None
        self.register.approve(SiteName("a"), fingerprint, utc_now())

    async def start(self) -> None:
        """Enrol where needed, as `site-agent join` does at its start."""
        certificates = certificates_in_process(self.keys)
        inner, gate = certificates._ask, self.folder / "state" / "gate"

        async def ask(order: Order):  # type: ignore[no-untyped-def]
            self.orders.append(order)
            return await inner(order)

        certificates._ask = ask
        audit = AuditLog(gate / "gate.sqlite", site="a", now=utc_now)
        try:
            await enrol_where_needed(self.hospital, certificates, read_identity_key(gate), audit)
        finally:
            audit.close()

    def is_accepted(self) -> bool:
        """Whether the coordinator accepts the certificate that the site uses."""
        return self.register.is_accepted(SiteName("a"), self.keys.certificate_sha256())


@asynccontextmanager
async def started(site: Returning) -> AsyncIterator[asyncio.Task[None]]:
    """The start of the site's program, which ends with the block."""
    task = asyncio.create_task(site.start())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_revoked_site_returns_with_a_new_invitation_and_a_persons_approval(tmp_path: Path) -> None:
    """Its identity stays, its TLS key is new. A restart repeats the request, and only an approval ends the wait."""
    site = Returning(tmp_path)
    identity, before = site.keys.identity_fingerprint(), site.keys.tls_key_path.read_bytes()

    async def scene() -> None:
        async with enrolling(site.office) as port:
            tell_port(tmp_path, port)
            await site.start()  # records that there is no invitation yet
            site.revoke()
            site.invite(port)
            for _ in range(2):
                async with started(site) as task:
                    await eventually(lambda: site.state is SiteState.REQUESTED)
                    await asyncio.sleep(0.1)
                    assert not task.done()
                    assert not site.is_accepted()
            site.approve()
            await site.start()

    asyncio.run(scene())

    assert site.is_accepted()
    assert site.register.site(SiteName("a")).identity_fingerprint == identity
    assert site.keys.tls_key_path.read_bytes() != before
    addresses = json.loads((tmp_path / "state" / "agent" / "federation.json").read_text())
    assert addresses["coordinator"] == "moved.example.org:8443"
    assert events(tmp_path)[-1] == "enrolled"


@pytest.mark.parametrize("hindrance", ["no answer at its port", "a folder that nobody may open"])
def test_a_made_up_invitation_does_not_stop_a_member(
    tmp_path: Path, hindrance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can send a hospital a file must not be able to end its part in the federation."""
    site = Returning(tmp_path)

    exists = Path.exists

    def forbidden(path: Path) -> bool:
        if path == Path(str(site.hospital.invitation)):
            raise PermissionError(13, "Permission denied")
        return exists(path)

    async def scene() -> None:
        async with enrolling(site.office) as port:
            tell_port(tmp_path, port)
            await site.start()
            site.invite("127.0.0.1:9", site="another")
            if hindrance != "no answer at its port":
                monkeypatch.setattr("site_agent.service.enrolling.Path.exists", forbidden)
            async with asyncio.timeout(60):
                await site.start()

    asyncio.run(scene())

    assert site.is_accepted()


@pytest.mark.parametrize("content", ["no invitation", "unknown token"])
def test_a_file_that_is_no_new_invitation_never_stops_a_member(tmp_path: Path, content: str) -> None:
    """The program warns, keeps the certificate and goes on; the coordinator decides about the certificate."""
    site = Returning(tmp_path)
    before = site.keys.certificate_sha256()

    async def scene() -> None:
        async with enrolling(site.office) as port:
            tell_port(tmp_path, port)
            await site.start()
            place = Path(str(site.hospital.invitation))
            if content == "no invitation":
                place.write_text(content)
            else:
                site.revoke()
                site.invite(port)
                stale = place.read_bytes()
                site.invite(port)
                place.write_bytes(stale)
            await site.start()

    with capture_logs() as logged:
        asyncio.run(scene())

    assert [line["event"] for line in logged if line["event"] == "invitation_not_used"] == ["invitation_not_used"]
    assert site.keys.certificate_sha256() == before
