"""Drawn histories of sets, and the exact results that a coordinator could compute from the answered sums.

A history has several plans over the same sites, rounds, attempts, sites that only evaluate, restarts and steps that are
over. Every site has its own ledger, as text between two rounds. A sum is answered if every site of the set that does
not collude permits it. The oracle does not use atoms: it is linear algebra over whole numbers.

    python -m tests.laws.sets_over_rounds [HISTORIES]
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

from protos.masking.answered_sets import Answer, Listing
from protos.masking.ledger import Ask, Comparison, Ledger, Mark
from protos.masking.masking_refusals import MaskingRefused
from protos.plan.contributors import FIGURES, UPDATES

Rows = tuple[tuple[int, ...], ...]


@dataclass
class Holder:
    """One site: the texts of its ledgers by run, and every answer that it gave."""

    texts: dict[str, str] = field(default_factory=dict)
    given: Counter[Answer] = field(default_factory=Counter)


@dataclass
class History:
    """The drawn history and its result."""

    smallest: int
    budget: int
    colluders: frozenset[str]
    holders: dict[str, Holder]
    answered: Counter[Answer] = field(default_factory=Counter)
    refused: int = 0


def play(seed: int) -> History:
    """One history; equal seeds give equal ones."""
    draw = random.Random(seed)  # draws test cases
    sites = [f"s{number:02}" for number in range(draw.randint(4, 11))]
    budget = draw.choice((0, 0, 0, 1, 2, 3))
    colluders = frozenset(draw.sample(sites, draw.choice((0, 0, 1))))
    history = History(3, budget, colluders, {site: Holder() for site in sites})
    for number in range(draw.randint(1, 3)):
        _run(draw, history, f"run-{number}", _listing(draw, sites))
    return history


def _listing(draw: random.Random, sites: list[str]) -> Listing:
    """A plan's sites: all, or fewer; sometimes one of them only evaluates."""
    listed = sorted(draw.sample(sites, draw.randint(max(3, len(sites) - 4), len(sites))))
    evaluating = set(draw.sample(listed, draw.choice((0, 0, 1)))) if len(listed) > 4 else set()
    names = {site: f"key of {site}" for site in listed}
    return Listing(names, {UPDATES: frozenset(set(listed) - evaluating), FIGURES: frozenset(listed)})


def _run(draw: random.Random, history: History, run: str, listing: Listing) -> None:
    listed, training = sorted(listing.identities), listing.kinds[UPDATES]
    quorum = max(3, (len(training) + len(history.colluders)) // 2 + 1)
    groups = [listed[start : start + 3] for start in range(0, len(listed) - len(listed) % 3, 3)]
    before, step, attempt = list(listed), 0, 0
    for _ in range(draw.randint(3, 14)):
        wanted = _next_set(draw, listed, before, groups)
        if len(set(wanted) & training) >= quorum:
            attempt = attempt + 1 if draw.random() < 0.2 else 0
            step += attempt == 0
            if _answer(history, run, listing, Mark(step, attempt), tuple(sorted(wanted))):
                before = wanted
        if draw.random() < 0.2:
            _forget(history, run, step - draw.randint(0, 3))


def _next_set(draw: random.Random, listed: list[str], before: list[str], groups: list[list[str]]) -> list[str]:
    """The same set, one that lost or gained few, one of whole groups, or any."""
    away = [site for site in listed if site not in before]
    match draw.randrange(6):
        case 0 | 1:
            return before
        case 2:
            return draw.sample(before, max(1, len(before) - draw.randint(1, 3)))
        case 3:
            return before + draw.sample(away, min(len(away), draw.randint(1, 3)))
        case 4 if groups:
            return [site for group in draw.sample(groups, draw.randint(1, len(groups))) for site in group]
        case _:
            return draw.sample(listed, draw.randint(1, len(listed)))


def _answer(history: History, run: str, listing: Listing, mark: Mark, sites: tuple[str, ...]) -> bool:
    """Ask every site of the set; only if all that are honest permit it is there a sum."""
    permitted = [_permits(history, site, run, listing, mark, sites) for site in set(sites) - history.colluders]
    history.refused += not all(permitted)
    if all(permitted):
        history.answered[listing.answer(run, sites)] += 1
    return all(permitted)


def _permits(history: History, site: str, run: str, listing: Listing, mark: Mark, sites: tuple[str, ...]) -> bool:
    """One site's part. Its masked answers count for it; the acts of the others do not matter."""
    holder = history.holders[site]
    ledger, others = ledgers_of(holder, run, listing)
    known = ledger.steps.get(mark.step)
    again = next((entry for entry in known.masked if entry.contributors == sites), None) if known else None
    resample = mark.attempt if again is None else again.resample
    ask, vector = Ask(mark, _digest(run, mark.step), sites, resample), _digest(site, run, mark.step, resample)
    compared = Comparison(history.smallest, others)
    try:
        frozen = ledger.freeze(ask, _digest(run, mark, sites), vector, compared, history.budget)
    except MaskingRefused:
        return False
    holder.texts[run] = frozen.to_text()
    holder.given[listing.answer(run, sites)] += again is None
    return True


def ledgers_of(holder: Holder, run: str, listing: Listing) -> tuple[Ledger, Counter[Answer]]:
    """A site's ledger of a run, as it comes back from disk, and its answers in all other runs."""
    ledger = Ledger.from_text(holder.texts[run], run) if run in holder.texts else Ledger(run, listing)
    others: Counter[Answer] = Counter()
    for other, text in holder.texts.items():
        others += Ledger.from_text(text, other).answered() if other != run else Counter()
    return ledger, others


def _forget(history: History, run: str, oldest: int) -> None:
    for holder in history.holders.values():
        if run in holder.texts:
            holder.texts[run] = Ledger.from_text(holder.texts[run], run).forget_before(oldest).to_text()


def _digest(*fields: object) -> bytes:
    return hashlib.sha256(repr(fields).encode()).digest()


# The oracle


def smallest_support(answers: Iterable[Answer]) -> int | None:
    """The fewest sites in any combination of these sums that is not 0, over all kinds; None where there is no sum."""
    by_kind: dict[str, set[frozenset[str]]] = {}
    for answer in answers:
        for kind, sites in answer.kinds:
            by_kind.setdefault(kind, set()).add(sites)
    return min((_smallest_in_span(sets) for sets in by_kind.values()), default=None)


def _smallest_in_span(sets: set[frozenset[str]]) -> int:
    """A combination lives on the sites S alone where leaving out the columns of S lowers the rank."""
    sites = sorted(frozenset[str]().union(*sets))
    rows = _reduced(tuple(tuple(int(site in members) for site in sites) for members in sorted(sets, key=sorted)))
    for size in range(1, len(sites) + 1):
        for left_out in combinations(range(len(sites)), size):
            kept = [place for place in range(len(sites)) if place not in left_out]
            if len(_reduced(tuple(tuple(row[place] for place in kept) for row in rows))) < len(rows):
                return size
    raise AssertionError("a sum has contributors")


def _reduced(rows: Rows) -> Rows:
    """Independent rows with the same span, by elimination without rounding."""
    kept: list[tuple[int, list[Fraction]]] = []
    found = []
    for row in rows:
        rest = [Fraction(number) for number in row]
        for place, pivot in kept:
            if rest[place]:
                factor = rest[place] / pivot[place]
                rest = [number - factor * other for number, other in zip(rest, pivot, strict=True)]
        first = next((place for place, number in enumerate(rest) if number), None)
        if first is not None:
            kept.append((first, rest))
            found.append(row)
    return tuple(found)


def unpaid_support(given: Mapping[Answer, int], budget: int) -> int | None:
    """The smallest support after the best removal of at most `budget` answers; None where no sum is left."""
    best: int | None = 0
    for removed in _removals(sorted(given, key=repr), given, budget):
        found = smallest_support(answer for answer in given if answer not in removed)
        best = None if best is None or found is None else max(best, found)
    return best


def _removals(answers: list[Answer], given: Mapping[Answer, int], budget: int) -> Iterator[set[Answer]]:
    for count in range(min(budget, len(answers)) + 1):
        for removed in combinations(answers, count):
            if sum(given[answer] for answer in removed) <= budget:
                yield set(removed)


def main(histories: int) -> None:
    """Play this number of histories and print the observations."""
    sums = refused = 0
    at_a_site: Counter[int] = Counter()
    together: Counter[int] = Counter()
    for seed in range(histories):
        history = play(seed)
        sums, refused = sums + history.answered.total(), refused + history.refused
        for site in set(history.holders) - history.colluders:
            found = unpaid_support(history.holders[site].given, history.budget)
            at_a_site[history.smallest if found is None else found] += 1
        found = smallest_support(history.answered) if not history.budget else None
        together[history.smallest if found is None else found] += 1
    print(f"histories={histories} sums_answered={sums} sums_refused={refused}")
    print(f"smallest_set=3 smallest_support_at_a_site={min(at_a_site)} over_all_sites_without_budget={min(together)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
