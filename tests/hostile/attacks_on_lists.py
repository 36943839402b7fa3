"""An office that lists its own identity keys in place of hospitals, to remove the masks of the last one.

No program can detect invented hospitals, so persons compare a sheet. The attacker wants a hospital's sheet to agree
with another one's although the keys do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protos.fingerprints import grouped
from protos.plan.canonical import digest
from protos.plan.plan import Plan
from site_agent.desk import fingerprint_sheet
from tests.hostile.attack import Attack, in_copy
from tests.rehearsal.study import made_up_identities, made_up_identity, plan_with


@contextmanager
def with_names_alone() -> Iterator[None]:
    """The number of the list follows from the sites' names."""

    def number(plan: Plan) -> str:
        return grouped(digest("names", *plan.site_names)[:20])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint_sheet, "list_number", number)
        yield


def keys_of_the_office(weakened: bool) -> bool:
    """Send a hospital a plan in which two keys of the office stand for the other hospitals, so that sheets agree."""
    honest = made_up_identities("abc")
    forged = honest | {name: made_up_identity(f"the office as {name}") for name in "bc"}
    with in_copy(weakened, with_names_alone):
        sheets = [fingerprint_sheet.list_number(plan_with(identities)) for identities in (honest, forged)]
    return sheets[0] == sheets[1]


ATTACKS = (
    Attack(name="identity-keys-of-the-office", without="the keys in the number of the list", run=keys_of_the_office),
)
