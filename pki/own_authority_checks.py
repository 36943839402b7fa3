"""Checks hospitals' own certificate authorities for both doctors. It warns early, because people renew by hand."""

from __future__ import annotations

from datetime import datetime

from cryptography import x509

from host.diagnosis import RENEWAL_IS_LATE_DAYS, Finding, judge_validity, warning
from pki import own_keys
from pki.authority import Authority
from pki.own_authority import AUTHORITY_WARNING_DAYS, WARNING_DAYS
from pki.own_register import OwnAuthorities
from pki.register import Register
from pki.register_tables import newest_certificates
from pki.site_keys import SiteKeys

_RENEWAL = (
    "Its people run `site-agent request-certificate`, have their authority issue it, then `site-agent "
    "install-certificate`."
)
_CHANGE = "Register the hospital's next authority beside it: `pki own-authority add`."


def judge_sites(authority: Authority, now: datetime) -> list[Finding]:
    """Check, for the office, each site's certificate and each hospital's own authority.

    Raises:
        OperatorError: the register cannot be read.
    """
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
    """Check a site's certificate and its hospital's own authority, if the site uses one.

    Raises:
        OperatorError: the certificate cannot be read.
    """
    if not own_keys.is_of_own_authority(keys):
        return []
    owner = "This site's certificate, of its hospital's own authority,"
    certificate = _judged(owner, keys.leaf(), now, _RENEWAL, WARNING_DAYS)
    return [certificate, _authority("The hospital's own authority", own_keys.authority_of(keys), now)]


def judge_waiting(keys: SiteKeys) -> list[Finding]:
    """Check whether a site's key or certificate still waits for acceptance."""
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


def _judged(owner: str, certificate: x509.Certificate, now: datetime, renewal: str, late_days: float) -> Finding:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return judge_validity(owner, start, end, now=now, renewal=renewal, late_days=late_days)
