"""`site-agent renew`: a site's next certificate at once, at a real enrolment port."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import yaml

from deploy.quickstart.ports import free_port
from pki.certificate_chain import ShownCertificates
from protos.errors import RefusedError, UnavailableError
from site_agent.hospital import Hospital, read_hospital
from site_agent.service.joining import renew_now
from tests.logged import lines_of
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office
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


def test_a_site_renews_when_a_person_wants_it(tmp_path: Path) -> None:
    """Key and certificate are new, the pair before is kept until the new one has worked; the log has it all."""
    office = Office.found(tmp_path / "office")
    hospital = hospital_of(office, tmp_path)
    before = SiteKeys.load(tmp_path / "state" / "agent")
    old, identity = (before.tls_key_path.read_bytes(), before.certificate_sha256()), before.identity_fingerprint()

    async def scene() -> ShownCertificates:
        async with enrolling(office) as address:
            tell_port(tmp_path, address)
            return await renew_now(hospital, tmp_path / "hospital.yaml")

    asyncio.run(scene())
    keys = SiteKeys(tmp_path / "state" / "agent")

    assert keys.tls_key_path.read_bytes() != old[0]
    assert keys.certificate_sha256() != old[1]
    assert keys.identity_fingerprint() == identity
    assert keys.has_previous()
    assert events(tmp_path) == ["renewal_requested", "certificate_renewed"]


def test_a_renewal_that_is_refused_leaves_the_certificate_as_it_is(tmp_path: Path) -> None:
    """A revoked site gets none, and where nobody listens nothing changes either."""
    office = Office.found(tmp_path / "office")
    hospital = hospital_of(office, tmp_path)
    before = SiteKeys.load(tmp_path / "state" / "agent").certificate_sha256()

    async def scene() -> None:
        with pytest.raises(UnavailableError):
            await renew_now(hospital, tmp_path / "hospital.yaml")
        async with enrolling(office) as address:
            tell_port(tmp_path, address)
            office.revoke("a")
            with pytest.raises(RefusedError):
                await renew_now(hospital, tmp_path / "hospital.yaml")

    asyncio.run(scene())

    assert SiteKeys.load(tmp_path / "state" / "agent").certificate_sha256() == before
    assert events(tmp_path)[-1] == "renewal_refused"
