"""The values that a round binds: no two rounds share a context, and no set that exposes a site is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from protos.masking import mask_context as module
from protos.masking.mask_context import check_contributors
from protos.masking.masking_refusals import MaskingRefused, Reason

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
