"""Decides which sites may take part in a run."""

from __future__ import annotations

from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import Join


def refuse_identity(plan: Plan, site: str, identity_fingerprint: str | None) -> str | None:
    """Return why a site may not take part in the run of a plan. Return None if the site may take part.

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
    """Return why the agreement that a site sent does not match the plan. Return None if the agreement matches."""
    if join.plan_digest != plan.digest:
        return "the site agreed to another plan"
    if join.manifest_digest != manifest.digest:
        return "the tensors that the site would send differ from the plan"
    return None
