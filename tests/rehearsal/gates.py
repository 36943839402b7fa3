"""A gate in the clear for a plan that a person has approved, under a policy that allows everything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from host.record_store import Store
from protos.fingerprints import fingerprint
from protos.plan.manifest import manifest_of
from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import Plan
from protos.wire.messages import KeySessionOpen, KeySessionRoster, KeySessionSeal
from site_agent.approving import approve
from site_agent.gate.consent import Consent
from site_agent.gate.door import Gate
from site_agent.gate.site_masking import SiteMasking
from site_agent.hospital import Policy
from tests.plan_changes import WITHOUT_MASKS

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def nothing(*_: object, **__: object) -> Any:
    """Send, ask or deliver to nobody."""


def spawned(work: Coroutine[Any, Any, None], _: str) -> asyncio.Task[None]:
    """Begin beside the test."""
    return asyncio.create_task(work)


def policy_with(**rules: Any) -> Policy:
    """A policy that allows what is not named here."""
    limits = {"largest_rounds": 1000, "largest_megabytes": 1000.0, "largest_clipping_range": 1024.0}
    anything = WITHOUT_MASKS | {"methods": METHOD_NAMES, "smallest_sites": 1, "smallest_cell": 1} | limits
    return Policy.model_validate_json(json.dumps(anything | rules))


def keys_of(names: Iterable[str]) -> tuple[dict[str, Ed25519PrivateKey], dict[str, str]]:
    """Long-term keys of made-up sites, and the fingerprints that a plan lists."""
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    return keys, {name: fingerprint(key.public_key().public_bytes_raw()) for name, key in keys.items()}


def sealed(plan: Plan, keys: Mapping[str, Ed25519PrivateKey], stores: Mapping[str, Store]) -> SiteMasking:
    """The masks of the first site of a plan, after all sites have agreed on keys."""
    sites = [
        SiteMasking(
            plan=plan, manifest=manifest_of(plan), site=name, identity_key=keys[name], store=stores[name]
        )
        for name in plan.site_names
    ]  # fmt: skip
    adverts = tuple(site.open(KeySessionOpen(1, plan.site_names)) for site in sites)
    signed = tuple(site.check(KeySessionRoster(1, adverts)) for site in sites)
    sites[0].seal(KeySessionSeal(1, signed))
    return sites[0]


class Unmasked(SiteMasking):
    """Masks that are not made, for tests of what is built and recorded before them."""

    def __init__(self) -> None:
        """Without keys."""

    void_key = bytes(32)

    def freeze(self, *_: object) -> None:
        """Permit every vector."""


def gate_for(
    plan: Plan,
    audit: AuditLog,
    state: Path,
    *,
    policy: Policy | None = None,
    masking: SiteMasking | None = None,
    now: Callable[[], datetime] = lambda: NOON,
    site: str = "a",
) -> Gate:
    """The gate of site a; `state` holds the approval."""
    approve(state, plan, by="A. Jones", at=NOON)
    rules = policy or policy_with()
    consent = Consent(state, plan, approvers=rules.approvers, now=now)
    manifest = manifest_of(plan)
    return Gate(plan, manifest, site=site, policy=rules, audit=audit, masking=masking, consent=consent)
