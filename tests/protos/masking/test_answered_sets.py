"""Sums of two plans: the same contributors or none in common, and enough of them for every number."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.masking.answered_sets import Answer, answer_of, why_not_answered
from protos.masking.masking_refusals import Reason
from tests.federation import identity_of, masked_plan

SITES = "abcdefghi"


def _answer(run: str, sites: str, kind: str = "changes") -> Answer:
    return Answer(run, frozenset({(kind, frozenset(sites))}))


@pytest.mark.parametrize(
    ("sites", "others", "reason"),
    [
        ("abc", ["abc"], None),
        ("abc", ["def"], None),
        ("ab", [], Reason.TOO_FEW_FOR_A_NUMBER),
        ("abc", ["abcd"], Reason.OTHER_SETS),
        ("abcdef", ["abc"], Reason.OTHER_SETS),
        ("abcdefg", ["def", "bcg"], Reason.OTHER_SETS),  # any two differ by three sites, and all show a alone
    ],
)
def test_which_plans_are_answered_beside_others(sites: str, others: list[str], reason: Reason | None) -> None:
    """Equal or disjoint; a plan with one site fewer is refused until the hospital excludes the earlier run."""
    answered = [_answer(f"run {place}", other) for place, other in enumerate(others)]

    assert why_not_answered(_answer("run", sites), answered, 3) is reason


def test_each_kind_of_number_is_compared_by_itself() -> None:
    """Updates and figures have other contributors where a site only evaluates."""
    assert why_not_answered(_answer("run", "abc"), [_answer("other", "abcd", "figures")], 3) is None


def test_the_record_of_a_plan_has_identities_and_not_names() -> None:
    """A site may have another name in another plan."""
    plan = masked_plan("abc")

    answer = answer_of(plan)

    assert answer.run == plan.run_name
    assert {sites for _, sites in answer.kinds} == {frozenset(identity_of(name) for name in "abc")}


@given(st.lists(st.frozensets(st.sampled_from(SITES), min_size=1), max_size=5), st.integers(1, 4))
def test_no_combination_of_answered_sums_has_fewer_sites_than_the_smallest_set(
    sets: list[frozenset[str]], smallest: int
) -> None:
    """An oracle that knows nothing of sets: the support of every combination, by exact elimination."""
    answered: list[Answer] = []
    for place, sites in enumerate(sets):
        answer = _answer(f"run {place}", "".join(sites))
        if why_not_answered(answer, answered, smallest) is None:
            answered.append(answer)

    rows = [[Fraction(site in dict(answer.kinds)["changes"]) for site in SITES] for answer in answered]
    for count in range(1, smallest):
        for few in combinations(range(len(SITES)), count):
            others = [place for place in range(len(SITES)) if place not in few]
            # A combination that is 0 at all other sites is 0 everywhere.
            assert _rank([[row[place] for place in others] for row in rows]) == _rank(rows)


def _rank(rows: list[list[Fraction]]) -> int:
    rows, rank = [list(row) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((place for place in range(rank, len(rows)) if rows[place][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for place in range(rank + 1, len(rows)):
            factor = rows[place][column] / rows[rank][column]
            rows[place] = [one - factor * other for one, other in zip(rows[place], rows[rank], strict=True)]
        rank += 1
    return rank
