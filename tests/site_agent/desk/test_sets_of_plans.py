"""A person who approves a plan reads which sites' contribution could be computed from it and an earlier plan."""

from __future__ import annotations

import pytest

from site_agent.desk.sets_of_plans import compared_with_others
from tests.federation import masked_plan

FOUR = masked_plan("abcd")


@pytest.mark.parametrize("sites", ["abc", "abcde", "abce"])
def test_a_plan_with_other_sites_is_named_with_the_difference(sites: str) -> None:
    """One site fewer, one more or another one, under whatever study's name and seed."""
    section = compared_with_others(masked_plan(sites, study="another"), [FOUR], ())

    assert section is not None
    (sentence,) = section.sentences
    assert FOUR.run_name in sentence
    assert f"Only one of the two plans has these sites: {', '.join(sorted(set('abcd') ^ set(sites)))}." in sentence


def test_the_same_sites_and_runs_that_do_not_count_are_not_named() -> None:
    """Also no plan without masks, of which no sum hides anything."""
    unmasked = masked_plan("abc", masking={"required": False})

    assert compared_with_others(masked_plan("abcd", study="another"), [FOUR], ()) is None
    assert compared_with_others(masked_plan("abc"), [FOUR], [FOUR.run_name]) is None
    assert compared_with_others(FOUR, [unmasked], ()) is None
