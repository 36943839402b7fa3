"""Computes the cost of unreliable sites if sites limit the sets of contributors: rounds of waiting, or budget units.

    python benchmarks/flaky_sites.py

A site is away for ten rounds on average, and for the given share of the time. Three rules are compared: wait for all;
continue with the connected sites if they are a quorum; continue with fixed groups of three if all three are connected.
Prices are those of protos/masking/answered_sets.py.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator

from protos.masking.answered_sets import listing_of_equals, price

ROUNDS, REPEATS, OUTAGE_ROUNDS, SMALLEST = 200, 20, 10.0, 3


def presence(draw: random.Random, sites: int, share: float) -> Iterator[frozenset[int]]:
    """Yield the connected sites in each period that has the length of a round. At first, all sites are connected."""
    leaves = share / (1 - share) / OUTAGE_ROUNDS
    there = [True] * sites
    while True:
        yield frozenset(site for site in range(sites) if there[site])
        there = [draw.random() >= leaves if is_there else draw.random() < 1 / OUTAGE_ROUNDS for is_there in there]


def run_of(way: str, sites: int, share: float, seed: int) -> tuple[float, int]:
    """Return for one run the number of periods for each round, and the units of the budget that were used."""
    draw = random.Random(seed)  # draws the absent sites
    quorum = max(3, (sites + 1) // 2 + 1)
    groups = [frozenset(range(start, start + 3)) for start in range(0, sites, 3)]
    made = waited = 0
    sums: Counter[frozenset[int]] = Counter()
    for there in presence(draw, sites, share):
        waited += 1
        if way == "groups":
            there = frozenset(site for group in groups if group <= there for site in group)
        if len(there) >= (sites if way == "wait" else quorum):
            sums[there] += 1
            made += 1
        if made == ROUNDS:
            break
    listing = listing_of_equals(str(site) for site in range(sites))
    answered = Counter({listing.answer("run", map(str, there)): count for there, count in sums.items()})
    return waited / ROUNDS, price(answered, SMALLEST)


def main() -> None:
    """Print the table as Markdown."""
    print("| sites | away | wait: time | go on: time | go on: units | groups of three: time | units |")
    print("|---|---|---|---|---|---|---|")
    for sites in (4, 6, 9, 12):
        for share in (0.01, 0.05):
            cells = []
            for way in ("wait", "go on", "groups"):
                if way == "groups" and sites % 3:
                    cells += ["", ""]
                    continue
                runs = [run_of(way, sites, share, seed) for seed in range(REPEATS)]
                time = statistics.mean(time for time, _ in runs)
                units = statistics.mean(units for _, units in runs)
                cells += [f"{time:.2f}"] + ([f"{units:.0f}"] if way != "wait" else [])
            print(f"| {sites} | {share:.0%} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
