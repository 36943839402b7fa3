"""Masks this site's contributions: agrees on keys with the other sites, and makes the masks of a round.

Keys exist only in the memory of this process, so no restart and no earlier backup lets this site use a mask twice.
masked_steps.py has the digests of the masked vectors on disk before a byte is sent. The mathematics is in
protos/masking/, and answered_sets.py there compares the plan with other plans.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from functools import cached_property

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from host.record_store import Store
from protos.masking.answered_sets import answer_of, why_not_answered
from protos.masking.key_session import (
    KeySessionSecret,
    KeySessionTerms,
    acknowledge,
    check_acknowledgements,
    check_roster,
    make_advert,
    transcript,
)
from protos.masking.mask_stream import Masker, encoding_name, round_context
from protos.masking.masking_refusals import MaskingRefused, Reason, require
from protos.numbers.chunk_layout import Layout
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import (
    Bind,
    KeyAdvert,
    KeySessionAcknowledgement,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
)
from site_agent.gate.masked_steps import MaskedSteps


class SiteMasking:
    """Masks the contributions of one site in one run."""

    def __init__(
        self,
        *,
        plan: Plan,
        manifest: Manifest,
        site: str,
        identity_key: Ed25519PrivateKey,
        store: Store,
        beside: frozenset[str] = frozenset(),
    ) -> None:
        """Begin without keys. `store` is the gate's. Persons here allowed the sums of the runs in `beside`."""
        self._plan, self._manifest, self._site = plan, manifest, site
        self._identity_key, self._store = identity_key, store
        self._encoding = encoding_name(plan.masking.clipping_range, len(plan.sites), plan.bits)
        answer = answer_of(plan)
        self._steps = MaskedSteps(store, answer)
        self._sent: tuple[bytes, bytes] | None = None  # the newest context, and the vector that was masked under it
        self._why_not = why_not_answered(answer, self._steps.answered_beside(beside))
        self._terms: KeySessionTerms | None = None
        self._secret: KeySessionSecret | None = None
        self._advert: KeyAdvert | None = None
        self._roster: tuple[KeyAdvert, ...] = ()
        self._transcript = b""
        self._highest_key_session = 0
        self.key_session = 0

    @cached_property
    def void_key(self) -> bytes:
        """Return the secret from which this site's voids are drawn, 32 bytes. A restarted gate sends the same void."""
        return blake3(self._identity_key.private_bytes_raw(), derive_key_context="global-layers void").digest()

    def open(self, message: KeySessionOpen) -> KeyAdvert:
        """Create this site's masking keys for a new key session, and delete the keys of the previous session.

        Raises:
            MaskingRefused: the key session is not new, or its sites are not exactly the plan's.
        """
        require(message.key_session > self._highest_key_session, Reason.WRONG_KEY_SESSION)
        require(message.sites == self._plan.site_names, Reason.OTHER_SITES)
        self.forget()
        self._highest_key_session = message.key_session
        self._terms = KeySessionTerms(
            run=self._plan.run_name,
            key_session=message.key_session,
            plan_digest=self._plan.digest,
            candidates=message.sites,
            identities=tuple(sorted((site.name, site.identity) for site in self._plan.sites)),
        )
        self._secret = KeySessionSecret(X25519PrivateKey.generate(), secrets.token_bytes(32))
        own_identity = self._identity_key.public_key().public_bytes_raw()
        self._advert = make_advert(self._secret, self._terms, self._site, own_identity, self._identity_key.sign)
        return self._advert

    def check(self, message: KeySessionRoster) -> KeySessionAcknowledgement:
        """Check the masking key of every site, and sign the list of these keys.

        Raises:
            MaskingRefused: a key is not in the plan, or the roster does not belong to this key session.
        """
        terms, advert = self._opened(message.key_session)
        require(not self._roster, Reason.ANOTHER_TRANSCRIPT)
        check_roster(terms, message.adverts, advert)
        self._roster, self._transcript = message.adverts, transcript(terms, message.adverts)
        return acknowledge(terms, self._site, self._transcript, self._identity_key.sign)

    def seal(self, message: KeySessionSeal) -> None:
        """Compute the shared masking key with each other site, after all sites have signed the same list of keys.

        Raises:
            MaskingRefused: a site is missing or has received another roster.
        """
        terms, _ = self._opened(message.key_session)
        require(bool(self._roster) and self._secret is not None, Reason.ACKNOWLEDGEMENTS_INCOMPLETE)
        check_acknowledgements(terms, self._transcript, message.acknowledgements, self._roster)
        assert self._secret is not None
        self._secret.agree(self._site, self._roster, self._transcript)
        self.key_session = message.key_session

    def forget(self) -> None:
        if self._secret is not None:
            self._secret.forget()
        self._secret, self._terms, self._advert, self._roster, self.key_session = None, None, None, (), 0
        self._sent = None

    def freeze(self, position: bytes, bind: Bind, layout: Layout, vector: bytes) -> None:
        """Record which vector will be masked. Nothing may be sent before the transaction of the store is on disk.

        Args:
            position: digest of the inputs of the vector.
            bind: attempt and contributors.
            vector: digest of the whole encoded vector, 32 bytes.

        Raises:
            MaskingRefused: this vector may not be masked for this step and set.
            StoreError: the disk cannot be written.
        """
        self._check_bind(bind)
        context = self._context(position, bind, layout)
        if self._sent is not None and self._sent[0] == context:  # the same bytes are sent again
            require(hmac.compare_digest(self._sent[1], vector), Reason.OTHER_VECTOR)
            return

        def masked() -> None:
            self._sent = (context, vector)

        with self._store.transaction():
            self._steps.add(bind.round, bind.attempt, position, vector)
            self._store.after(masked)

    def masked(self, position: bytes, bind: Bind, layout: Layout, buffer: memoryview) -> Iterator[memoryview]:
        """Yield those masked chunks of a recorded vector that the coordinator does not have."""
        assert self._secret is not None
        keys, context = self._secret.pair_keys, self._context(position, bind, layout)
        masker = Masker(own=self._site, contributors=bind.sites, pair_keys=keys, context=context, layout=layout)
        for index in range(bind.first_chunk, layout.chunks):
            yield masker.masked(layout.body(buffer, index), index)

    def _opened(self, key_session: int) -> tuple[KeySessionTerms, KeyAdvert]:
        if self._terms is None or self._advert is None or self._terms.key_session != key_session or self.key_session:
            raise MaskingRefused(Reason.WRONG_KEY_SESSION)
        return self._terms, self._advert

    def _check_bind(self, bind: Bind) -> None:
        require(self.key_session > 0, Reason.WRONG_KEY_SESSION)
        if self._why_not is not None:
            require(False, self._why_not)
        require(bind.sites == self._plan.site_names, Reason.OTHER_SITES)

    def _context(self, position: bytes, bind: Bind, layout: Layout) -> bytes:
        asked = (self._transcript, position, bind.attempt, bind.sites)
        return round_context(*asked, self._manifest.digest, layout.total_bytes, self._encoding)
