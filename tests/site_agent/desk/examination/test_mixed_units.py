"""Values of another unit are found if the spread allows it, and ordinary columns are not reported."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import datasets

from site_agent.desk.examination.suspicious_numbers import (
    CONVERSIONS,
    Conversion,
    far_values,
    mixed_units,
    seem_identifiers,
)
from tests.for_each import for_each

SHARED = Path(__file__).parents[5] / "shared" / "data"
Columns = npt.NDArray[np.float64]
MOST_FALSE_ALARMS = 0.01


def public_tables() -> Iterator[tuple[str, Columns]]:
    """Tables that anybody may look at, the outcome last, without the rows that are no numbers."""
    for name in ("breast_cancer", "wine", "diabetes", "iris", "digits", "linnerud"):
        found = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
        yield name, np.column_stack([found.data, np.reshape(found.target, (len(found.data), -1))]).astype(np.float64)
    for path in sorted((SHARED / "heart").glob("*.data")) + sorted((SHARED / "covertype").glob("*_train.csv")):
        with path.open(newline="") as file:
            rows = [[_number(cell) for cell in row] for row in csv.reader(file)]
        wide = np.array([row for row in rows if len(row) == len(rows[-1])])
        yield path.name, wide[:, ~np.isnan(wide).all(axis=0)]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def test_ordinary_columns_raise_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all columns, whole and in ten draws of rows, at most 1% are reported, and at most 2% without other columns."""
    columns = alarms = without = far = 0
    for _, table in public_tables():
        for seed in range(11):
            generator = np.random.default_rng(seed)
            size = len(table) if not seed else min(int(0.7 * len(table)), 2000)
            rows = table[generator.permutation(len(table))[:size]]
            for place in range(rows.shape[1] - 1):
                others = [rows[:, other] for other in range(rows.shape[1]) if other != place]
                columns += 1
                alarms += mixed_units(rows[:, place], others) is not None
                without += mixed_units(rows[:, place]) is not None
                far += bool(far_values(rows[:, place]).any())

    with capsys.disabled():
        print(f"\n{columns} columns: {alarms} false alarms of two units ({without} without other columns), {far} far")
    assert columns > 1300
    assert max(alarms, far, without / 2) <= MOST_FALSE_ALARMS * columns


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=lambda one: f"{one.second} {one.factor:g}")
@for_each("seed", range(20))
def test_a_third_in_another_unit_is_found(conversion: Conversion, seed: int) -> None:
    """Of every known pair of units, where the factor is at least five deviations of the logarithms: which rows, too."""
    generator = np.random.default_rng(seed)
    deviation = min(0.35, math.log(conversion.factor) / 5) * float(generator.uniform(0.3, 1.0))
    typical = 37.0 if conversion.offset > 0 else 7.0 if conversion.offset else float(generator.uniform(1, 200))
    deviation = deviation if not conversion.offset else 0.03
    own = typical * np.exp(generator.normal(0, deviation, 300))
    is_absent = generator.random(300) < 0.1
    is_other = generator.random(300) < float(generator.uniform(0.2, 0.45))
    values = np.where(is_other, conversion.factor * own + conversion.offset, own)

    found = mixed_units(np.where(is_absent, np.nan, values), [generator.normal(size=300)])

    assert found is not None
    assert (found.is_minority == (is_other & ~is_absent)).mean() >= 0.97
    assert found.minority_is_larger
    assert conversion in found.conversions
    assert 1 <= len(found.conversions) <= 5


def test_creatinine_in_two_units_names_the_measured_factor() -> None:
    """Every fourth of 300 rows is in micromol/l: the sentence has no factor of 100, and names the true pair."""
    generator = np.random.default_rng(3)
    creatinine = np.round(np.exp(generator.normal(0.1, 0.3, 300)), 2)
    is_other = np.arange(300) % 4 == 0

    found = mixed_units(np.where(is_other, np.round(88.42 * creatinine, 1), creatinine))

    assert found is not None
    assert re.search(r"about (8[5-9]|9[0-2]) times larger", found.words)
    assert "of creatinine" in found.words


def test_a_factor_that_no_known_pair_explains_names_no_unit() -> None:
    """A factor of 6.6 is 10% beside that of urea, so a narrow column of many rows has no known units."""
    generator = np.random.default_rng(3)
    own = np.exp(generator.normal(3, 0.1, 2000))

    found = mixed_units(np.where(np.arange(2000) % 4 == 0, 6.6 * own, own))

    assert found is not None
    assert found.conversions == ()
    assert found.words == "25% of the values are about 6.6 times larger than the other values"


def test_two_kinds_of_patients_are_not_two_units() -> None:
    """Where another column, such as the outcome, tells the two scales apart, nobody is asked for a unit."""
    generator = np.random.default_rng(1)
    is_child = generator.random(300) < 0.4
    weight = np.where(is_child, 20, 80) * np.exp(generator.normal(0, 0.1, 300))
    height = np.where(is_child, 110, 170) + generator.normal(0, 8, 300)

    assert mixed_units(weight) is not None
    assert mixed_units(weight, [height]) is None


@for_each("seed", range(20))
def test_a_lost_decimal_point_is_found(seed: int) -> None:
    """One potassium of 41 among 300 around 4.1, and one of 0.04; the others are left alone."""
    generator = np.random.default_rng(seed)
    values = np.round(generator.normal(4.1, 0.4, 300), 1)
    values[[7, 9]] = (41.0, 0.04)

    assert np.flatnonzero(far_values(values)).tolist() == [7, 9]


def test_no_measurement_of_a_public_table_seems_an_identifier() -> None:
    """Whole, and in ten draws of few or many rows: only the running number of the table of South Africa does."""
    found, columns = set(), 0
    for name, table in public_tables():
        for seed, share in product(range(11), (1.0, 0.5, 0.1)):
            rows = table[np.random.default_rng(seed).permutation(len(table))[: int(share * len(table))]]
            columns += rows.shape[1]
            found |= {(name, place) for place in range(rows.shape[1]) if seem_identifiers(rows[:, place])}

    assert found == ({("sa.data", 0)} if SHARED.is_dir() else set())
    assert columns > 3000


@for_each("seed", range(50))
def test_numbers_of_patients_are_recognised_and_measurements_are_not(seed: int) -> None:
    """Random and running numbers, of patients of whom a fifth come again. Whole measurements of any spread are not."""
    generator = np.random.default_rng(seed)
    size = int(generator.integers(30, 3000))
    again = generator.integers(0, size, size=size // 5)
    random_numbers = generator.permutation(9_000_000)[:size] + 1_000_000.0
    running = generator.permutation(size) + float(generator.integers(0, 10**6))
    spread = generator.uniform(0.1, 1.2)
    measured = np.round(generator.lognormal(generator.uniform(1, 9), spread, size=size))

    assert seem_identifiers(np.append(random_numbers, random_numbers[again]))
    assert seem_identifiers(np.append(running, running[again]))
    assert not seem_identifiers(measured)
    assert not seem_identifiers(running + 0.5)
