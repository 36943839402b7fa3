"""Checks directories, keys and certificates for the command `doctor`. The checks change nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from host import secret_files
from host.diagnosis import Finding, failure, fine, judge_validity, warning
from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.invitation import Invitation
from pki.register import Register, newest_certificates
from protos.errors import OperatorError


def judge_directory(place: Path) -> Finding:
    """Check that a private directory exists, and that only its user can write to it."""
    try:
        state = place.stat()
    except FileNotFoundError:
        return warning("D402", f"{place} does not exist yet.", "The first start of the program creates this directory.")
    except PermissionError:
        return failure("D402", f"This user cannot open {place}.", "Run this command under the program's user account.")
    if not stat.S_ISDIR(state.st_mode):
        return failure("D402", f"{place} is not a directory.", "Set `state` to a directory.")
    if state.st_mode & 0o022:
        return failure("D402", f"Other user accounts can write to {place}.", f"Run `chmod go-w {place}`.")
    if not os.access(place, os.W_OK | os.X_OK):
        remedy = f"Run this as the owner of {place}, or `chown` it to the user that the program runs as."
        return failure("D402", f"This user cannot write to {place}.", remedy)
    return fine("D402", f"This user owns {place}, as required.")


def judge_secrets(places: Iterable[Path]) -> list[Finding]:
    """Check that only the owner can read secret files. Return a finding for each unsafe file, or one."""
    wrong, number = [], 0
    for place in places:
        try:
            with place.open("rb") as file:
                secret_files.check_secret(place, os.fstat(file.fileno()))
            number += 1
        except FileNotFoundError:
            continue
        except OperatorError as unsafe:
            wrong.append(failure("D403", unsafe.what, unsafe.remedy))
        except OSError as cause:
            remedy = "Run this as the user that the program runs as, or correct the file's owner."
            wrong.append(failure("D403", f"{place} cannot be read: {cause.strerror}.", remedy))
    return wrong or [fine("D403", f"{number} secret files can be read only by their owner, as required.")]


def judge_certificate(place: Path, owner: str, renewal: str, now: datetime) -> Finding:
    """Check how many days remain before the certificate in a file expires."""
    try:
        leaf = certificates_in(secret_files.read_public(place))[0]
    except OperatorError as wrong:
        return failure("D404", wrong.what, wrong.remedy)
    return judge_validity(owner, leaf.not_valid_before_utc, leaf.not_valid_after_utc, now=now, renewal=renewal)


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
    """Check the federation's authority: its files, its secrets, its certificates and its register."""
    try:
        authority = Authority.load(directory)
        with Register(authority.register_path) as register:
            sites = register.sites()
    except OperatorError as wrong:
        return [failure("D420", wrong.what, wrong.remedy)]
    except OSError as cause:
        return [
            failure(
                "D420",
                f"{directory} cannot be read: {cause.strerror}.",
                ("Run this command as the owner of this directory."),
            )
        ]
    found = [fine("D420", f"The authority of {authority.federation} lists {len(sites)} sites.")]
    if authority.sealed_root_key_path.exists():
        says = f"The sealed root key is still at {authority.sealed_root_key_path}."
        found.append(warning("D420", says, "Move the file with the sealed root key to a place outside this computer."))
    found += judge_secrets((authority.issuing_key_path, authority.coordinator_key_path, authority.identity_key_path))
    for place, owner, renewal in (
        (authority.coordinator_certificate_path, "The coordinator's certificate", "Run `pki renew`."),
        (authority.issuing_certificate_path, "The issuing certificate", "Run `pki renew --authority`."),
    ):
        found.append(judge_certificate(place, owner, renewal, now))
    return found


def judge_members(directory: Path, now: datetime) -> list[Finding]:
    """Check the remaining days of the root certificate and of each site's certificate."""
    try:
        authority = Authority.load(directory)
        members = judge_sites(authority, now)
    except OperatorError:
        return []  # judge_authority has already reported this error
    renewal = "Found a federation with a new folder before this date (docs/security-officer.md)."
    return [judge_certificate(authority.root_certificate_path, "The root certificate", renewal, now), *members]


def judge_sites(authority: Authority, now: datetime) -> list[Finding]:
    """Check each site's certificate. Raises OperatorError if the register cannot be read."""
    renewal = "Ask the site to start its agent, which renews by itself."
    return [
        judge_validity(
            f"The certificate of {site}", leaf.not_valid_before_utc, leaf.not_valid_after_utc, now=now, renewal=renewal
        )
        for site, leaf in sorted(newest_certificates(authority.register_path).items())
    ]
