"""For every sequence of requested sets, no combination of answered sums isolates fewer sites than was paid for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from protos.masking.answered_sets import Answer
from tests.hostile.sets_weakened import (
    with_free_growth,
    with_short_memory,
    with_the_newest_set_alone,
    without_other_runs,
)
from tests.laws.sets_over_rounds import History, play, smallest_support, unpaid_support

HISTORIES = 60
WEAKENED = {
    "growing is free": with_free_growth,
    "only the newest set is compared": with_the_newest_set_alone,
    "other plans do not count": without_other_runs,
    "steps that are over do not count": with_short_memory,
}


def at_every_site(history: History) -> bool:
    """Whether at each honest site no combination of its unpaid sums isolates fewer sites than the smallest set."""
    honest = (holder for site, holder in history.holders.items() if site not in history.colluders)
    found = (unpaid_support(holder.given, history.budget) for holder in honest)
    return all(support is None or support >= history.smallest for support in found)


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 8))])
def test_no_combination_of_answered_sums_isolates_fewer_sites_than_was_paid_for(block: int) -> None:
    """Over plans, rounds, attempts, returns, restarts and steps that are over; every site for itself, and all
    together where nobody has a budget."""
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        history = play(seed)

        assert at_every_site(history), seed
        together = smallest_support(history.answered) if not history.budget else None
        assert together is None or together >= history.smallest, seed


@pytest.mark.parametrize("weakened", WEAKENED.values(), ids=WEAKENED)
def test_the_law_fails_on_a_weaker_ledger(weakened: Callable[[], AbstractContextManager[None]]) -> None:
    """In some of the same histories each weakened copy reveals a site."""
    with weakened():
        assert not all(at_every_site(play(seed)) for seed in range(HISTORIES))


def test_the_oracle_finds_the_smallest_support_of_small_examples() -> None:
    """By hand: a difference of one site, groups of three, and three sets of which only all together isolate a site."""

    def sums(*sets: str) -> list[Answer]:
        return [Answer("run", frozenset({("changes", frozenset(sites))})) for sites in sets]

    assert smallest_support(sums("abcd", "abc")) == 1
    assert smallest_support(sums("abcdef", "abc")) == 3
    assert smallest_support(sums("abcdefg", "def", "bcg")) == 1
    assert smallest_support(sums("abcd")) == 4
    assert smallest_support([]) is None
