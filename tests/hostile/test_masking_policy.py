"""A coordinator that offers a weaker plan: wider numbers, fewer sites, no masking.

The coordinator writes the plan, and each hospital may refuse it. A hospital's own file decides, whatever a person has
approved.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from protos.errors import ProtocolError
from protos.plan.plan import plan_from_json, plan_from_wire
from tests.federation import masked_plan
from tests.plan_changes import changed


@pytest.mark.parametrize(
    "weakness",
    [
        {"modulus_bits": 8},
        {"scale": 1.0},
        {"masking": {"clipping_range": 8.0, "scale": 1.0}},
        {"masking": {"clipping_range": 3.0}},
        {"masking": {"clipping_range": 1e9}},
        {"masking": {"clipping_range": 0.0}},
        {"masking": {"required": "optional"}},
        {"assumed_colluders": -1},
    ],
)
def test_a_plan_cannot_name_what_is_not_a_coordinators_choice(weakness: dict[str, Any]) -> None:
    """Modulus and scale follow from the number of sites; no key of a plan changes them, and none is ignored."""
    document = changed(json.loads(masked_plan("abc").canonical), weakness)
    raw = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    with pytest.raises(ProtocolError):
        plan_from_wire(raw)


@pytest.mark.parametrize("count", [2, 3, 100])
def test_no_range_that_a_plan_may_have_overflows_a_sum(count: int) -> None:
    """At the widest and narrowest range, sums over all listed sites stay within the signed half of the ring."""
    from protos.numbers.fixed_point import FixedPoint

    for exponent in range(-40, 11):
        fixed_point = FixedPoint(2.0**exponent, count)
        assert fixed_point.scale * fixed_point.clipping_range * count <= (1 << 31) - 1


def test_a_plan_that_lists_one_key_for_two_sites_is_no_plan() -> None:
    """A coordinator cannot fill the quorum with one invented key under many names."""
    document = json.loads(masked_plan("abcd").canonical)
    document["sites"][1]["identity"] = document["sites"][0]["identity"]

    with pytest.raises(ValueError, match="same identity key"):
        plan_from_json(json.dumps(document))
