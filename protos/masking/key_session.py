"""Agrees on the masking keys of one key session. Every site signs the same list of sites and keys.

The coordinator relays every advert and could swap, drop or invent some. So each site checks that every advert is signed
with the identity key that the approved plan lists. No site masks before all sites of the roster have signed one
transcript. The rules:

* the sites are exactly those of the plan, each with its identity key;
* the keys of a pair depend on the transcript, so sites that received different rosters have no common key;
* secrets stay in memory. They cannot be printed, copied or serialised.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Never, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protos.fingerprints import fingerprint
from protos.masking.masking_refusals import MaskingRefused, Reason, require
from protos.plan.canonical import digest, pack
from protos.wire.messages import KeyAdvert, KeySessionAcknowledgement

_FIELD_PRIME: Final = 2**255 - 19
_ZERO: Final = bytes(32)

Sign: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True)
class KeySessionTerms:
    """The facts about a key session that a site has before any key arrives.

    They come from the plan and from the coordinator's opening message.

    Attributes:
        run: the run's name.
        key_session: from 1, increasing within a run.
        plan_digest: 32 bytes; the digest that the hospital approved.
        candidates: the sites of the plan that contribute, sorted.
        identities: (site, fingerprint of its identity key) for every site that the plan lists, sorted.
    """

    run: str
    key_session: int
    plan_digest: bytes
    candidates: tuple[str, ...]
    identities: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        listed = tuple(name for name, _ in self.identities)
        if self.key_session < 1 or len(self.plan_digest) != 32:
            raise ValueError("key sessions count from 1 and a plan digest has 32 bytes")
        if not _is_sorted(listed) or not _is_sorted(self.candidates) or not self.candidates:
            raise ValueError("candidates and listed sites are sorted, each once")


class KeySessionSecret:
    """A site's secrets in one key session: its exchange key and the key of each pair of sites.

    It creates only one advert, so no key is ever used in two key sessions. Python cannot promise that `forget`
    overwrites the keys in memory. Only the boundary of the process protects them.
    """

    __slots__ = ("_advertised", "_nonce", "_pair_keys", "_private")

    def __init__(self, private: X25519PrivateKey, nonce: bytes) -> None:
        if len(nonce) != 32:
            raise ValueError("a nonce has 32 bytes")
        self._private: X25519PrivateKey | None = private
        self._nonce = nonce
        self._advertised = False
        self._pair_keys: Mapping[str, bytes] = MappingProxyType({})

    def __repr__(self) -> str:
        return "KeySessionSecret(hidden)"

    def __reduce_ex__(self, protocol: object) -> Never:
        raise TypeError("a masking secret is neither copied nor written")

    def advertise(self) -> tuple[bytes, bytes]:
        """Return the public exchange key and the nonce, 32 bytes each. A second call raises ValueError."""
        if self._advertised or self._private is None:
            raise ValueError("a masking secret serves one key session")
        self._advertised = True
        return self._private.public_key().public_bytes_raw(), self._nonce

    def agree(self, own: str, adverts: Sequence[KeyAdvert], transcript: bytes) -> None:
        """Compute a key with each other site of the list of sites that all confirmed, then delete the private key.

        Raises:
            MaskingRefused: a pair has no secret.
            ValueError: the keys were derived before, or deleted.
        """
        if (private := self._private) is None:
            raise ValueError("the private key is gone")
        self._pair_keys = MappingProxyType(
            {
                advert.site: pair_key(private, advert.exchange_key, transcript, own=own, peer=advert.site)
                for advert in adverts
                if advert.site != own
            }
        )
        self._private = None

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """Return the keys with the other sites, by site name. There is no key before `agree` and after `forget`."""
        return self._pair_keys

    def forget(self) -> None:
        """Delete every key, so that no vector can be masked with these keys again."""
        self._private, self._pair_keys = None, MappingProxyType({})


def make_advert(
    secret: KeySessionSecret, terms: KeySessionTerms, site: str, identity_key: bytes, sign: Sign
) -> KeyAdvert:
    """Create this site's signed public key for the key session.

    Args:
        secret: new, never advertised before.
        identity_key: the raw public half of this site's identity key, 32 bytes.
        sign: signs bytes with the identity key (Ed25519).
    """
    exchange_key, nonce = secret.advertise()
    return KeyAdvert(
        site=site,
        key_session=terms.key_session,
        exchange_key=exchange_key,
        nonce=nonce,
        identity_key=identity_key,
        signature=sign(_advert_statement(terms, site, exchange_key, nonce)),
    )


def check_roster(terms: KeySessionTerms, adverts: Sequence[KeyAdvert], own_advert: KeyAdvert) -> None:
    """Check that every site's public key (advert) is correctly signed, and belongs to this plan and key session.

    Source: docs/privacy.md, "How they work". `terms` are from this site's own plan, not from the coordinator.

    Raises:
        MaskingRefused: an advert is wrong, missing or unexpected.
    """
    require(tuple(advert.site for advert in adverts) == terms.candidates, Reason.OTHER_SITES)
    listed = dict(terms.identities)
    for advert in adverts:
        require(advert.key_session == terms.key_session, Reason.WRONG_KEY_SESSION)
        require(fingerprint(advert.identity_key) == listed[advert.site], Reason.WRONG_IDENTITY_KEY)
        # A number has several encodings on this curve. Only one form is allowed, so that equal keys are equal bytes.
        require(int.from_bytes(advert.exchange_key, "little") < _FIELD_PRIME, Reason.EXCHANGE_KEY_UNFIT)
        statement = _advert_statement(terms, advert.site, advert.exchange_key, advert.nonce)
        _verify(advert.identity_key, advert.signature, statement, Reason.ADVERT_NOT_SIGNED)
    require(len({advert.exchange_key for advert in adverts}) == len(adverts), Reason.KEY_TWICE)
    require(len({advert.identity_key for advert in adverts}) == len(adverts), Reason.KEY_TWICE)
    require(own_advert in adverts, Reason.OWN_ADVERT_CHANGED)


def transcript(terms: KeySessionTerms, adverts: Sequence[KeyAdvert]) -> bytes:
    """Return the transcript T, 32 bytes: the SHA-256 of the key session's settings and of all bytes of all adverts."""
    candidates = pack("masking candidates", *terms.candidates)
    entries = (
        pack(
            "masking roster entry",
            advert.site,
            advert.key_session,
            advert.exchange_key,
            advert.nonce,
            advert.identity_key,
            advert.signature,
        )
        for advert in adverts
    )
    return digest("masking transcript", terms.run, terms.key_session, terms.plan_digest, candidates, *entries)


def acknowledge(terms: KeySessionTerms, site: str, transcript_digest: bytes, sign: Sign) -> KeySessionAcknowledgement:
    """Sign the digest of a list of sites and keys (roster) that this site has checked."""
    statement = _acknowledgement_statement(terms, site, transcript_digest)
    return KeySessionAcknowledgement(
        site=site, key_session=terms.key_session, transcript=transcript_digest, signature=sign(statement)
    )


def check_acknowledgements(
    terms: KeySessionTerms,
    transcript_digest: bytes,
    acknowledgements: Sequence[KeySessionAcknowledgement],
    roster: Sequence[KeyAdvert],
) -> None:
    """Check that exactly the sites of this list have signed the same digest (transcript) as this site.

    Raises:
        MaskingRefused: a site is missing or unexpected, has received another roster, or has not signed.
    """
    by_site = {entry.site: entry for entry in acknowledgements}
    members = {advert.site for advert in roster}
    is_complete = len(acknowledgements) == len(by_site) and by_site.keys() == members
    require(is_complete, Reason.ACKNOWLEDGEMENTS_INCOMPLETE)
    for advert in roster:
        entry = by_site[advert.site]
        is_same = entry.key_session == terms.key_session and hmac.compare_digest(entry.transcript, transcript_digest)
        require(is_same, Reason.ANOTHER_TRANSCRIPT)
        statement = _acknowledgement_statement(terms, advert.site, transcript_digest)
        _verify(advert.identity_key, entry.signature, statement, Reason.ACKNOWLEDGEMENT_NOT_SIGNED)


def pair_key(
    private: X25519PrivateKey, peer_exchange_key: bytes, transcript_digest: bytes, *, own: str, peer: str
) -> bytes:
    """Return the key K_ij of a pair of sites, 32 bytes. Both sites compute the same key from the same transcript.

    Source: RFC 7748, section 6.1 for the exchange, RFC 5869 for PRK = HKDF-Extract(salt = T, shared)
    and K_ij = HKDF-Expand(PRK, "pair" || i || j, 32) with i before j.

    Raises:
        MaskingRefused: the peer's key has low order, so the shared secret is zero for everyone.
        ValueError: both sites are the same.
    """
    if own == peer:
        raise ValueError("a pair is two sites")
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer_exchange_key))
    except ValueError as cause:  # the library refuses an all-zero result itself
        raise MaskingRefused(Reason.LOW_ORDER_KEY) from cause
    require(not hmac.compare_digest(shared, _ZERO), Reason.LOW_ORDER_KEY)
    extracted = hmac.digest(transcript_digest, shared, hashlib.sha256)
    return expand(extracted, pack("pair", min(own, peer), max(own, peer)))


def expand(key: bytes, information: bytes) -> bytes:
    """Compute HKDF-Expand with SHA-256 for one block: HMAC(key, information || 1), 32 bytes. RFC 5869, section 2.3."""
    return hmac.digest(key, information + b"\x01", hashlib.sha256)


def _advert_statement(terms: KeySessionTerms, site: str, exchange_key: bytes, nonce: bytes) -> bytes:
    return pack("masking advert", terms.run, terms.key_session, terms.plan_digest, site, exchange_key, nonce)


def _acknowledgement_statement(terms: KeySessionTerms, site: str, transcript_digest: bytes) -> bytes:
    return pack("masking acknowledgement", terms.run, terms.key_session, terms.plan_digest, site, transcript_digest)


def _verify(identity_key: bytes, signature: bytes, statement: bytes, reason: Reason) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, statement)
    except (InvalidSignature, ValueError) as cause:
        raise MaskingRefused(reason) from cause


def _is_sorted(names: tuple[str, ...]) -> bool:
    return list(names) == sorted(set(names))
