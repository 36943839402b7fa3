"""Disk, certificates, invitation and authority: each fault is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from host.diagnosis import Severity, judge_disk
from pki import key_checks
from pki.enrolment_decisions import invite_site
from pki.names import SiteName
from pki.register import Register
from tests.rehearsal.federation import Office

NOW = datetime.now(UTC) + timedelta(hours=1)  # the certificates here are made after this line is run
FINE, WARNING, FAILURE = Severity.FINE, Severity.WARNING, Severity.FAILURE


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with member a."""
    office = Office.found(tmp_path_factory.mktemp("office"))
    office.enrol("a")
    return office


@pytest.mark.parametrize(
    ("gigabytes", "files", "expected"),
    [(80, 0, FINE), (0.9, 0, WARNING), (1e-3, 0, FAILURE), (80, 12, FAILURE), (80, 4096, FINE), (80, 4097, FAILURE)],
)
def test_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: float, files: int, expected: Severity
) -> None:
    """Free bytes and free inodes have their severity, and what is not well has a remedy. 4097: it is read-only."""
    disk = SimpleNamespace(f_bavail=gigabytes, f_frsize=1e9, f_files=files, f_favail=files, f_flag=files % 2)
    monkeypatch.setattr("os.statvfs", lambda _: disk)

    finding = judge_disk(tmp_path / "missing")

    assert finding.severity is expected
    assert bool(finding.remedy) is (expected is not FINE)


@pytest.mark.parametrize(("days", "expected"), [(0, FINE), (80, WARNING), (91, FAILURE), (-1, FAILURE)])
def test_a_certificate_at_any_day(office: Office, days: int, expected: Severity) -> None:
    """A new certificate is fine, an old one is a warning, and outside its days it is a failure."""
    place, now = office.folder / "a" / "tls.crt", NOW + timedelta(days=days)

    assert key_checks.judge_certificate(place, "It", "Renew.", now).severity is expected


def test_an_invitation_that_does_not_fit(office: Office) -> None:
    """An invitation that ended, or is another site's, or is no invitation, is reported; a good one is well."""
    place = office.folder / "b.invitation"
    with Register(office.authority.register_path) as register:
        invite_site(
            office.authority, register, SiteName("b"), valid_for=timedelta(hours=1), is_pre_approved=False, now=NOW
        ).save(place)
    text = office.folder / "text.invitation"
    text.write_text("Dear colleague")
    text.chmod(0o600)

    assert key_checks.judge_invitation(place, "b", NOW).severity is FINE
    assert key_checks.judge_invitation(place, "b", NOW + timedelta(hours=2)).severity is FAILURE
    assert key_checks.judge_invitation(place, "c", NOW).severity is FAILURE
    assert key_checks.judge_invitation(text, "b", NOW).severity is FAILURE


def test_an_authority(office: Office, tmp_path: Path) -> None:
    """Its register, keys and certificates are checked. The sealed root key is reported until it is moved away."""
    directory, root = office.folder / "authority", office.authority.sealed_root_key_path

    before = key_checks.judge_authority(directory, NOW)
    root.rename(tmp_path / root.name)
    after = key_checks.judge_authority(directory, NOW)
    late = key_checks.judge_authority(directory, NOW + timedelta(days=85))

    assert [finding.severity for finding in before if finding.severity] == [WARNING]
    assert {finding.severity for finding in after} == {FINE}
    assert {finding.severity for finding in late} == {FINE, WARNING}
    assert key_checks.judge_authority(tmp_path, NOW)[0].severity is FAILURE
