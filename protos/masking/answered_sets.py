"""Computes which sums a site may send in all its runs, and how much of the budget each costs. Pure functions.

Source: So et al. 2023, "Securing Secure Aggregation: Mitigating Multi-Round Privacy Leakage", section 4. Where every
set of contributors is a union of fixed groups, a sum of sums is one too. The groups are not fixed beforehand here:
they are the atoms of what was answered.

**The model.** A coordinator chooses what it sends down, so it can send equal or nearly equal parameters in any two
rounds. This file therefore takes a site's contribution x_i for the same unknown in all rounds, attempts and runs. That
gives the coordinator more than it has: a contribution also depends on batches, draws and private layers. The sum over
the set U_t is the scalar product of its indicator vector 1_t with x. From answered sums a coordinator computes every
combination of them, with any real factors, and nothing else. A combination has the vector v = sum of factor_t * 1_t.
Its support is the set of sites i with v_i != 0.

**Atoms.** Two sites are in one atom if they were in the same answered sets. v_i depends on the atom of i alone, so a
support is a union of atoms. A site that was in no set is in no support.

**The invariant.** At every time the answered sums can be split in two. Those of the first part are free: each of
their atoms has at least the smallest set of sites, and so has the support of every combination of them except 0. The
second part is paid, and has at most as many sums as the hospital's budget. So a budget of 0 means that no combination
at all isolates fewer sites. Each unit of a budget is one sum, that is one linear equation, which the coordinator could
use to isolate fewer sites at one set of parameters. What follows:

* entering costs like leaving. A run that goes on without a site costs as many units as there are rounds with it, or
  rounds without it, whichever is less: each of those pairs could be made at parameters of their own;
* a return to an earlier set is free, and costs where it makes a further pair;
* one set in all rounds costs nothing. Sets that are unions of groups of at least the smallest set cost nothing.

**Per number.** A number of the vector to which only some sites contribute has a sum over these alone. So an answer
names the contributors of each kind of number: updates (sites that train), figures (all sites, also those that only
evaluate), and each column or output that not every site records. The invariant holds for every kind by itself.

**Over plans.** Sums of two plans are free only if their sets are the same or have no site in common. Atoms are not
enough: a whole, less a set that some of its sites saw, less a set that others of them saw, may leave one site, and no
site saw all three. Within a plan any two sets have more than half of the sites, so that an honest site saw both.

**Not exact, and priced as if the worst held.** An atom that is too small is priced even where no combination isolates
it. The paid part is found by a rule that keeps the sets with the most answers first: it may be larger than the
smallest possible, never less than is needed. An answer counts although other sites may never have sent their share.

**Not seen.** A site counts the sums that it was part of, and no others. Any two sets of a run share an honest site,
which counts both. For three sets without a common honest site that suffices: a combination cancels on at most two of
their three intersections. For more sets it is a law that tests draw (tests/laws/sets_over_rounds.py), not a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from protos.plan.contributors import FIGURES, UPDATES, kinds_of
from protos.plan.plan import Plan

Kinds: TypeAlias = frozenset[tuple[str, frozenset[str]]]


@dataclass(frozen=True)
class Answer:
    """One sum.

    Attributes:
        run: the run of the answer; a run has one plan.
        kinds: the contributors of every kind of number, by their identity keys' fingerprints.
    """

    run: str
    kinds: Kinds


@dataclass(frozen=True)
class Listing:
    """The sites that contribute to each number of a plan.

    Attributes:
        identities: for each site the fingerprint of its identity key. A name may differ between plans.
        kinds: for each kind of number the names of the sites whose contribution can differ from 0.
    """

    identities: Mapping[str, str]
    kinds: Mapping[str, frozenset[str]]

    def answer(self, run: str, contributors: Iterable[str]) -> Answer:
        """Return the sum over these sites. It omits each kind of number to which none of them contributes."""
        names = frozenset(contributors)
        found = ((kind, frozenset(self.identities[name] for name in names & of)) for kind, of in self.kinds.items())
        return Answer(run, frozenset((kind, sites) for kind, sites in found if sites))


def listing_of(plan: Plan) -> Listing:
    """Return which sites contribute to which numbers under a plan."""
    return Listing({site.name: site.identity for site in plan.sites}, kinds_of(plan))


def listing_of_equals(names: Iterable[str], identities: Mapping[str, str] | None = None) -> Listing:
    """Return a listing in which every site contributes to every number. A site without an identity has its name."""
    known = {name: (identities or {}).get(name, name) for name in names}
    return Listing(known, {UPDATES: frozenset(known), FIGURES: frozenset(known)})


def atoms(sets: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Group the sites that belong to exactly the same sets."""
    found: list[frozenset[str]] = []
    for added in sets:
        split = [part for atom in found for part in (atom & added, atom - added) if part]
        rest = added.difference(*found) if found else added
        found = [*split, rest] if rest else split
    return tuple(found)


def isolates(answers: Iterable[Answer], smallest: int) -> bool:
    """Return whether a combination of these sums might isolate fewer sites than the smallest set allows."""
    by_kind: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for answer in answers:
        for kind, sites in answer.kinds:
            by_kind.setdefault(kind, []).append((answer.run, sites))
    return any(_are_unlike(sums) or _are_small(sums, smallest) for sums in by_kind.values())


def _are_small(sums: list[tuple[str, frozenset[str]]], smallest: int) -> bool:
    return any(len(atom) < smallest for atom in atoms(sites for _, sites in sums))


def _are_unlike(sums: list[tuple[str, frozenset[str]]]) -> bool:
    """Whether two sums of two runs have some sites in common, but not all."""
    return any(one != other and sites != others and sites & others for one, sites in sums for other, others in sums)


def paid_part(answered: Mapping[Answer, int], smallest: int) -> dict[Answer, int]:
    """Return the answers that a combination needs to isolate a site, and how often each was given.

    Args:
        answered: the count of each answer.
        smallest: the fewest sites of an atom.

    Returns:
        a part of `answered`; the sum of its counts is the cost of the answers.
    """
    free: list[Answer] = []
    paid: dict[Answer, int] = {}
    # The most frequent first, so that few remain to be paid for. The second key makes the order the same everywhere.
    for answer in sorted(answered, key=lambda entry: (-answered[entry], _in_order(entry))):
        if isolates([*free, answer], smallest):
            paid[answer] = answered[answer]
        else:
            free.append(answer)
    return paid


def price(answered: Mapping[Answer, int], smallest: int) -> int:
    """Return the cost of these answers in units of the budget; 0 if no combination isolates a site."""
    return sum(paid_part(answered, smallest).values())


def with_one_more(answered: Mapping[Answer, int], answer: Answer) -> Counter[Answer]:
    """Return the tally after one more answer."""
    more = Counter(answered)
    more[answer] += 1
    return more


def _in_order(answer: Answer) -> tuple[str, list[tuple[str, list[str]]]]:
    return answer.run, sorted((kind, sorted(sites)) for kind, sites in answer.kinds)
