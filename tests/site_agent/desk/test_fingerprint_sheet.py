"""The sheet with which hospitals compare the identity keys of a plan with each other."""

from __future__ import annotations

import pytest

from site_agent.desk.fingerprint_sheet import list_number, own_line
from tests.rehearsal.study import made_up_identities, made_up_identity, plan_with

IDENTITIES = made_up_identities("abc")


def test_equal_lists_have_equal_numbers_whatever_else_the_plan_says() -> None:
    """A new version, another study or another order of sites keeps the number, so nothing is compared again."""
    plan = plan_with(IDENTITIES)
    others = [
        plan_with(IDENTITIES, study="another"),
        plan_with(IDENTITIES, changes={"version": 2}),
        plan_with(IDENTITIES, changes={"sites": [site.model_dump() for site in reversed(plan.sites)]}),
    ]

    assert {list_number(other) for other in others} == {list_number(plan)}


@pytest.mark.parametrize(
    "identities",
    [
        IDENTITIES | {"b": made_up_identity("somebody else")},
        IDENTITIES | made_up_identities("d"),
        {"a": IDENTITIES["b"], "b": IDENTITIES["a"], "c": IDENTITIES["c"]},
        {"a": IDENTITIES["a"], "b": IDENTITIES["b"], "d": IDENTITIES["c"]},
    ],
    ids=["another key", "another site", "two keys exchanged", "another name"],
)
def test_any_other_list_has_another_number(identities: dict[str, str]) -> None:
    """A key, a name or a site more is seen by reading one number."""
    assert list_number(plan_with(identities)) != list_number(plan_with(IDENTITIES))


@pytest.mark.parametrize(
    ("site", "own", "words"),
    [
        ("a", IDENTITIES["a"], "The plan lists the key of this computer for a"),
        ("a", IDENTITIES["b"], "Do not approve this plan."),
        ("d", IDENTITIES["a"], "does not list the site d. Do not approve this plan."),
        ("a", None, "site-agent identity"),
    ],
)
def test_the_sheet_compares_this_computers_own_key(site: str, own: str | None, words: str) -> None:
    """Another key, or none for this site, is said at once."""
    assert words in own_line(plan_with(IDENTITIES), site=site, own=own)
