"""A coordinator that manipulates keys: its own keys in a site's place, sites of its own, keys of low order. It relays
every key and controls the authority that issues certificates. The list of identity keys in the plan, which each
hospital approved, stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protos.masking.key_session import KeySessionSecret, KeySessionTerms, acknowledge, make_advert, transcript
from protos.masking.masking_refusals import Reason
from protos.plan.plan import Plan
from protos.wire.messages import KeyAdvert, KeySessionAcknowledgement, KeySessionOpen, KeySessionRoster, KeySessionSeal
from tests.federation import Integers, Site, identity_key, masked_plan, of_kind
from tests.hostile.attack import Attack, Weakened, as_attack, played
from tests.hostile.masking_coordinator import among, ask_for, enter, found, strip, total
from tests.hostile.masking_weakened import key_of_zero, with_a_careless_exchange, without, without_the_plans_list

LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))  # 0 and 1: their product with any secret is zero


class Impostor:
    """An attacker who plays a site with keys of his own."""

    def __init__(self, plan: Plan, names: tuple[str, ...], own: str, identity: Ed25519PrivateKey) -> None:
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


async def _surround(victim: Site, impostors: list[Impostor]) -> Integers | None:
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


def _surrounded(
    plan: Plan, impostors: list[Impostor], is_refused: Callable[[Site], bool], is_weak: bool, weakened: Weakened
) -> bool:
    async def scene(folder: Path) -> bool:
        victim = Site("a", plan, folder)
        await enter([victim])
        recovered = await _surround(victim, impostors)
        if recovered is None:
            assert is_refused(victim)
        return recovered is not None and found(recovered, victim.update())

    return played(scene, is_weak, weakened)


def substituted_keys(weakened: bool, count: int) -> bool:
    """Put the coordinator's own keys in every other site's place, and remove the masks from the victim's upload."""
    plan = masked_plan(names := "abcdefg"[:count])
    impostors = [Impostor(plan, plan.site_names, name, Ed25519PrivateKey.generate()) for name in names[1:]]
    refuses = partial(refused, reason=Reason.WRONG_IDENTITY_KEY)
    return _surrounded(plan, impostors, refuses, weakened, without_the_plans_list)


def invented_sites(weakened: bool) -> bool:
    """Surround the victim with invented sites that have valid certificates."""
    plan, names = masked_plan("abc"), ("a", "invented-1", "invented-2")
    impostors = [Impostor(plan, names, name, Ed25519PrivateKey.generate()) for name in names[1:]]

    def is_refused(victim: Site) -> bool:
        reasons = [record["reason"] for record in victim.records("coordinator_refused")]
        is_named = reasons == ["a key session of other sites than those of the plan"]
        return is_named and victim.error is not None and victim.chunks == []

    return _surrounded(plan, impostors, is_refused, weakened, without_the_plans_list)


def unsigned_adverts(weakened: bool) -> bool:
    """Show the right identity keys beside exchange keys that their sites did not sign."""
    plan = masked_plan("abc")
    impostors = [Impostor(plan, plan.site_names, name, Ed25519PrivateKey.generate()) for name in "bc"]
    for one in impostors:
        public = identity_key(one.own).public_key().public_bytes_raw()
        one.advert = KeyAdvert(one.own, 1, one.advert.exchange_key, bytes(32), public, one.advert.signature)
    weakening = partial(without, Reason.ADVERT_NOT_SIGNED, Reason.ACKNOWLEDGEMENT_NOT_SIGNED)
    return _surrounded(plan, impostors, partial(refused, reason=Reason.ADVERT_NOT_SIGNED), weakened, weakening)


@as_attack(with_a_careless_exchange)
async def small_order_keys(folder: Path) -> bool:
    """Have the other two sites show keys of low order, so that any onlooker takes off the masks of the third."""
    plan = masked_plan("abc")
    victim = Site("a", plan, folder)
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
    if victim.error is not None:
        assert refused(victim, Reason.LOW_ORDER_KEY)
        return False
    upload = await ask_for(victim, 0, 0, plan.site_names)
    seen = transcript(others[0].terms, roster)
    keys = {name: key_of_zero(seen, "a", name) for name in "bc"}  # nobody's secret is needed
    return found(strip(plan, "a", plan.site_names, keys, seen, upload), victim.update())


class _Fixed(KeySessionSecret):
    """A site that advertises a public key which it did not make."""

    def __init__(self, point: bytes) -> None:
        super().__init__(X25519PrivateKey.generate(), bytes(32))
        self._point = point

    def advertise(self) -> tuple[bytes, bytes]:
        return self._point, bytes(32)


@as_attack(lambda: without(Reason.ANOTHER_TRANSCRIPT, Reason.ACKNOWLEDGEMENT_NOT_SIGNED))
async def different_rosters(folder: Path) -> bool:
    """Send sites different rosters, with a site that answers both, and let them send contributions. The attacker wants
    masked chunks of sites that do not agree on who takes part. Even these chunks do not add up, because the transcript
    is in the salt of every pair's key. The attack asserts that as well."""
    plan = masked_plan("abcd")
    sites = [Site(name, plan, folder / name) for name in "abc"]
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
    if any(site.error is not None for site in sites):
        assert all(refused(site, Reason.ANOTHER_TRANSCRIPT) for site in sites)
        return False
    uploads = {site.name: await ask_for(site, 0, 0, plan.site_names) for site in sites}
    updates, is_consistent = total(plan, uploads.values())
    assert not is_consistent
    assert not any(found(updates, site.update()) for site in sites)
    return all(uploads.values())


@among("abc", lambda: without(Reason.WRONG_KEY_SESSION))
async def reopened_key_session(plan: Plan, sites: list[Site]) -> bool:
    """Open a sealed key session again, so that its number stands for two sets of keys."""
    victim = sites[0]
    again = of_kind(await victim.tell(KeySessionOpen(1, plan.site_names)), KeyAdvert)
    if not again:
        assert refused(victim, Reason.WRONG_KEY_SESSION)
        return False
    assert again[0].exchange_key != of_kind(victim.said, KeyAdvert)[0].exchange_key  # no key is used twice
    return True


@as_attack(lambda: without(Reason.ADVERT_NOT_SIGNED))
async def replayed_advert(folder: Path) -> bool:
    """Replay an advert of an earlier key session, whose secret the attacker has since obtained."""
    plan = masked_plan("abc")
    victim = Site("a", plan, folder)
    await enter([victim])
    # The keys of b and c of key session 1 were honest and are known now. b and c do not sign again.
    old = [Impostor(plan, plan.site_names, name, identity_key(name)) for name in "bc"]
    (own,) = of_kind(await victim.tell(KeySessionOpen(2, plan.site_names)), KeyAdvert)
    replayed = [replace(other.advert, key_session=2) for other in old]
    roster = (own, *replayed)
    answer = of_kind(await victim.tell(KeySessionRoster(2, roster)), KeySessionAcknowledgement)
    if not answer:
        assert refused(victim, Reason.ADVERT_NOT_SIGNED)
    return bool(answer)


ATTACKS = (
    *(
        Attack(
            name=f"substituted-keys-{count}-sites",
            tries="the coordinator puts keys of its own in every other site's place and unmasks the victim's update",
            without="the plan's list of identity keys",
            run=partial(substituted_keys, count=count),
        )
        for count in (3, 5)
    ),
    Attack("invented-sites", "the plan's list of identity keys", invented_sites),
    Attack("unsigned-adverts", "the signatures on key adverts", unsigned_adverts),
    Attack("replayed-adverts", "the signatures on key adverts, which cover the key session", replayed_advert),
    Attack("reopened-key-session", "the rule that a key session's number is used once", reopened_key_session),
    Attack("small-order-keys", "the refusal of an all-zero shared secret", small_order_keys),
    Attack("different-rosters", "the comparison of transcripts", different_rosters),
)
