"""Files, keys, certificates, clock and kernel: each fault is caused, reported, and gone after its remedy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from host.diagnosis import Finding, Severity, judge_clock, judge_directory, judge_disk, judge_secrets, judge_validity
from pki import key_checks
from pki.enrolment_decisions import invite_site
from pki.names import SiteName
from pki.register import Register
from tests.rehearsal.federation import Office

NOW = datetime.now(UTC) + timedelta(hours=1)  # the certificates here are made after this line is run
DAY = timedelta(days=1)
FINE, WARNING, FAILURE = Severity.FINE, Severity.WARNING, Severity.FAILURE


def validity(days_left: float) -> Finding:
    """The finding on a certificate of 90 days that ends this number of days from now."""
    end = NOW + days_left * DAY
    return judge_validity("It", end - 90 * DAY, end, now=NOW, renewal="Renew.")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with member a."""
    office = Office.found(tmp_path_factory.mktemp("office"))
    office.enrol("a")
    return office


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        (lambda: judge_disk(80 << 30), FINE),
        (lambda: judge_disk(900 << 20), WARNING),
        (lambda: judge_disk(1 << 20), FAILURE),
        (lambda: judge_disk(80 << 30, 12), FAILURE),
        (lambda: judge_disk(80 << 30, 1 << 20), FINE),
        (lambda: validity(60.0), FINE),
        (lambda: validity(9.0), WARNING),
        (lambda: validity(-3.0), FAILURE),
        (lambda: validity(150.0), FAILURE),
        (lambda: judge_clock(True), FINE),
        (lambda: judge_clock(False), WARNING),
        (lambda: judge_clock(None), FINE),
        (lambda: judge_clock(False, 1.5), FINE),
        (lambda: judge_clock(True, 300.0), FAILURE),
        (lambda: judge_clock(True, -300.0), FAILURE),
    ],
)
def test_figures_are_judged(judge: Callable[[], Finding], expected: Severity) -> None:
    """Each figure has its severity, and what is not well has a remedy."""
    finding = judge()

    assert finding.severity is expected
    assert bool(finding.remedy) is (expected is not FINE)


def chmod(words: str) -> None:
    """Follow a remedy of the form: Run `chmod ...`."""
    subprocess.run(words.split("`")[1].split(), check=True)


def test_a_directory_that_others_may_write(tmp_path: Path) -> None:
    """It is reported with the command that corrects it, and is fine afterwards."""
    tmp_path.chmod(0o777)

    told = judge_directory(tmp_path)
    chmod(told.remedy)

    assert told.severity is FAILURE
    assert judge_directory(tmp_path).severity is FINE


def test_a_key_that_others_may_read(office: Office) -> None:
    """It is reported with the command that corrects it, and fine after that. A missing key is no fault."""
    key = office.folder / "a" / "tls.key"
    key.chmod(0o644)

    (told,) = judge_secrets([key, office.folder / "a" / "missing.key"])
    chmod(told.remedy.replace("If nobody else had access, run", "Run"))

    assert (told.identifier, told.severity) == ("D403", FAILURE)
    assert [finding.severity for finding in judge_secrets([key])] == [FINE]


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
