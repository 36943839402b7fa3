"""Decides whether a site may take part, from its identity, the register of sites and the plan.

Each function returns None or one clause with the reason, which the site's operator reads. The functions use a site's
certificate rather than its own statements, and read neither a clock nor the register.
"""

from __future__ import annotations

from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import PROTOCOL_VERSION, Hello, Join


def refuse_hello(hello: Hello) -> str | None:
    """Return the reason why a site's stream is refused, or None if the stream is accepted."""
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"the coordinator uses version {PROTOCOL_VERSION} of the protocol, and the site uses version "
            f"{hello.protocol}. Install the same version of the program on both sides, or finish the run with the "
            f"earlier version on both sides"
        )
    return None


def refuse_identity(plan: Plan, site: str, identity_fingerprint: str | None) -> str | None:
    """Return the reason why a site may not take part in a plan, or None if the site may take part.

    A certificate alone is not enough: the plan lists each site by the fingerprint of its identity key, and the register
    must have that key under the site's name.
    """
    listed = {entry.name: entry.identity for entry in plan.sites}
    if site not in listed:
        return f"the plan {plan.study} does not list {site}"
    if listed[site] != identity_fingerprint:
        return f"the plan {plan.study} lists {site} with another identity key"
    return None


def refuse_join(plan: Plan, manifest: Manifest, join: Join) -> str | None:
    """Return the reason why the agreement that a site sent does not match the plan, or None if it matches."""
    if join.plan_digest != plan.digest:
        return "the site agreed to another plan"
    if join.manifest_digest != manifest.digest:
        return "the tensors that the site would send differ from the plan"
    return None
