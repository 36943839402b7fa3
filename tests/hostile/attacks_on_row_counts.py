"""A coordinator that computes one site's exact count of rows, or one patient's arrival, from sums of counts. Row counts
are sent inside a masked sum. Two such sums differ by the rows of a site if their sets differ by this site. If their
sets are equal, they differ by the patients who came and went."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

from protos.plan.weighting import RowWeights
from site_agent.trainer import before_rounds
from tests.hostile.attack import Attack, in_copy, patched, scratch

ROWS_OF = {"a": 131, "b": 97, "c": 240, "d": 172}
CELL = 10


def _with_any_count() -> AbstractContextManager[None]:
    return patched(before_rounds, released_count=lambda folder, rows, cell: rows)


def one_patient_between_two_studies(weakened: bool) -> bool:
    """Repeat a study with the same sites after one patient came to d, and compare the sums of rows."""
    later = ROWS_OF | {"d": ROWS_OF["d"] + 1}
    with scratch() as folder, in_copy(weakened, _with_any_count):
        sums = [
            sum(before_rounds.released_count(folder / site, rows, CELL) for site, rows in counts.items())
            for counts in (ROWS_OF, later)
        ]
    return sums[1] - sums[0] == 1


def _with_a_memory_of_exact_counts_alone() -> AbstractContextManager[None]:
    def count(study: CountedStudy, folder: Path, cell: int) -> None:
        rows = len(study.own.training)
        if study.is_exact:
            rows = before_rounds.released_count(folder, rows, cell)
        study.count_rows_as(rows, len(study.dataset.validation))

    return patched(before_rounds, _count_rows=count)


class CountedStudy:
    """A study of which only the numbers of rows matter; the weight that leaves, exact or on the grid."""

    def __init__(self, rows: int, *, is_exact: bool) -> None:
        self.own = self.dataset = SimpleNamespace(training=range(rows), validation=range(rows // 3))
        self.rows, self.is_exact, self.weight = rows, is_exact, 0

    def count_rows_as(self, training: int, validation: int) -> None:
        """Weigh by these rows; those of validation are of no interest here."""
        del validation
        self.weight = RowWeights(name="rows", largest_rows=1024, exact=self.is_exact).counted(training)


def one_patient_at_a_limit_of_the_grid(weakened: bool) -> bool:
    """Learn an exact count just below a limit of the grid, and repeat a plan with rounded rows after a patient came."""
    with in_copy(weakened, _with_a_memory_of_exact_counts_alone):
        return any(
            _differ_by_one([(first, exact), (second, not exact), (first, not exact)])
            for first, second in ((159, 160), (160, 159))
            for exact in (True, False)
        )


def _differ_by_one(studies: Sequence[tuple[int, bool]]) -> bool:
    """Whether the weights of these studies, rows and exactness of each, are of no single number of rows."""
    left = []
    with scratch() as folder:
        for rows, is_exact in studies:
            study = CountedStudy(rows, is_exact=is_exact)
            before_rounds._count_rows(study, folder, CELL)  # type: ignore[arg-type]
            left.append((study.weight, is_exact))
    return not any(
        all(RowWeights(name="rows", largest_rows=1024, exact=exact).counted(rows) == weight for weight, exact in left)
        for rows in range(1, 1024)
    )


ATTACKS = (
    Attack("one-patient-between-two-studies", "the counts that a site used before", one_patient_between_two_studies),
    Attack(
        "one-patient-at-a-limit-of-the-grid",
        "the memory of counts that left rounded",
        one_patient_at_a_limit_of_the_grid,
    ),
)
