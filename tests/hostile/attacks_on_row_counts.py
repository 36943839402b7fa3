"""A coordinator that computes one site's exact count of rows, or one patient's arrival, from sums of counts.

Row counts are sent inside a masked sum. Two such sums differ by the rows of a site if their sets differ by this site.
If their sets are equal, they differ by the patients who came and went.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from protos.numbers.chunk_layout import Layout
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Chunk
from site_agent.trainer import exact_rows
from tests.hostile import masking_federation
from tests.hostile.attack import Attack, in_copy, played, scratch
from tests.hostile.masking_coordinator import agree, collect, enter
from tests.hostile.masking_federation import masked_plan, sites_of

ROWS_OF = {"a": 131, "b": 97, "c": 240, "d": 172}
CELL = 10


def sum_of_rows(plan: Plan, uploads: Sequence[Sequence[Chunk]]) -> int:
    """What a coordinator reads of the row counts: their sum, after all masks cancelled."""
    manifest = manifest_of(plan)
    layout = Layout(manifest.parameters, len(manifest.scalars))
    place = 1 + [scalar.name for scalar in manifest.scalars].index("rows")
    return sum(int(layout.words(upload[0].body, 0)[place]) for upload in uploads) % (1 << 64)


@contextmanager
def with_changing_sets() -> Iterator[None]:
    """A plan with exact rows may continue without a lost site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "_of_weighting", lambda self: ())
        yield


def exact_count_of_a_lost_site(weakened: bool) -> bool:
    """Sum the rows with d and without d, where the sites accept one sum that isolates d."""
    weighting = {"name": "rows", "largest_rows": 1024, "exact": True}

    async def scene(folder: Path) -> bool:
        if not weakened:
            with pytest.raises(ValidationError, match="exact rows need the same sites in all rounds"):
                masked_plan("abcd", on_lost_site="continue", weighting=weighting)
            return False
        plan = masked_plan("abcd", on_lost_site="continue", weighting=weighting)
        sites = sites_of(plan, folder, {"exact_rows": "allow", "smallest_cell": CELL, "lost_site_budget": 1})
        await enter(sites)
        await agree(sites)
        whole = sum_of_rows(plan, await collect(sites, 0, 0, "abcd"))
        rest = sum_of_rows(plan, await collect(sites[:3], 1, 0, "abc"))
        return whole - rest == ROWS_OF["d"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_federation, "rows_of", ROWS_OF.__getitem__)
        return played(scene, weakened, with_changing_sets)


@contextmanager
def with_any_count() -> Iterator[None]:
    """A site that always uses the count of its table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_rows, "released_count", lambda folder, rows, cell: rows)
        yield


def one_patient_between_two_studies(weakened: bool) -> bool:
    """Repeat a study with the same sites after one patient came to d, and compare the sums of rows."""
    later = ROWS_OF | {"d": ROWS_OF["d"] + 1}
    with scratch() as folder, in_copy(weakened, with_any_count):
        sums = [
            sum(exact_rows.released_count(folder / site, rows, CELL) for site, rows in counts.items())
            for counts in (ROWS_OF, later)
        ]
    return sums[1] - sums[0] == 1


ATTACKS = (
    Attack(
        name="exact-count-of-a-lost-site",
        tries="a plan with exact row counts continues without a site, and two sums of rows are subtracted",
        without="the plan's rule that exact counts have one set of sites",
        run=exact_count_of_a_lost_site,
    ),
    Attack(
        name="one-patient-between-two-studies",
        tries="a study with exact row counts is repeated, and the sums of rows differ by one new patient",
        without="the counts that a site used before",
        run=one_patient_between_two_studies,
    ),
)
