"""Copies of our program that each lack exactly one protection, inside a `with` block. An attack is a useful test only
if it succeeds against such a copy."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

import protos.masking.key_session
import protos.masking.mask_stream
import site_agent.gate.masked_steps
import site_agent.gate.site_masking
import site_agent.gate.site_rounds
from protos.fingerprints import fingerprint
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.canonical import pack
from protos.plan.exchange import Exchange
from protos.plan.manifest import Manifest, manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import Announcement, Bind, Offer
from site_agent.gate.itinerary import Itinerary
from site_agent.gate.masked_steps import MaskedSteps
from site_agent.gate.permission import Permission
from site_agent.gate.run_admission import Admission
from site_agent.gate.site_rounds import Rounds
from tests.hostile.attack import patched

_CHECKING = (
    protos.masking.key_session,
    protos.masking.mask_stream,
    site_agent.gate.masked_steps,
    site_agent.gate.site_masking,
)
# By these a site compares a sum with all others.
OF_SETS = (Reason.OTHER_SETS,)


@contextmanager
def without(*reasons: Reason) -> Iterator[pytest.MonkeyPatch]:
    """Nobody refuses for these reasons."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _CHECKING:
            for name in ("require", "_verify"):
                if hasattr(module, name):
                    patch.setattr(module, name, _lenient(getattr(module, name), reasons))
        yield patch


def _lenient(check: Callable[..., None], reasons: tuple[Reason, ...]) -> Callable[..., None]:
    def lenient(*arguments: object) -> None:
        try:
            check(*arguments)
        except MaskingRefused as refused:
            if refused.reason not in reasons:
                raise

    return lenient


@contextmanager
def without_the_plans_list() -> Iterator[None]:
    """A site trusts the certificates, so every site that the coordinator names counts as a site."""
    honest = protos.masking.key_session.check_roster

    def check_roster(terms: Any, adverts: Any, own_advert: Any) -> None:
        shown = tuple((advert.site, fingerprint(advert.identity_key)) for advert in adverts)
        honest(replace(terms, identities=shown), adverts, own_advert)

    with without(Reason.OTHER_SITES, *OF_SETS) as patch:
        patch.setattr(site_agent.gate.site_masking, "check_roster", check_roster)
        _of_any_sites(patch)
        yield


@contextmanager
def without_a_quorum() -> Iterator[None]:
    """A site contributes with any number of others."""
    with without(Reason.OTHER_SITES, *OF_SETS) as patch:
        _of_any_sites(patch)
        yield


@contextmanager
def without_being_a_contributor() -> Iterator[None]:
    """A site does not look for its own name among the contributors."""
    with without(Reason.OTHER_SITES) as patch:
        _of_any_sites(patch)
        yield


def _accept_any_set(self: Any, bind: Bind) -> None:
    self._bind = bind


def _of_any_sites(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rounds, "_accept_bind", _accept_any_set)
    patch.setattr(Rounds, "_are_the_plans", lambda self, sites: True)
    patch.setattr(Permission, "forbidden", lambda *facts: ())  # the gate looks again by itself


@contextmanager
def without_a_memory() -> Iterator[None]:
    """A site masks for every request, as if it had never masked before."""

    def accept(self: Any, offer: Offer) -> Exchange:
        return self._exchanges.of(offer.round, offer.stage, offer.layers)  # type: ignore[no-any-return]  # our own

    with without(Reason.OTHER_SITES) as patch:
        patch.setattr(MaskedSteps, "add", lambda self, step, attempt, position, vector: None)
        patch.setattr(Itinerary, "accept", accept)
        _of_any_sites(patch)
        yield


def without_the_position() -> AbstractContextManager[None]:
    """The received values are not bound into the masks."""
    honest = protos.masking.mask_stream.round_context

    def context(transcript: bytes, position: bytes, *others: Any) -> bytes:
        return honest(transcript, bytes(32), *others)

    return patched(site_agent.gate.site_masking, round_context=context)


def with_a_careless_exchange() -> AbstractContextManager[None]:
    """The exchange of a library that does not look at its result."""
    honest = protos.masking.key_session.pair_key

    def pair_key(private: X25519PrivateKey, peer: bytes, transcript: bytes, *, own: str, peer_name: str) -> bytes:
        try:
            private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            return key_of_zero(transcript, own, peer_name)
        return honest(private, peer, transcript, own=own, peer=peer_name)

    def named(private: X25519PrivateKey, key: bytes, transcript: bytes, *, own: str, peer: str) -> bytes:
        return pair_key(private, key, transcript, own=own, peer_name=peer)

    return patched(protos.masking.key_session, pair_key=named)


def key_of_zero(transcript: bytes, own: str, peer: str) -> bytes:
    """The key of a pair whose shared secret is zero: anybody can compute it."""
    extracted = hmac.digest(transcript, bytes(32), hashlib.sha256)
    return protos.masking.key_session.expand(extracted, pack("pair", min(own, peer), max(own, peer)))


@contextmanager
def with_any_run_name() -> Iterator[None]:
    """A site believes the name that a coordinator gives to a plan's run, and compares no sums of two runs."""

    async def announced(_: Admission, message: Announcement) -> tuple[Plan, Manifest]:
        plan = plan_from_wire(message.plan)
        plan.__dict__["run_name"] = message.run  # and not the one that follows from the plan
        return plan, manifest_of(plan)

    with without(*OF_SETS) as patch:
        patch.setattr(Admission, "announced", announced)
        yield
