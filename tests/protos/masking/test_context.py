"""The values that a round binds: no two rounds share a context, and no set that exposes a site is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from protos.masking import mask_context as module
from protos.masking.mask_context import check_contributors, encoding_name, round_context
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.numbers.fixed_point import FixedPoint

MEMBERS = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("contributors", "reason"),
    [
        (("a", "b"), Reason.BELOW_QUORUM),
        (("b", "c", "d"), Reason.NOT_A_CONTRIBUTOR),
        (("b", "a", "c"), Reason.CONTRIBUTORS_UNFIT),
        (("a", "a", "b"), Reason.CONTRIBUTORS_UNFIT),
        (("a", "b", "x"), Reason.CONTRIBUTORS_UNFIT),
    ],
)
def test_a_dangerous_set_is_refused_and_passes_where_its_check_is_missing(
    contributors: tuple[str, ...], reason: Reason, weakened: Any
) -> None:
    """Below quorum, without the site itself, unsorted, doubled or with a stranger: refused."""
    check_contributors("a", MEMBERS, MEMBERS, 3)

    with pytest.raises(MaskingRefused) as refused:
        check_contributors("a", contributors, MEMBERS, 3)
    assert refused.value.reason is reason
    with weakened([module], reason):
        check_contributors("a", contributors, MEMBERS, 3)


def test_names_cut_at_another_place_give_another_context() -> None:
    """Every field has its length before it, so fields cannot be confused."""
    rest: dict[str, Any] = {
        "transcript": bytes(32),
        "position": bytes(32),
        "attempt": 0,
        "manifest_digest": bytes(32),
        "length_bytes": 8,
        "encoding": b"",
    }

    contexts = {round_context(contributors=names, **rest) for names in [("ab", "c"), ("a", "bc"), ("abc",)]}

    assert len(contexts) == 3


def test_every_clipping_range_and_number_of_sites_has_its_own_encoding_name() -> None:
    """A coordinator cannot offer two scales under one context."""
    names = {encoding_name(FixedPoint(2.0**power, sites)) for power in range(-4, 5) for sites in range(2, 30)}

    assert len(names) == 9 * 28
