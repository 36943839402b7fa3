"""The price of answered sums: the short way to a price of 0 leads to the same price as the rule."""

from __future__ import annotations

import random
from collections import Counter

from protos.masking.answered_sets import Answer, are_together_safe, isolates, paid_part, price, with_one_more
from tests.for_each import for_each


def drawn(generator: random.Random) -> Counter[Answer]:
    """Answers of up to two runs over eight sites, many of them over unions of the same groups."""
    sites = [f"site {number}" for number in range(8)]
    groups = [frozenset(sites[:4]), frozenset(sites[4:]), frozenset(sites)]
    found: Counter[Answer] = Counter()
    for _ in range(generator.randrange(1, 6)):
        some = frozenset(generator.sample(sites, generator.randrange(2, 9)))
        kinds = {(kind, generator.choice([*groups, *groups, some])) for kind in ("updates", "figures")}
        found[Answer(generator.choice(["a", "a", "b"]), frozenset(kinds))] += generator.randrange(1, 4)
    return found


@for_each("seed", range(300))
def test_a_price_is_what_the_paid_part_costs(seed: int) -> None:
    """Sums cost nothing together exactly if the rule pays for none of them, whatever their counts are."""
    answered = drawn(random.Random(seed))

    for smallest in (2, 3, 4):
        assert price(answered, smallest) == sum(paid_part(answered, smallest).values())
        if not isolates(answered, smallest):
            assert paid_part(answered, smallest) == {}
        for answer in drawn(random.Random(-1 - seed)):
            if are_together_safe(frozenset((*answered, answer)), smallest):
                more = with_one_more(answered, answer)
                assert not isolates([answer], smallest)
                assert paid_part(answered, smallest) == paid_part(more, smallest) == {}


def test_the_examples_have_both_kinds_of_price() -> None:
    """The comparison above meets prices of 0 and of more."""
    prices = {min(price(drawn(random.Random(seed)), 4), 1) for seed in range(300)}

    assert prices == {0, 1}
