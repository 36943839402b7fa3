"""Files, keys, certificates, clock and kernel: each fault is caused, reported, and gone after its remedy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from host import computer_checks
from host.clock_words import at, spelled
from host.diagnosis import (
    Finding,
    Severity,
    exit_status,
    failure,
    fine,
    judge_address_rules,
    judge_clock,
    judge_directory,
    judge_disk,
    judge_secrets,
    judge_validity,
    warning,
)
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
    ("judge", "expected", "words"),
    [
        (lambda: judge_disk(80 << 30), FINE, "free"),
        (lambda: judge_disk(900 << 20), WARNING, "Free space"),
        (lambda: judge_disk(1 << 20), FAILURE, "less than 1 MB"),
        (lambda: judge_disk(80 << 30, 12), FAILURE, "df -i"),
        (lambda: judge_disk(80 << 30, 1 << 20), FINE, "free"),
        (lambda: validity(60.0), FINE, "60 more days"),
        (lambda: validity(9.0), WARNING, "expires in 9 days. Renew."),
        (lambda: validity(-3.0), FAILURE, f"It has expired. It is valid from {at(NOW - 93 * DAY)} to "),
        (lambda: validity(-3.0), FAILURE, f"This computer's clock shows {at(NOW)}, 3 days after the end. Compare"),
        (lambda: validity(150.0), FAILURE, f"{at(NOW)}, 60 days before the start. Set this computer's clock: `timedat"),
        (lambda: judge_clock(True), FINE, "A time server sets"),
        (lambda: judge_clock(False), WARNING, "timedatectl"),
        (lambda: judge_clock(None), FINE, "does not report whether"),
        (lambda: judge_clock(False, 1.5), FINE, "differ by 1.5 s"),
        (lambda: judge_clock(True, 300.0), FAILURE, "5 minutes ahead of the coordinator's clock."),
        (lambda: judge_clock(True, 10 * 86400.0), FAILURE, "10 days ahead of"),
        (lambda: judge_clock(True, -300.0), FAILURE, "5 minutes behind the coordinator's clock."),
        (lambda: judge_address_rules(True), FINE, "enforces"),
        (lambda: judge_address_rules(False), WARNING, "firewall"),
        (lambda: judge_address_rules(None), FINE, "root"),
    ],
)
def test_figures_are_judged(judge: Callable[[], Finding], expected: Severity, words: str) -> None:
    """Each figure has its severity, and what is not well has a remedy."""
    finding = judge()

    assert finding.severity is expected
    assert words in finding.line
    assert bool(finding.remedy) is (expected is not FINE)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-60.0, "60 seconds"), (300.0, "5 minutes"), (7200.0, "2 hours"), (129600.0, "36 hours"), (864000.0, "10 days")],
)
def test_a_difference_of_clocks_is_spelled(seconds: float, words: str) -> None:
    """A difference is reported in the largest unit of which there are two, without its sign."""
    assert spelled(seconds) == words


def test_the_exit_status_is_that_of_the_worst() -> None:
    """0 if all is well, 3 with a warning, 1 with a failure, whatever other findings there are."""
    good, odd, bad = fine("D405", "Well."), warning("D405", "Odd.", "Look."), failure("D405", "Bad.", "Correct.")

    assert [exit_status(found) for found in ([], [good], [good, odd], [odd, bad, good])] == [0, 0, 3, 1]


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


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    """A missing one is made at the first start, a file in its place is a failure."""
    (tmp_path / "file").touch()

    assert judge_directory(tmp_path / "missing").severity is WARNING
    assert judge_directory(tmp_path / "file").severity is FAILURE


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
    """A new certificate is fine and an old one is a warning.

    Outside its days it is a failure, with the time of this clock.
    """
    told = key_checks.judge_certificate(office.folder / "a" / "tls.crt", "It", "Renew.", NOW + timedelta(days=days))

    assert told.severity is expected
    assert ("This computer's clock shows" in told.line) is (expected is FAILURE)
    assert ("timedatectl" in told.line) is (days < 0)


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
    assert "for b, and hospital.yaml is for c" in key_checks.judge_invitation(place, "c", NOW).says
    assert key_checks.judge_invitation(text, "b", NOW).severity is FAILURE


def test_an_authority(office: Office, tmp_path: Path) -> None:
    """Its register, keys and certificates are checked. The sealed root key is reported until it is moved away."""
    directory, root = office.folder / "authority", office.authority.sealed_root_key_path

    before = key_checks.judge_authority(directory, NOW)
    root.rename(tmp_path / root.name)
    after = key_checks.judge_authority(directory, NOW)
    late = key_checks.judge_authority(directory, NOW + timedelta(days=85))

    assert [finding.says for finding in before if finding.severity] == [f"The sealed root key is still at {root}."]
    assert {finding.severity for finding in after} == {FINE}
    assert "Run `pki renew`." in {finding.remedy for finding in late}
    assert key_checks.judge_authority(tmp_path, NOW)[0].severity is FAILURE


def test_this_computer_is_looked_at_without_being_changed() -> None:
    """Disk, clock and kernel answer on any computer, whoever asks."""
    assert computer_checks.free_on_disk(Path("/no/such/folder"))[0] > 0
    assert computer_checks.is_clock_synchronised() in (True, False, None)
    assert computer_checks.enforces_address_rules() in ((True, False, None) if os.geteuid() == 0 else (None,))
