"""Computes which sums a site may send in all its runs, and how much of the hospital's budget each sum costs.

docs/privacy.md has the model, the invariant, and what one site cannot detect. Source: So et al. 2023, "Securing
Secure Aggregation: Mitigating Multi-Round Privacy Leakage", section 4. Their groups of sites are fixed. Here the groups
are atoms: sites that were in exactly the same answered sums.

The rules:

* in the free sums every atom has at least the smallest set of sites, so no combination of them isolates fewer;
* all other sums are paid: each costs one unit of the budget;
* the rules apply to each kind of number by itself: updates, figures, and each column or output that only some sites
  record;
* sums of two plans are free only if their sets are the same or have no site in common;
* an atom that is too small is priced even if no combination isolates it. So the price is never too low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from protos.plan.contributors import FIGURES, UPDATES, kinds_of
from protos.plan.plan import Plan

Kinds: TypeAlias = frozenset[tuple[str, frozenset[str]]]


@dataclass(frozen=True)
class Answer:
    """One sum to which this site contributed.

    Attributes:
        run: the run of the sum; a run has one plan.
        kinds: for each kind of number its contributors, as fingerprints of their identity keys.
    """

    run: str
    kinds: Kinds


@dataclass(frozen=True)
class Listing:
    """The sites that contribute to each number of a plan.

    Attributes:
        identities: for each site the fingerprint of its identity key. A site's name may differ between plans.
        kinds: for each kind of number the names of the sites whose contribution can differ from 0.
    """

    identities: Mapping[str, str]
    kinds: Mapping[str, frozenset[str]]

    def answer(self, run: str, contributors: Iterable[str]) -> Answer:
        """Return the record of a sum over these sites. Omit each kind of number to which none of them contributes."""
        names = frozenset(contributors)
        found = ((kind, frozenset(self.identities[name] for name in names & of)) for kind, of in self.kinds.items())
        return Answer(run, frozenset((kind, sites) for kind, sites in found if sites))


def listing_of(plan: Plan) -> Listing:
    """Return for each kind of number in a plan the sites that contribute to it."""
    return Listing({site.name: site.identity for site in plan.sites}, kinds_of(plan))


def listing_of_equals(names: Iterable[str], identities: Mapping[str, str] | None = None) -> Listing:
    """Return a list in which every site contributes to every number. A site's name replaces a missing identity."""
    known = {name: (identities or {}).get(name, name) for name in names}
    return Listing(known, {UPDATES: frozenset(known), FIGURES: frozenset(known)})


def atoms(sets: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Divide the sites into groups of sites that belong to exactly the same sets."""
    found: list[frozenset[str]] = []
    for added in sets:
        split = [part for atom in found for part in (atom & added, atom - added) if part]
        rest = added.difference(*found) if found else added
        found = [*split, rest] if rest else split
    return tuple(found)


def isolates(answers: Iterable[Answer], smallest: int) -> bool:
    """Return whether anyone could compute from these sums the sum of fewer sites than `smallest`."""
    by_kind: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for answer in answers:
        for kind, sites in answer.kinds:
            by_kind.setdefault(kind, []).append((answer.run, sites))
    return any(_are_unlike(sums) or _are_small(sums, smallest) for sums in by_kind.values())


def _are_small(sums: list[tuple[str, frozenset[str]]], smallest: int) -> bool:
    return any(len(atom) < smallest for atom in atoms(sites for _, sites in sums))


def _are_unlike(sums: list[tuple[str, frozenset[str]]]) -> bool:
    return any(one != other and sites != others and sites & others for one, sites in sums for other, others in sums)


def paid_part(answered: Mapping[Answer, int], smallest: int) -> dict[Answer, int]:
    """Return the sums that use the hospital's budget, each with its count."""
    free: list[Answer] = []
    paid: dict[Answer, int] = {}
    # The most frequent sums become free first, so that few cost budget. The second key makes the order the same
    # everywhere.
    for answer in sorted(answered, key=lambda entry: (-answered[entry], _in_order(entry))):
        if isolates([*free, answer], smallest):
            paid[answer] = answered[answer]
        else:
            free.append(answer)
    return paid


def price(answered: Mapping[Answer, int], smallest: int) -> int:
    """Return how much of the hospital's budget these sums use. It is 0 if no combination of them isolates a site."""
    return 0 if are_together_safe(frozenset(answered), smallest) else sum(paid_part(answered, smallest).values())


@lru_cache(maxsize=64)
def are_together_safe(answers: frozenset[Answer], smallest: int) -> bool:
    """Return whether no combination of these sums isolates a site, however often each was sent.

    Fewer sets have coarser atoms and fewer pairs. So if all sums together isolate nobody, no part of them does. In most
    runs that is so in each round.
    """
    return not isolates(answers, smallest)


def with_one_more(answered: Mapping[Answer, int], answer: Answer) -> Counter[Answer]:
    """Return how often each sum was sent, after adding this sum."""
    more = Counter(answered)
    more[answer] += 1
    return more


def _in_order(answer: Answer) -> tuple[str, list[tuple[str, list[str]]]]:
    return answer.run, sorted((kind, sorted(sites)) for kind, sites in answer.kinds)
