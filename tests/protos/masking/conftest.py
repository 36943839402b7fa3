"""A federation in memory: identity keys, key sessions and a coordinator's view, all from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protos.fingerprints import fingerprint
from protos.masking.key_session import KeySessionSecret, KeySessionTerms, make_advert, transcript
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.wire.messages import KeyAdvert


def secret_bytes(*parts: object) -> bytes:
    """32 bytes that a test can make again."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).digest()


@dataclass(frozen=True)
class KeySession:
    """One key session as all its sites and an onlooker see it."""

    terms: KeySessionTerms
    identities: Mapping[str, Ed25519PrivateKey]
    secrets: Mapping[str, KeySessionSecret]
    roster: tuple[KeyAdvert, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """Names, sorted."""
        return self.terms.candidates

    @property
    def transcript(self) -> bytes:
        """T."""
        return transcript(self.terms, self.roster)

    def advert(self, site: str) -> KeyAdvert:
        """The advert that this site sent."""
        return next(advert for advert in self.roster if advert.site == site)

    def agree(self) -> dict[str, Mapping[str, bytes]]:
        """Site -> peer -> key of the pair."""
        for site, secret in self.secrets.items():
            secret.agree(site, self.roster, self.transcript)
        return {site: secret.pair_keys for site, secret in self.secrets.items()}


def _key_session(count: int, seed: int = 0, *, run: str = "run-1", number: int = 1) -> KeySession:
    sites = tuple(f"site-{index:02d}" for index in range(count))
    identities = {site: Ed25519PrivateKey.from_private_bytes(secret_bytes("identity", seed, site)) for site in sites}
    public = {site: key.public_key().public_bytes_raw() for site, key in identities.items()}
    terms = KeySessionTerms(
        run=run,
        key_session=number,
        plan_digest=secret_bytes("plan", seed),
        candidates=sites,
        identities=tuple((site, fingerprint(public[site])) for site in sites),
    )
    secrets = {
        site: KeySessionSecret(
            X25519PrivateKey.from_private_bytes(secret_bytes("exchange", seed, number, run, site)),
            secret_bytes("nonce", seed, number, run, site),
        )
        for site in sites
    }
    roster = tuple(make_advert(secrets[site], terms, site, public[site], identities[site].sign) for site in sites)
    return KeySession(terms, identities, secrets, roster)


@pytest.fixture(scope="session")
def make_key_session() -> Callable[..., KeySession]:
    """Build a key session of this number of sites from a seed."""
    return _key_session


@pytest.fixture(scope="session")
def weakened() -> Callable[[Sequence[ModuleType], Reason], object]:
    """A copy of our checks without one of them, inside the context."""

    @contextmanager
    def weaken(modules: Sequence[ModuleType], reason: Reason) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module in modules:
                for name in ("require", "_verify"):
                    if hasattr(module, name):
                        patch.setattr(module, name, _lenient(getattr(module, name), reason))
            yield

    return weaken


def _lenient(check: Callable[..., None], reason: Reason) -> Callable[..., None]:
    def lenient(*arguments: object) -> None:
        try:
            check(*arguments)
        except MaskingRefused as refused:
            if refused.reason is not reason:
                raise

    return lenient
