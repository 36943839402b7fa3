"""Sums of two plans: no contributor in common, or the same contributors and the same rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protos.masking.answered_sets import Answer, answer_of, why_not_answered
from protos.masking.masking_refusals import Reason
from protos.plan.contributors import rule_of
from protos.plan.plan import Plan, plan_from_json
from tests.federation import identity_of, masked_plan
from tests.site_agent.trainer.prior.prior_federation import concepts_of, prior_plan


def _answer(run: str, sites: str, rule: str = "a rule") -> Answer:
    return Answer(run, frozenset(sites), rule)


@pytest.mark.parametrize(
    ("sites", "others", "reason"),
    [
        ("abc", ["abc"], None),
        ("abc", ["def"], None),
        ("abc", ["abcd"], Reason.OTHER_SETS),
        ("abcdef", ["abc"], Reason.OTHER_SETS),
        ("abcdefg", ["def", "bcg"], Reason.OTHER_SETS),  # any two differ by three sites, and all show a alone
    ],
)
def test_which_plans_are_answered_beside_others(sites: str, others: list[str], reason: Reason | None) -> None:
    """Equal or disjoint; a plan with one site fewer is refused until persons allow it beside the earlier run."""
    answered = [_answer(f"run {place}", other) for place, other in enumerate(others)]

    assert why_not_answered(_answer("run", sites), answered) is reason


def test_the_same_sites_have_one_rule() -> None:
    """Another rule is refused if a site is in both plans, and the same run is never another one."""
    assert why_not_answered(_answer("run", "abc"), [_answer("other", "abc", "another rule")]) is Reason.OTHER_RULES
    assert why_not_answered(_answer("run", "abc"), [_answer("other", "def", "another rule")]) is None
    assert why_not_answered(_answer("run", "abc"), [_answer("run", "abc", "another rule")]) is None


def test_the_record_of_a_plan_has_identities_and_not_names() -> None:
    """A site may have another name in another plan."""
    plan = masked_plan("abc")

    answer = answer_of(plan)

    assert answer == Answer(plan.run_name, frozenset(identity_of(name) for name in "abc"), rule_of(plan))


def _read(content: dict[str, Any]) -> Plan:
    return plan_from_json(json.dumps(content))


WORDS = {"outcome": "o", "population": "p", "time": "t", "use": "u", "responsible": "r", "approval_number": "a"}


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({"study": "another", "version": 7, "question": WORDS, "timing": {"grace_seconds": 5.0}}, False),
        ({"concepts": [concepts_of("breast-cancer")[0] | {"recorded_by": ["ahus", "berlin", "cluj", "delft"]}]}, True),
        ({"concepts": [concepts_of("breast-cancer")[0] | {"high": 99.0}]}, True),
        ({"ridge": 11.0}, True),
        ({"masking": {"required": True, "clipping_range": 4.0}}, True),
        ({"masking": {"required": True, "largest_clipped_share": 0.5}}, True),
        ({"newton_rounds": 3}, True),
        ({"assumed_colluders": 2}, True),
    ],
)
def test_every_setting_but_names_and_times_is_a_part_of_the_rule(change: dict[str, Any], is_another: bool) -> None:
    """Whatever decides a contribution, and whatever might, makes another rule."""
    plan = prior_plan("breast-cancer", concepts=concepts_of("breast-cancer")[:1])
    content = plan.model_dump(mode="json") | change
    changed = _read(content)

    assert (rule_of(changed) != rule_of(plan)) is is_another


def test_sites_that_only_receive_are_no_part_of_the_rule() -> None:
    """They contribute nothing. A site that exchanges its name with another one does."""
    plan = prior_plan("breast-cancer")
    content = plan.model_dump(mode="json")
    receiver = {"name": "zurich", "identity": "-".join(["aaaz"] * 8), "tier": "receiving"}
    more = _read(content | {"sites": [*content["sites"], receiver]})
    first, second, *rest = content["sites"]
    swapped = [first | {"name": second["name"]}, second | {"name": first["name"]}, *rest]

    assert rule_of(more) == rule_of(plan)
    assert rule_of(_read(content | {"sites": swapped})) != rule_of(plan)
