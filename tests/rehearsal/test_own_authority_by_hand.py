"""A hospital's own authority as people use it, at the office and at the site, with a real enrolment port."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from host.diagnosis import Finding, Severity
from pki import key_checks, own_keys
from pki.authority import Authority
from pki.certificates import certificate_pem, requested_key
from pki.names import SiteName
from pki.own_authority import authority_fingerprint
from pki.pki_cli import commands as pki
from pki.register import Register
from protos.errors import RefusedError, UsageError
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.hospital import Hospital, read_hospital
from site_agent.service.joining import renew_now
from site_agent.site_cli import cli as site_agent
from tests.pki.hospital import Leaf, Wanted, found, issued
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.test_records_before_acts import upkeep_of
from tests.rehearsal.test_renewal_by_hand import events, hospital_of, tell_port
from tests.rehearsal.test_upkeep import enrolling

A = SiteName("a")


def typed(program: click.Command, *words: object) -> str:
    """What a command prints; it has to succeed."""
    done = CliRunner().invoke(program, [str(word) for word in words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


def at_port(office: Office, folder: Path, hospital: Hospital) -> None:
    """`site-agent renew`, at an enrolment port that is open meanwhile."""

    async def scene() -> None:
        async with enrolling(office) as address:
            tell_port(folder, address)
            await renew_now(hospital, folder / "hospital.yaml")

    asyncio.run(scene())


def test_the_whole_path_as_people_type_it(tmp_path: Path) -> None:
    """Fingerprint, registration, request, certificate, in force, removed, and back with the federation's."""
    office = Office.found(tmp_path / "office")
    hospital, keys = hospital_of(office, tmp_path), SiteKeys(tmp_path / "state" / "agent")
    config, directory = ("--config", tmp_path / "hospital.yaml"), ("--directory", tmp_path / "office" / "authority")
    authority, paper, request = found(Wanted(start=utc_now())), tmp_path / "authority.pem", tmp_path / "a.request"
    paper.write_bytes(authority.pem)
    fingerprint = authority_fingerprint(authority.certificate)
    assert fingerprint in typed(pki, "inspect", paper)
    words = ("own-authority", "add", "--site", "a", "--fingerprint", fingerprint, *directory, paper)
    assert "is accepted for a, and for no other site" in typed(pki, *words)
    assert "not in use yet" in typed(pki, "own-authority", "list", *directory)

    told = typed(site_agent, "request-certificate", *config, "--output", request)
    assert "spiffe://heart/site/a" in told
    assert b"PRIVATE" not in request.read_bytes()
    assert "PRIVATE" not in told
    before, waits = request.read_bytes(), (tmp_path / "state" / "agent" / "tls.key.requested").read_bytes()
    again = CliRunner().invoke(
        site_agent, ["request-certificate", *map(str, config), "--new-key", "--output", str(request)]
    )
    assert isinstance(again.exception, UsageError)
    assert "exists already" in again.exception.what
    assert request.read_bytes() == before
    assert (tmp_path / "state" / "agent" / "tls.key.requested").read_bytes() == waits
    leaf = issued(
        authority, requested_key(request.read_bytes()), Leaf(uris=("spiffe://heart/site/a",), start=utc_now())
    )
    (tmp_path / "a.chain").write_bytes(certificate_pem(leaf) + authority.pem)
    assert fingerprint in typed(site_agent, "install-certificate", *config, tmp_path / "a.chain")
    at_port(office, tmp_path, hospital)

    assert own_keys.is_of_own_authority(keys)
    assert events(tmp_path) == ["own_certificate_shown", "certificate_renewed"]
    (listed,) = json.loads(typed(pki, "own-authority", "list", *directory, "--json"))
    assert (listed["site"], listed["fingerprint"], listed["in_use"]) == ("a", fingerprint, True)
    assert "its certificates are no longer accepted for a" in typed(
        pki, "own-authority", "remove", "--site", "a", *directory
    )
    assert "No hospital" in typed(pki, "own-authority", "list", *directory)
    at_port(office, tmp_path, hospital)
    assert not own_keys.is_of_own_authority(keys)


def lines(findings: list[Finding]) -> dict[str, Severity]:
    """What was said, and how much it matters."""
    return {finding.says: finding.severity for finding in findings}


def changed_over(tmp_path: Path, start: datetime, days: float) -> tuple[Office, SiteKeys]:
    """A site with a certificate of its hospital's authority; both were made so long ago, and end."""
    office = Office.found(tmp_path / "office")
    hospital, keys = hospital_of(office, tmp_path), SiteKeys(tmp_path / "state" / "agent")
    authority = found(Wanted(start=start, days=days + 40))
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    words = ("--site", "a", "--fingerprint", authority_fingerprint(authority.certificate))
    typed(pki, "own-authority", "add", *words, "--directory", office.authority.directory, tmp_path / "authority.pem")
    key = requested_key(own_keys.waiting_request(keys, A, has_new_key=False))
    leaf = issued(authority, key, Leaf(uris=("spiffe://heart/site/a",), start=start, days=days))
    own_keys.stage(keys, certificate_pem(leaf) + authority.pem, A, utc_now())
    at_port(office, tmp_path, hospital)
    return office, keys


def test_people_hear_of_it_long_before_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Doctors and agent report the end of a certificate a month before, and of its authority three months before.

    Earlier nobody does. A waiting request is reported too.
    """
    start = utc_now() - timedelta(days=330)
    office, keys = changed_over(tmp_path, start, 355)
    authority = Authority.load(office.authority.directory)
    with Register(authority.register_path) as register:
        register.confirm(A, keys.certificate_sha256())

    soon, early = utc_now(), utc_now() - timedelta(days=60)

    site = "This site's certificate, of its hospital's own authority, expires in 25 days."
    assert lines(key_checks.judge_own(keys, soon))[site] is Severity.WARNING
    assert [one.severity for one in key_checks.judge_own(keys, early)] == [Severity.FINE] * 2
    office_says = lines(key_checks.judge_sites(authority, soon))
    assert office_says["The certificate of a expires in 25 days."] is Severity.WARNING
    assert office_says["The own authority of a expires in 65 days."] is Severity.WARNING
    assert {one.severity for one in key_checks.judge_sites(authority, early)} == {Severity.FINE}
    assert key_checks.judge_waiting(keys) == []
    own_keys.waiting_request(keys, A, has_new_key=False)
    assert "is not installed yet" in key_checks.judge_waiting(keys)[0].says
    upkeep, audit = upkeep_of(keys, tmp_path / "log")
    assert isinstance(upkeep, SiteUpkeep)
    assert [asyncio.run(upkeep._renewal()), asyncio.run(upkeep._renewal())] == [[], []]
    audit.close()
    assert capsys.readouterr().out.count("own_certificate_ends_soon") == 1


def test_one_that_has_ended_is_renewed_by_people_and_never_by_the_federation(tmp_path: Path) -> None:
    """At the enrolment port its site is informed who issues its certificates, and the way to the next one."""
    office, _ = changed_over(tmp_path, utc_now() - timedelta(days=1), 300)

    with pytest.raises(RefusedError, match="has an authority of its own") as told:
        at_port(office, tmp_path, read_hospital(tmp_path / "hospital.yaml"))

    assert "site-agent request-certificate" in told.value.remedy
