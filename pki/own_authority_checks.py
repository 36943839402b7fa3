"""Hospitals' own authorities as both doctors look at them: what people have to renew, told long before."""

from __future__ import annotations

from datetime import datetime

from cryptography import x509

from host.diagnosis import Finding, judge_days, warning
from pki import own_keys
from pki.authority import Authority
from pki.expiries import certificate_ends
from pki.own_authority import AUTHORITY_WARNING_DAYS, WARNING_DAYS
from pki.own_register import OwnAuthorities
from pki.register import Register
from pki.site_keys import SiteKeys

_RENEWAL = (
    "Its people run `site-agent request-certificate`, have their authority issue it, then `site-agent "
    "install-certificate`."
)
_CHANGE = "Register the hospital's next authority beside it: `pki own-authority add`."


def judge_sites(authority: Authority, now: datetime) -> list[Finding]:
    """At the office: each site's certificate, and each authority that a hospital has brought.

    Raises:
        OperatorError: the register cannot be read.
    """
    with Register(authority.register_path) as register:
        own = OwnAuthorities(register)
        authorities, in_use = own.all(), own.sites_in_use()
    found = []
    for site, end in sorted(certificate_ends(authority.register_path).items()):
        days = (end - now).total_seconds() / 86400
        if site in in_use:
            found.append(judge_days(f"The certificate of {site}", days, _RENEWAL, WARNING_DAYS))
        else:
            renewal = "Ask the site to start its agent, which renews by itself."
            found.append(judge_days(f"The certificate of {site}", days, renewal))
    return found + [_authority(f"The own authority of {one.site}", one.certificate, now) for one in authorities]


def judge_own(keys: SiteKeys, now: datetime) -> list[Finding]:
    """At a site: its certificate and its authority where that is the hospital's own; else nothing.

    Raises:
        OperatorError: the certificate cannot be read.
    """
    if not own_keys.is_of_own_authority(keys):
        return []
    days = (keys.expiry() - now).total_seconds() / 86400
    certificate = judge_days("This site's certificate, of its hospital's own authority,", days, _RENEWAL, WARNING_DAYS)
    return [certificate, _authority("The hospital's own authority", own_keys.authority_of(keys), now)]


def judge_waiting(keys: SiteKeys) -> list[Finding]:
    """At a site: a key or a certificate that waits beside those in force; else nothing."""
    if own_keys.staged_chain(keys) is not None:
        says = "A certificate of the hospital's own authority waits to be taken by the coordinator."
        remedy = "Start the agent, or run `site-agent renew`; if it is refused, the log says why."
        return [warning("D404", says, remedy)]
    if own_keys.waiting_key_path(keys).exists():
        says = "A key waits for a certificate of the hospital's own authority."
        return [warning("D404", says, "Give what was issued to `site-agent install-certificate`.")]
    return []


def _authority(owner: str, certificate: x509.Certificate, now: datetime) -> Finding:
    days = (certificate.not_valid_after_utc - now).total_seconds() / 86400
    return judge_days(owner, days, _CHANGE, AUTHORITY_WARNING_DAYS)
