"""Checks invitations, certificates and the authority for the command `doctor`. The checks change nothing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from host import secret_files
from host.clock_words import COMPARE_CLOCK, SET_CLOCK, outside
from host.diagnosis import Finding, failure, fine, warning
from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.invitation import Invitation
from pki.register import Register
from protos.errors import OperatorError

_RENEWAL_IS_LATE_DAYS: Final = 14.0  # renewed from day 30 of 90, so usually 60 days remain


def judge_certificate(place: Path, owner: str, renewal: str, now: datetime) -> Finding:
    """Check how many days remain before the certificate in a file expires."""
    try:
        leaf = certificates_in(secret_files.read_public(place))[0]
    except OperatorError as wrong:
        return failure("D404", wrong.what, wrong.remedy)
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now < start:
        return failure("D404", f"{owner} is not valid yet. {outside(start, end, now)}", SET_CLOCK)
    if now >= end:
        return failure("D404", f"{owner} has expired. {outside(start, end, now)}", f"{COMPARE_CLOCK} {renewal}")
    days_left = (end - now).total_seconds() / 86400
    if days_left < _RENEWAL_IS_LATE_DAYS:
        return warning("D404", f"{owner} expires in {days_left:.0f} days.", renewal)
    return fine("D404", f"{owner} is valid for {days_left:.0f} more days.")


def judge_invitation(place: Path, site: str, now: datetime) -> Finding:
    """Check the invitation of a site that has no certificate yet."""
    try:
        invitation = Invitation.load(place)
        invitation.check_not_expired(now)
    except OperatorError as wrong:
        return failure("D417", wrong.what, wrong.remedy)
    if invitation.site != site:
        says = f"The invitation is for {invitation.site}, and hospital.yaml is for {site}."
        return failure("D417", says, "Use the invitation for this site, or correct `site`.")
    return fine("D417", f"The invitation is valid until {invitation.expires:%Y-%m-%d %H:%M} UTC.")


def judge_authority(directory: Path, now: datetime) -> list[Finding]:
    """Check the federation's authority: its files, its secrets, its register, and the days of every certificate."""
    try:
        authority = Authority.load(directory)
        with Register(authority.register_path) as register:
            number = len(register.sites())
    except OperatorError as wrong:
        return [failure("D420", wrong.what, wrong.remedy)]
    except OSError as cause:
        remedy = "Run this command as the owner of this directory."
        return [failure("D420", f"{directory} cannot be read: {cause.strerror}.", remedy)]
    found = [fine("D420", f"The authority of {authority.federation} lists {number} sites.")]
    if authority.sealed_root_key_path.exists():
        says = f"The sealed root key is still at {authority.sealed_root_key_path}."
        found.append(warning("D420", says, "Move the file with the sealed root key to a place outside this computer."))
    for place, owner, renewal in (  # an expired one lets none below it be renewed
        (authority.root_certificate_path, "The root certificate", "Before this date, found a new federation folder."),
        (authority.issuing_certificate_path, "The issuing certificate", "Run `pki renew --authority FILE`."),
        (authority.coordinator_certificate_path, "The coordinator's certificate", "Run `pki renew`."),
    ):
        found.append(judge_certificate(place, owner, renewal, now))
    return found
