"""Keys of a key session: each attack on the roster is refused, and succeeds without its check."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protos.masking import key_session as module
from protos.masking.key_session import (
    KeySessionSecret,
    KeySessionTerms,
    acknowledge,
    check_acknowledgements,
    check_roster,
    make_advert,
    transcript,
)
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.wire.messages import KeyAdvert

Roster = list[KeyAdvert]
VICTIM = "site-00"


def _private(name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def _honest(federation: Any, site: str, **terms: Any) -> KeyAdvert:
    """An advert that the site itself signs, but for other terms."""
    identity = federation.identities[site]
    secret = KeySessionSecret(_private(f"another {site}"), bytes(32))
    other = replace(federation.terms, **terms)
    return make_advert(secret, other, site, identity.public_key().public_bytes_raw(), identity.sign)


def _other_run(federation: Any) -> Roster:
    return [federation.roster[0], _honest(federation, "site-01", run="run-0"), *federation.roster[2:]]


def _other_plan(federation: Any) -> Roster:
    return [federation.roster[0], _honest(federation, "site-01", plan_digest=bytes(32)), *federation.roster[2:]]


def _own_advert_replaced(federation: Any) -> Roster:
    return [_honest(federation, VICTIM), *federation.roster[1:]]


def _own_advert_dropped(federation: Any) -> Roster:
    return list(federation.roster[1:])


def _shrunk(federation: Any) -> Roster:
    return list(federation.roster[:2])


def _shuffled(federation: Any) -> Roster:
    return [federation.roster[1], federation.roster[0], *federation.roster[2:]]


def _doubled(federation: Any) -> Roster:
    return [federation.roster[0], *federation.roster[:2], *federation.roster[2:]]


def _copied_exchange_key(federation: Any) -> Roster:
    """site-01 is dishonest and shows the key of site-02 as its own."""
    identity, copied = federation.identities["site-01"], federation.advert("site-02").exchange_key
    statement = module._advert_statement(federation.terms, "site-01", copied, bytes(32))
    forged = KeyAdvert(
        site="site-01",
        key_session=federation.terms.key_session,
        exchange_key=copied,
        nonce=bytes(32),
        identity_key=identity.public_key().public_bytes_raw(),
        signature=identity.sign(statement),
    )
    return [federation.roster[0], forged, *federation.roster[2:]]


def _second_form_of_a_key(federation: Any) -> Roster:
    """The same point with its ignored top bit set: other bytes, the same key."""
    roster = _copied_exchange_key(federation)
    key = roster[1].exchange_key[:31] + bytes([roster[1].exchange_key[31] | 0x80])
    statement = module._advert_statement(federation.terms, "site-01", key, bytes(32))
    signature = federation.identities["site-01"].sign(statement)
    return [roster[0], replace(roster[1], exchange_key=key, signature=signature), *roster[2:]]


ATTACKS: list[tuple[Callable[[Any], Roster], Reason]] = [
    (_other_run, Reason.ADVERT_NOT_SIGNED), (_other_plan, Reason.ADVERT_NOT_SIGNED),
    (_own_advert_replaced, Reason.OWN_ADVERT_CHANGED), (_own_advert_dropped, Reason.OTHER_SITES),
    (_shrunk, Reason.OTHER_SITES), (_shuffled, Reason.OTHER_SITES), (_copied_exchange_key, Reason.KEY_TWICE),
    (_second_form_of_a_key, Reason.EXCHANGE_KEY_UNFIT), (_doubled, Reason.OTHER_SITES),
]  # fmt: skip


@pytest.mark.parametrize(("attack", "reason"), ATTACKS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_forged_roster_is_refused_and_passes_where_its_check_is_missing(
    attack: Callable[[Any], Roster], reason: Reason, make_key_session: Any, weakened: Any
) -> None:
    """Every attack is stopped by exactly the check that names it."""
    federation = make_key_session(4)
    forged, own = attack(federation), federation.advert(VICTIM)

    with pytest.raises(MaskingRefused) as refused:
        check_roster(federation.terms, forged, own)
    assert refused.value.reason is reason

    with weakened([module], reason):
        if attack in (_doubled, _own_advert_dropped):  # by a second check, such as the signature
            with pytest.raises((MaskingRefused, KeyError)):
                check_roster(federation.terms, forged, own)
        else:
            check_roster(federation.terms, forged, own)


def test_an_honest_roster_passes(make_key_session: Any) -> None:
    """Every site accepts the roster that all of them made."""
    federation = make_key_session(5)

    for site in federation.sites:
        check_roster(federation.terms, federation.roster, federation.advert(site))


def test_acknowledgements_are_complete_signed_and_of_this_key_session(make_key_session: Any, weakened: Any) -> None:
    """One acknowledgement less, one more, one twice, one forged: refused, and accepted when all are right."""
    federation = make_key_session(4)
    seen = federation.transcript
    signed = [acknowledge(federation.terms, site, seen, federation.identities[site].sign) for site in federation.sites]
    forged = replace(signed[1], signature=signed[2].signature)
    relabelled = make_key_session(4, number=2)

    check_acknowledgements(federation.terms, seen, signed, federation.roster)
    cases: Sequence[tuple[Any, Reason]] = [
        (signed[:3], Reason.ACKNOWLEDGEMENTS_INCOMPLETE),
        ([*signed, signed[0]], Reason.ACKNOWLEDGEMENTS_INCOMPLETE),
        ([*signed[:3], replace(signed[3], site="site-98")], Reason.ACKNOWLEDGEMENTS_INCOMPLETE),
        ([signed[0], forged, *signed[2:]], Reason.ACKNOWLEDGEMENT_NOT_SIGNED),
    ]
    for entries, reason in cases:
        with pytest.raises(MaskingRefused) as refused:
            check_acknowledgements(federation.terms, seen, entries, federation.roster)
        assert refused.value.reason is reason
    with weakened([module], Reason.ACKNOWLEDGEMENT_NOT_SIGNED):
        check_acknowledgements(federation.terms, seen, cases[3][0], federation.roster)
    with pytest.raises(MaskingRefused):
        check_acknowledgements(relabelled.terms, seen, signed, relabelled.roster)


@pytest.mark.parametrize("field", ["exchange_key", "nonce", "identity_key", "signature"])
def test_the_transcript_depends_on_every_byte_of_every_advert(field: str, make_key_session: Any) -> None:
    """Changing one bit anywhere in the roster changes T, and with it every pair key."""
    federation = make_key_session(3)

    for place, advert in enumerate(federation.roster):
        before = getattr(advert, field)
        for index in range(len(before)):
            changed = before[:index] + bytes([before[index] ^ 1]) + before[index + 1 :]
            roster = list(federation.roster)
            roster[place] = replace(advert, **{field: changed})
            assert transcript(federation.terms, roster) != federation.transcript


def test_a_secret_has_no_representation_no_copy_and_no_serial_form(make_key_session: Any) -> None:
    """Printing, copying or pickling a key session's secret never shows its keys."""
    federation = make_key_session(3)
    federation.agree()
    secret = federation.secrets[VICTIM]

    assert repr(secret) == str(secret) == "KeySessionSecret(hidden)"
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(secret)


def test_a_secret_serves_one_key_session_and_can_be_forgotten(make_key_session: Any) -> None:
    """A second advert, a second agreement and any use after forgetting are errors of the program."""
    federation = make_key_session(3)
    secret = federation.secrets[VICTIM]

    with pytest.raises(ValueError, match="one key session"):
        secret.advertise()
    secret.agree(VICTIM, federation.roster, federation.transcript)
    with pytest.raises(ValueError, match="gone"):
        secret.agree(VICTIM, federation.roster, federation.transcript)
    secret.forget()
    assert not secret.pair_keys


def test_terms_check_themselves() -> None:
    """Unsorted or repeated candidates never become the terms of a key session."""
    right: dict[str, Any] = {
        "run": "run-1", "key_session": 1, "plan_digest": bytes(32), "candidates": ("a", "b"),
        "identities": (("a", "x"), ("b", "y"), ("c", "z")),
    }  # fmt: skip

    KeySessionTerms(**right)
    for change in (
        {"candidates": ("b", "a")},
        {"candidates": ("a", "a")},
        {"candidates": ()},
        {"key_session": 0},
        {"plan_digest": b""},
    ):
        with pytest.raises(ValueError, match=r"."):
            KeySessionTerms(**right | change)
