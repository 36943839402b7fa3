"""A researcher who requests statistics in such a way that a sum over three sites is one patient's value or one cell.
The attacker writes the plan, and so the columns and their ranges. The sums are those of the sites' own trainers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from protos.errors import ConfigurationError
from protos.plan.analyses import SUM_SCALE
from protos.plan.concepts import NumberConcept
from protos.statistics.table_one import TableOneArithmetic
from site_agent.trainer import answered_values
from site_agent.trainer.answered_values import ReleasedBefore
from site_agent.trainer.statistics import concept_frame
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.site_agent.trainer.test_statistics import SEX, asking, own_numbers, site

OLDEST = 97.3
AGES = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 35.0, 45.0, 55.0, 65.0, 75.0]
EXACT = [age + 0.1 for age in AGES]
SMALLEST_CELL = 10


def _sums(folder: Path, plan: Any, tables: Sequence[list[float]], smallest_cell: int) -> list[int]:
    """The sums of three sites' own trainers."""
    each = [
        own_numbers(site(folder / name, ages, smallest_cell=smallest_cell), plan, folder / name)
        for name, ages in zip("abc", tables, strict=True)
    ]
    return [sum(numbers) for numbers in zip(*each, strict=True)]


def _without_small_cells() -> AbstractContextManager[None]:
    groups = TableOneArithmetic._of_groups
    return patched(TableOneArithmetic, _of_groups=lambda self, *parts: groups(self, *parts[:-1], 1))


def range_around_one_patient(weakened: bool) -> bool:
    """Declare a range in which one patient of three sites lies: all others are clipped, and the sum is its value."""
    low, high = 95.0, 120.0
    plan = asking({"name": "age", "low": low, "high": high}, smallest_cell=SMALLEST_CELL)
    with scratch() as folder, in_copy(weakened, _without_small_cells):
        total = _sums(folder, plan, ([*AGES[:-1], OLDEST], AGES, AGES), SMALLEST_CELL)[4]
        return abs(low + (high - low) * total / SUM_SCALE - OLDEST) < 0.001


def suppressed_code(weakened: bool) -> bool:
    """Read the three patients of a rare code, or get them as all rows minus the other code."""
    with scratch() as folder, in_copy(weakened, _without_small_cells):
        _, _, women, men, _, missing, *_ = _sums(folder, asking(SEX, smallest_cell=4), (AGES, AGES, AGES), 4)
        return men == 9 or 36 - women - missing == 9


def _without_a_check_of_recorders() -> AbstractContextManager[None]:
    mapped = concept_frame.mapped_concepts

    def lenient(concepts: Any, contract: Any, name: str) -> Any:
        there = concept_frame.recorded_concepts(contract.columns)
        return mapped([concept for concept in concepts if concept.name in there], contract, name)

    return patched(concept_frame, mapped_concepts=lenient)


def column_of_one_site(weakened: bool) -> bool:
    """Name a column that one contract has: the sum is that hospital's count and mean."""
    plan = asking({"name": "age", "low": 20.0, "high": 100.0}, smallest_cell=SMALLEST_CELL)
    assert isinstance(plan.concepts[0], NumberConcept)
    with scratch() as folder, in_copy(weakened, _without_a_check_of_recorders):
        totals = [0] * 7
        for name in "abc":
            hospital = site(folder / name, AGES, smallest_cell=SMALLEST_CELL)
            if name != "a":
                path = folder / name / "contract.yaml"
                contract = yaml.safe_load(path.read_text())
                del contract["columns"][0]["concept"]
                path.write_text(yaml.safe_dump(contract))
            try:
                numbers = own_numbers(hospital, plan, folder / name)
            except ConfigurationError:
                return False
            totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        return totals[2] == len(AGES) and totals[4] > 0


def value_after_few_others(weakened: bool, before: list[float], after: list[float], rule: str, lenient: Any) -> bool:
    """Ask again when the values of many patients changed, but the difference of both sums is one patient's value."""
    low, high, sums = 20.0, 100.0, list[float]()
    with scratch() as folder, in_copy(weakened, lambda: patched(answered_values, **{rule: lenient})):
        for version, ages in enumerate((before, after), start=1):
            hospital = site(folder, [*ages], smallest_cell=SMALLEST_CELL)
            plan = asking({"name": "age", "low": low, "high": high}, smallest_cell=SMALLEST_CELL, version=version)
            with suppress(ReleasedBefore):
                counts = own_numbers(hospital, plan, folder)
                sums.append(low * counts[2] + (high - low) * counts[4] / SUM_SCALE)
    others = sum(after[:-1]) - sum(before)
    return len(sums) == 2 and abs(sums[1] - sums[0] - others - OLDEST) < 0.01


def value_of_many_visits(weakened: bool) -> bool:
    """Repeat a sum when many patients with a usual value are new, and one with another value at thirty visits."""
    rule, ages = answered_values._is_usual, np.array(AGES + [20.0] * 23 + [OLDEST] * 30)
    patients = [f"P{min(place, len(AGES) + 23)}" for place in range(len(ages))]
    rows_alone = {"_is_usual": lambda rows, gains, of: rule(rows, gains, np.arange(len(of), dtype=of.dtype))}
    with scratch() as folder, in_copy(weakened, lambda: patched(answered_values, **rows_alone)):
        for run, rows in (("one", len(AGES)), ("two", len(ages))):
            try:
                columns = {"age": answered_values.Values(values=ages[:rows])}
                answered_values.remember(folder, run, columns, SMALLEST_CELL, patients[:rows])
            except ReleasedBefore:
                return False
    return bool(abs((ages.sum() - sum(AGES) - 23 * 20.0) / 30 - OLDEST) < 1e-9)


def visits_that_others_have_too(weakened: bool) -> bool:
    """Repeat a sum when the late visits of one patient equal those of ten others, and two cells were exchanged."""
    whose = [*(f"P{place % 10}" for place in range(90)), *["X"] * 10, "B", "C"]
    others, sums = [100.0 + place for place in range(90)], list[float]()
    lenient = {
        "_fewest": lambda _, gains, of: (np.full(len(of) + 1, len(np.unique(of))), np.full(len(of) + 1, len(gains)))
    }
    with scratch() as folder, in_copy(weakened, lambda: patched(answered_values, **lenient)):
        for run, own, two in (
            ("one", [5.0 + place for place in range(10)], [1.0, 2.0]),
            ("two", others[20:30], [2.0, 1.0]),
        ):
            values = np.array([*others, *own, *two])
            patients = whose if run == "one" else [f"new {name}" for name in whose]
            with suppress(ReleasedBefore):
                columns = {"crea": answered_values.Values(values=values)}
                answered_values.remember(folder, run, columns, SMALLEST_CELL, patients)
                sums.append(float(values.sum()))
    return len(sums) == 2 and abs(sums[1] - sums[0] - sum(others[20:30]) + sum(range(5, 15))) < 1e-9


ATTACKS = (
    Attack("statistics-of-visits-that-others-have", "the fewest patients behind a change", visits_that_others_have_too),
    Attack("statistics-after-many-visits-of-one-patient", "the patients who have a usual value", value_of_many_visits),
    Attack(
        name="statistics-after-new-patients-with-a-usual-value",
        tries="a Table 1 is repeated when many patients with the lowest value are new, and one with another",
        without="the value that most new patients have",
        run=partial(
            value_after_few_others,
            before=AGES,
            after=[*AGES, *[20.0] * 23, OLDEST],
            rule="_is_usual",
            lenient=lambda rows, *_: np.zeros(len(rows), np.bool_),
        ),
    ),
    Attack(
        name="statistics-after-an-export-with-fewer-digits",
        tries="a Table 1 is repeated when an export has fewer digits, and one value is corrected",
        without="the size of a change",
        run=partial(
            value_after_few_others,
            before=EXACT,
            after=[*(float(np.float32(age)) for age in EXACT[:-1]), OLDEST],
            rule="_rough",
            lenient=lambda digests, *_: digests,
        ),
    ),
    Attack("statistics-range-around-one-patient", "the smallest cell of rows within a range", range_around_one_patient),
    Attack("statistics-suppressed-code", "the void of a whole column with a small cell", suppressed_code),
    Attack("statistics-column-of-one-site", "the check of recorders against the contract", column_of_one_site),
)
