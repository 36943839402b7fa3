"""A coordinator that meddles with keys: its own in a site's place, sites of its own, keys of low order.

It relays every key and owns the authority that issues certificates. What stops it is the list of
identity keys in the plan that each hospital approved.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protos.masking.key_session import KeySessionSecret, KeySessionTerms, acknowledge, make_advert, transcript
from protos.masking.masking_refusals import Reason
from protos.plan.plan import Plan
from protos.wire.messages import KeyAdvert, KeySessionAcknowledgement, KeySessionOpen, KeySessionRoster, KeySessionSeal
from tests.hostile.masking_coordinator import agree, ask_for, enter, found, strip, total
from tests.hostile.masking_federation import Integers, Site, encoded, identity_key, masked_plan, of_kind, sites_of
from tests.hostile.masking_weakened import key_of_zero, with_a_careless_exchange, without, without_the_plans_list
from tests.rehearsal.made_up_time import play

LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))  # 0 and 1: their product with any secret is zero


class Impostor:
    """Somebody who plays a site with keys of his own."""

    def __init__(
        self, plan: Plan, names: tuple[str, ...], own: str, identity: Ed25519PrivateKey, key_session: int = 1
    ) -> None:
        listed = {site.name: site.identity for site in plan.sites}
        identities = tuple(sorted((name, listed.get(name, "aaaa")) for name in {*listed, *names}))
        self.terms = KeySessionTerms(
            run=plan.run_name, key_session=1, plan_digest=plan.digest, candidates=names, identities=identities
        )
        self.own, self.identity = own, identity
        self.secret = KeySessionSecret(X25519PrivateKey.generate(), bytes(32))
        public = identity.public_key().public_bytes_raw()
        self.advert = make_advert(self.secret, self.terms, own, public, identity.sign)

    def acknowledge(self, roster: Iterable[KeyAdvert]) -> KeySessionAcknowledgement:
        """The signature under whatever the victim was shown."""
        return acknowledge(self.terms, self.own, transcript(self.terms, list(roster)), self.identity.sign)

    def key_with(self, victim: str, roster: Iterable[KeyAdvert]) -> bytes:
        """The key of the pair, which the victim believes to share with an honest site."""
        self.secret.agree(self.own, list(roster), transcript(self.terms, list(roster)))
        return self.secret.pair_keys[victim]


async def surround(victim: Site, impostors: list[Impostor]) -> Integers | None:
    """Lead a site through a whole round among impostors; its change in the clear, or None."""
    names = tuple(sorted([victim.name, *(impostor.own for impostor in impostors)]))
    answer = of_kind(await victim.tell(KeySessionOpen(1, names)), KeyAdvert)
    if not answer:
        return None
    roster = tuple(sorted([*answer, *(impostor.advert for impostor in impostors)], key=lambda advert: advert.site))
    signed = of_kind(await victim.tell(KeySessionRoster(1, roster)), KeySessionAcknowledgement)
    if not signed:
        return None
    everyone = [*signed, *(impostor.acknowledge(roster) for impostor in impostors)]
    await victim.tell(KeySessionSeal(1, tuple(sorted(everyone, key=lambda entry: entry.site))))
    upload = await ask_for(victim, 0, 0, names)
    if not upload:
        return None
    keys = {impostor.own: impostor.key_with(victim.name, roster) for impostor in impostors}
    return strip(victim.plan, victim.name, names, keys, transcript(impostors[0].terms, roster), upload)


def refused(site: Site, reason: Reason) -> bool:
    """Whether the site stopped for this reason, said so in its audit log, and sent no chunk."""
    because = [record.get("because") for record in site.records("participation_ended")]
    return site.error is not None and because == [str(reason)] and not site.chunks


@pytest.mark.parametrize("is_weak", [True, False])
@pytest.mark.parametrize("count", [3, 5])
def test_keys_in_other_sites_places_are_refused(tmp_path: Path, count: int, is_weak: bool) -> None:
    """A coordinator that re-issues every other site's name with keys of its own sees a bare change only where
    certificates are believed; against the plan's list it sees nothing."""
    plan = masked_plan("abcdefg"[:count])

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])
        names = plan.site_names
        impostors = [Impostor(plan, names, name, Ed25519PrivateKey.generate()) for name in names if name != "a"]

        recovered = await surround(victim, impostors)

        if is_weak:
            assert recovered is not None
            assert found(recovered, victim.change())
        else:
            assert recovered is None
            assert refused(victim, Reason.WRONG_IDENTITY_KEY)

    if is_weak:
        with without_the_plans_list():
            play(scene())
    else:
        play(scene())


@pytest.mark.parametrize("is_weak", [True, False])
def test_sites_that_the_coordinator_invents_are_refused(tmp_path: Path, is_weak: bool) -> None:
    """Invented sites with valid certificates hide nobody; an agent knows the plan's sites and no others."""
    plan = masked_plan("abc")

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])
        names = ("a", "invented-1", "invented-2")
        impostors = [Impostor(plan, names, name, Ed25519PrivateKey.generate()) for name in names[1:]]

        recovered = await surround(victim, impostors)

        if is_weak:
            assert recovered is not None
            assert found(recovered, victim.change())
        else:
            assert recovered is None
            assert (
                victim.records("coordinator_refused")[0]["reason"]
                == "a key session with sites that the plan does not list"
            )
            assert victim.error is not None
            assert victim.chunks == []

    if is_weak:
        with without_the_plans_list():
            play(scene())
    else:
        play(scene())


@pytest.mark.parametrize("is_weak", [True, False])
def test_an_advert_that_its_site_did_not_sign_is_refused(tmp_path: Path, is_weak: bool) -> None:
    """With the right identity keys shown, but exchange keys of the coordinator's own, only signatures tell."""
    plan = masked_plan("abc")

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])
        impostors = [Impostor(plan, plan.site_names, name, Ed25519PrivateKey.generate()) for name in "bc"]
        for impostor in impostors:
            public = identity_key(impostor.own).public_key().public_bytes_raw()
            impostor.advert = KeyAdvert(
                impostor.own, 1, impostor.advert.exchange_key, bytes(32), public, impostor.advert.signature
            )

        recovered = await surround(victim, impostors)

        if is_weak:
            assert recovered is not None
            assert found(recovered, victim.change())
        else:
            assert recovered is None
            assert refused(victim, Reason.ADVERT_NOT_SIGNED)

    if is_weak:
        with without(Reason.ADVERT_NOT_SIGNED, Reason.ACKNOWLEDGEMENT_NOT_SIGNED):
            play(scene())
    else:
        play(scene())


@pytest.mark.parametrize("is_weak", [True, False])
def test_keys_of_low_order_are_refused(tmp_path: Path, is_weak: bool) -> None:
    """Sites whose keys have low order, by malice or by a broken generator, would let any onlooker take off
    the masks of the third."""
    plan = masked_plan("abc")

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])
        others = [Impostor(plan, plan.site_names, name, identity_key(name)) for name in "bc"]
        for other, point in zip(others, LOW_ORDER, strict=True):
            other.secret = _Fixed(point)
            public = other.identity.public_key().public_bytes_raw()
            other.advert = make_advert(other.secret, other.terms, other.own, public, other.identity.sign)
        (own,) = of_kind(await victim.tell(KeySessionOpen(1, plan.site_names)), KeyAdvert)
        roster = (own, *(other.advert for other in others))
        (signed,) = of_kind(await victim.tell(KeySessionRoster(1, roster)), KeySessionAcknowledgement)
        await victim.tell(KeySessionSeal(1, (signed, *(other.acknowledge(roster) for other in others))))

        if not is_weak:
            assert refused(victim, Reason.LOW_ORDER_KEY)
            return
        upload = await ask_for(victim, 0, 0, plan.site_names)
        seen = transcript(others[0].terms, roster)
        keys = {name: key_of_zero(seen, "a", name) for name in "bc"}  # nobody's secret is needed
        assert found(strip(plan, "a", plan.site_names, keys, seen, upload), victim.change())

    if is_weak:
        with with_a_careless_exchange():
            play(scene())
    else:
        play(scene())


class _Fixed(KeySessionSecret):
    """A site whose public key is not of its own making."""

    def __init__(self, point: bytes) -> None:
        super().__init__(X25519PrivateKey.generate(), bytes(32))
        self._point = point

    def advertise(self) -> tuple[bytes, bytes]:
        return self._point, bytes(32)


@pytest.mark.parametrize("is_weak", [True, False])
def test_different_rosters_for_different_sites_end_before_anything_is_masked(tmp_path: Path, is_weak: bool) -> None:
    """A site of two faces signs two keys in one key session; sites that were shown different ones refuse. Where nobody
    compares transcripts they send, yet nothing is learnt: the transcript is in the salt of every pair's key."""
    plan = masked_plan("abcd", quorum=4)

    async def scene() -> None:
        sites = [Site(name, plan, tmp_path / name) for name in "abc"]
        await enter(sites)
        faces = [Impostor(plan, plan.site_names, "d", identity_key("d")) for _ in range(2)]
        adverts = [of_kind(await site.tell(KeySessionOpen(1, plan.site_names)), KeyAdvert)[0] for site in sites]
        rosters = [(*adverts, face.advert) for face in faces]
        shown = {"a": 0, "b": 1, "c": 1}
        signed = [
            of_kind(await site.tell(KeySessionRoster(1, rosters[shown[site.name]])), KeySessionAcknowledgement)[0]
            for site in sites
        ]
        for site in sites:
            face = shown[site.name]
            await site.tell(KeySessionSeal(1, (*signed, faces[face].acknowledge(rosters[face]))))

        if not is_weak:
            assert all(refused(site, Reason.ANOTHER_TRANSCRIPT) for site in sites)
            return
        uploads = {site.name: await ask_for(site, 0, 0, plan.site_names) for site in sites}
        assert all(uploads.values())
        changes, is_consistent = total(plan, uploads.values())
        assert not is_consistent
        assert not any(found(changes, site.change()) for site in sites)

    if is_weak:
        with without(Reason.ANOTHER_TRANSCRIPT, Reason.ACKNOWLEDGEMENT_NOT_SIGNED):
            play(scene())
    else:
        play(scene())


@pytest.mark.parametrize("is_weak", [True, False])
def test_a_key_session_that_comes_again_is_refused(tmp_path: Path, is_weak: bool) -> None:
    """Keys are fresh in every key session, and its number is used once; a sealed one is not opened again."""
    plan = masked_plan("abc")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        victim = sites[0]

        again = of_kind(await victim.tell(KeySessionOpen(1, plan.site_names)), KeyAdvert)

        first = of_kind(victim.said, KeyAdvert)[0]
        if is_weak:
            assert again[0].exchange_key != first.exchange_key  # even so no key serves twice
        else:
            assert again == []
            assert refused(victim, Reason.WRONG_KEY_SESSION)

    if is_weak:
        with without(Reason.WRONG_KEY_SESSION):
            play(scene())
    else:
        play(scene())


def test_what_a_coordinator_can_strip_is_what_a_site_trained(tmp_path: Path) -> None:
    """The comparison that these attacks end in is with the change itself, not with zeros."""
    plan = masked_plan("abc")

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])

        assert np.count_nonzero(victim.change()) == victim.change().size
        assert not found(victim.change(0), victim.change(1))
        assert not found(encoded(plan, np.zeros(10, np.float32)), victim.change())

    play(scene())
