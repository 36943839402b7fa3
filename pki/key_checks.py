"""Checks directories, keys and certificates for the command `doctor`. The checks change nothing.

For a hospital's own certificate authority the doctors warn early, because people renew by hand.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography import x509

from host.diagnosis import RENEWAL_IS_LATE_DAYS, Finding, failure, fine, judge_validity, warning
from pki import own_keys, store
from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.invitation import Invitation
from pki.own_authority import AUTHORITY_WARNING_DAYS, WARNING_DAYS
from pki.own_register import OwnAuthorities
from pki.register import Register
from pki.register_tables import newest_certificates
from pki.site_keys import SiteKeys
from protos.errors import OperatorError

_RENEWAL = (
    "The hospital runs `site-agent request-certificate`, lets its authority issue the certificate, and then runs "
    "`site-agent install-certificate`."
)
_CHANGE = "Register the hospital's next authority beside it: `pki own-authority add`."


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
                store.check_secret(place, os.fstat(file.fileno()))
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
        leaf = certificates_in(store.read_public(place))[0]
    except OperatorError as wrong:
        return failure("D404", wrong.what, wrong.remedy)
    return _judged(owner, leaf, now, renewal)


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
    """Check the remaining days of the root certificate, each site's certificate and each hospital's own authority."""
    try:
        authority = Authority.load(directory)
        members = judge_sites(authority, now)
    except OperatorError:
        return []  # judge_authority has already reported this error
    renewal = "Run `pki rotate begin` years before this date, because the change takes time."
    found = [judge_certificate(authority.root_certificate_path, "The root certificate", renewal, now), *members]
    if authority.is_changing():
        says = "The replacement of the root key has begun and is not complete."
        found.append(warning("D420", says, "`pki rotate status` shows the next step."))
    return found


def judge_sites(authority: Authority, now: datetime) -> list[Finding]:
    """Check each site's certificate and own authority. Raises OperatorError if the register cannot be read."""
    with Register(authority.register_path) as register:
        own = OwnAuthorities(register)
        authorities, in_use = own.all(), own.sites_in_use()
    found = []
    for site, leaf in sorted(newest_certificates(authority.register_path).items()):
        is_own = site in in_use
        renewal = _RENEWAL if is_own else "Ask the site to start its agent, which renews by itself."
        late_days = WARNING_DAYS if is_own else RENEWAL_IS_LATE_DAYS
        found.append(_judged(f"The certificate of {site}", leaf, now, renewal, late_days))
    return found + [_authority(f"The own authority of {one.site}", one.certificate, now) for one in authorities]


def judge_own(keys: SiteKeys, now: datetime) -> list[Finding]:
    """Check the certificate from a site's own authority, if the site has one. Raises OperatorError if unreadable."""
    if not own_keys.is_of_own_authority(keys):
        return []
    owner = "This site's certificate, of its hospital's own authority,"
    certificate = _judged(owner, keys.leaf(), now, _RENEWAL, WARNING_DAYS)
    return [certificate, _authority("The hospital's own authority", own_keys.authority_of(keys), now)]


def judge_waiting(keys: SiteKeys) -> list[Finding]:
    """Check whether the site's next TLS key or certificate still waits for the coordinator to accept it."""
    if own_keys.staged_chain(keys) is not None:
        says = "The coordinator has not yet accepted the next certificate of the hospital's own authority."
        remedy = "Start the agent, or run `site-agent renew`. If it is refused, the log has the reason."
        return [warning("D404", says, remedy)]
    if own_keys.waiting_key_path(keys).exists():
        says = "A requested certificate of the hospital's own authority is not installed yet."
        return [warning("D404", says, "Install the issued certificate with `site-agent install-certificate`.")]
    return []


def _authority(owner: str, certificate: x509.Certificate, now: datetime) -> Finding:
    return _judged(owner, certificate, now, _CHANGE, AUTHORITY_WARNING_DAYS)


def _judged(
    owner: str, certificate: x509.Certificate, now: datetime, renewal: str, late_days: float = RENEWAL_IS_LATE_DAYS
) -> Finding:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return judge_validity(owner, start, end, now=now, renewal=renewal, late_days=late_days)
