"""A revoked site that kept its state comes back with a new invitation, at a real enrolment port."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import yaml

from deploy.quickstart.ports import free_port
from host.audit_log import RESTORED, AuditLog
from pki.enrolment_decisions import invite_site
from pki.identity_key import read_identity_key
from pki.names import SiteName
from pki.register import Register, SiteState
from site_agent.hospital import Hospital, read_hospital
from site_agent.service.enrolling import enrol_where_needed
from tests.logged import lines_of
from tests.pki.whole_site import SiteKeys
from tests.plan_changes import WITHOUT_MASKS
from tests.rehearsal.federation import Office, eventually, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process
from tests.rehearsal.test_upkeep import enrolling


def hospital_of(office: Office, folder: Path) -> Hospital:
    """The configuration of site a, enrolled at this office."""
    office.enrol("a")
    (folder / "state").mkdir(mode=0o700)
    (office.folder / "a").rename(folder / "state" / "agent")
    (folder / "state" / "gate").mkdir(mode=0o700)
    shutil.copy(folder / "state" / "agent" / "identity.key", folder / "state" / "gate" / "identity.key")
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": WITHOUT_MASKS, "data": data}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    _tell_port(folder, f"localhost:{free_port()}")
    return read_hospital(folder / "hospital.yaml")


def _tell_port(folder: Path, address: str) -> None:
    record = {"coordinator": "localhost:1", "enrolment": address}
    (folder / "state" / "agent" / "federation.json").write_text(json.dumps(record))


def events(folder: Path) -> list[str]:
    """What the audit log of the site says."""
    lines = lines_of(folder / "state" / "gate" / "gate.sqlite")
    return [json.loads(line)["facts"]["event"] for line in lines]


class Returning:
    """Site a, which this office has enrolled."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.office = folder, Office.found(folder / "office")
        hospital = hospital_of(self.office, folder)
        self.hospital: Hospital = hospital.model_copy(update={"invitation": str(folder / "a.invitation")})
        self.register = Register(self.office.authority.register_path)
        self.audit = AuditLog(folder / "state" / "gate" / "gate.sqlite", site="a", now=utc_now)

    @property
    def keys(self) -> SiteKeys:
        """Its TLS key and certificates. A missing TLS key is made, as by the agent."""
        folder = self.folder / "state" / "agent"
        return SiteKeys.load(folder) if SiteKeys.exists(folder) else SiteKeys.create(folder)

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

    async def start(self) -> None:
        """Enrol where needed, as `site-agent join` does at its start."""
        gate, certificates = self.folder / "state" / "gate", certificates_in_process(self.keys, audit=self.audit)
        await enrol_where_needed(self.hospital, certificates, read_identity_key(gate), self.audit)

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
            _tell_port(tmp_path, port)
            site.audit.write("enrolled", federation="study", identity=identity)
            site.invite(port, "another")
            await site.start()  # a member reads no invitation
            assert site.is_accepted()
            site.office.revoke("a")
            site.invite(port)
            (tmp_path / "state" / "agent" / "tls.key").unlink()
            (tmp_path / "state" / "agent" / "tls.crt").unlink()
            for _ in range(2):
                async with started(site) as task:
                    await eventually(lambda: site.register.site(SiteName("a")).state is SiteState.REQUESTED)
                    await asyncio.sleep(0.1)
                    assert not task.done()
            site.register.approve(SiteName("a"), identity, utc_now())
            await site.start()

    asyncio.run(scene())

    assert site.is_accepted()
    assert site.register.site(SiteName("a")).identity_fingerprint == identity
    assert site.keys.tls_key_path.read_bytes() != before
    addresses = json.loads((tmp_path / "state" / "agent" / "federation.json").read_text())
    assert addresses["coordinator"] == "moved.example.org:8443"
    assert events(tmp_path)[-1] == "enrolled"
    assert RESTORED not in events(tmp_path)  # what it has spent is all there
