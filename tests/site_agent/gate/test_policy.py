"""A hospital's own file decides, whatever a plan contains and whoever approved it."""

from __future__ import annotations

from typing import Any

import pytest

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.gate.policy import refusals
from site_agent.hospital import Policy
from tests.plan_changes import WITHOUT_MASKS
from tests.rehearsal.study import made_up_identities, plan_with
from tests.site_agent.trainer.prior.prior_federation import prior_plan

IDENTITIES = made_up_identities()
METHODS = ("fedavg", "fedprox", "moon")
ALLOWED: dict[str, Any] = WITHOUT_MASKS | {"methods": METHODS, "largest_rounds": 5, "largest_megabytes": 1.0}
METHODS = ", ".join(ALLOWED["methods"])
MEASURING: dict[str, Any] = {"checkpoint": "global"}


def asked(changes: dict[str, Any], parameters: int = 10, **policy: Any) -> str | None:
    """Why a plan of three training rounds with these changes is refused under this policy."""
    return answer(plan_with(IDENTITIES, parameters=parameters, changes=changes), **policy)


def answer(plan: Plan, **policy: Any) -> str | None:
    """What the policy says to a plan."""
    rules = Policy(**(ALLOWED | policy))
    return "; ".join(refusals(rules, plan, manifest_of(plan), site="a", identity=IDENTITIES["a"])) or None


@pytest.mark.parametrize(
    ("name", "reason"), [("moon", None), ("ditto", f"the policy does not allow the method ditto, it allows {METHODS}")]
)
def test_a_method_has_to_be_allowed(name: str, reason: str | None) -> None:
    """A hospital allows methods one by one."""
    named = {"architecture": {"name": "dense", "hidden": [2]}, "columns": ["x"], "outputs": 1}

    assert asked({"method": {"name": name}} | named) == reason


@pytest.mark.parametrize("plan", [plan_with(IDENTITIES, parameters=10, changes={}), prior_plan("breast-cancer")])
def test_a_site_that_only_counts_trains_nothing(plan: Plan) -> None:
    """Its table may have no event."""
    one, rules = plan.sites[0], Policy(**ALLOWED | {"tier": "statistics"})
    told = refusals(rules, plan, manifest_of(plan), site=one.name, identity=one.identity)
    assert any("tier training" in reason for reason in told)


@pytest.mark.parametrize(("spare", "is_refused"), [(0, False), (-1, True)])
def test_every_byte_of_every_round_counts(spare: int, is_refused: bool) -> None:
    """Three training rounds of 1,000 numbers, with two figures in two of them and in the validation
    of three sites: 3 * (4,000 + 8) + 2 * 16 + (8 + 16) bytes, and a policy of one byte less refuses."""
    total = 3 * (4000 + 8) + 2 * 16 + (8 + 16)

    reason = asked(MEASURING, parameters=1000, largest_megabytes=(total + spare) / 1e6)

    assert (reason is not None and "MB would be sent" in reason) is is_refused


@pytest.mark.parametrize(
    ("share", "allowed", "is_refused"),
    [(0.01, {}, False), (0.02, {}, True), (0.02, {"largest_clipped_share": 0.02}, False)],
)
def test_sums_of_clipped_values_are_limited(share: float, allowed: dict[str, float], is_refused: bool) -> None:
    """Several clipping ranges would show values of single sites. Without the key at most 1% may be clipped."""
    reason = asked({"masking": {"required": False, "largest_clipped_share": share}}, **allowed)

    assert (reason is not None) is is_refused


@pytest.mark.parametrize("allowed", [False, True])
def test_exact_rows_and_starting_files_are_refused_unless_the_policy_allows_them(allowed: bool) -> None:
    """Both weaken the protection of patients, so a hospital must write them; rounded rows need no key."""
    rows = {"name": "rows", "largest_rows": 1024}
    masked = {"masking": {"required": True}}
    policy = {"exact_rows": "allow", "starting_file": "allow"} if allowed else {}

    exact = asked(masked | {"weighting": rows | {"exact": True}}, **policy)
    file = asked({"start": {"name": "file", "seed": 0, "sha256": "0" * 64}}, **policy)

    assert asked(masked | {"weighting": rows}) is None
    for reason, key in ((exact, "exact_rows"), (file, "starting_file")):
        assert reason is None if allowed else reason is not None and key in reason


@pytest.mark.parametrize(("cell", "is_refused"), [(1, True), (2, False), (10, False)])
def test_exact_rows_need_a_cell_of_two_patients(cell: int, is_refused: bool) -> None:
    """Otherwise the counts of two studies may differ by the one patient who came between them."""
    plan = {"masking": {"required": True}, "weighting": {"name": "rows", "largest_rows": 1024, "exact": True}}

    reason = asked(plan, exact_rows="allow", smallest_cell=cell)

    assert (reason is not None and "could differ by one patient" in reason) is is_refused
