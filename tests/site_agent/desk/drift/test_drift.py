"""Without drift an alarm is as rare as declared, and with drift it occurs.

Rows of one patient are not many patients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from protos.plan.documents import parse_document
from site_agent.desk.comparison.evaluation import HeldOutRows
from site_agent.desk.drift import quality
from site_agent.desk.drift.column_drift import Watched, watch
from site_agent.desk.drift.quality import quality_of
from site_agent.desk.use.new_rows import NewRows, read_new_rows
from site_agent.trainer.data.column_profile import Profile, profile_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from tests.for_each import for_each, some

CONTRACT = parse_document(
    b"""
format: {header: true}
columns:
  - {name: age, role: feature, type: numeric, range: [-90, 90], missing: median}
  - {name: pressure, role: feature, type: numeric, missing: median}
  - {name: ward, role: feature, type: categorical, codes: [a, b, c]}
  - {name: y, role: target, task: binary, positive: [1], negative: [0]}
""",
    Contract,
    source="",
    consequence="",
)
Numbers = npt.NDArray[np.float64]
Patients = npt.NDArray[np.int64]


def patients_table(
    generator: np.random.Generator, patients: int, rows_each: int = 1, shift: float = 0.0, missing: float = 0.05
) -> Table:
    """Patients whose rows are nearly equal; their ages moved by `shift` deviations."""
    owners = np.repeat(np.arange(patients), rows_each)
    noise = 0.05 * generator.normal(size=(len(owners), 2)) if rows_each > 1 else 0.0
    numbers = generator.normal([shift, 0.0], 1.0, (patients, 2))[owners] + noise
    absent = (generator.random(patients) < missing)[owners]
    wards = generator.choice(3, patients, p=[0.7, 0.25, 0.05]).astype(np.float64)[owners]
    features = {"age": numbers[:, 0], "pressure": np.where(absent, np.nan, numbers[:, 1]), "ward": wards}
    return Table(contract=CONTRACT, rows=len(owners), features=features, target=None, patients=tuple(map(str, owners)))


def owners_of(table: Table) -> Patients:
    """A number for each row's patient."""
    return np.unique(table.patients or (), return_inverse=True)[1].astype(np.int64)


def profile(table: Table, *, patients: bool = True) -> Profile:
    """Of all rows of a table."""
    everyone = np.arange(table.rows, dtype=np.int64)
    return profile_of(CONTRACT, table, everyone, owners_of(table) if patients else None)


def watched(known: Profile, table: Table) -> tuple[Watched, ...]:
    """What monitoring says of a table whose cells are all right."""
    return watch(known, NewRows(table=table))


@pytest.mark.parametrize(("training", "new"), some([(250, 250), (400, 60)], 2))
def test_without_drift_hardly_any_table_has_an_alarm(training: int, new: int) -> None:
    """Over all columns together, for few new rows and for many."""
    alarms = shares = 0
    for seed in range(50):
        generator = np.random.default_rng(seed)
        found = watched(profile(patients_table(generator, training)), patients_table(generator, new))
        alarms += any(one.stability_index > one.by_chance for one in found)  # type: ignore[operator]
        shares += any("missing" in text or "outside" in text for one in found for text in one.warnings)

    assert alarms <= 3  # at 1% more than 3 of 50 happen once in 600 times
    assert shares <= 5  # two kinds


@for_each("seed", range(10))
def test_a_real_drift_is_found_and_named(seed: int) -> None:
    """An age that rose by one deviation, and a pressure that is no longer measured in a third of the rows."""
    generator = np.random.default_rng(seed)
    known = profile(patients_table(generator, 400))

    age, pressure, ward = watched(known, patients_table(generator, 120, shift=1.0, missing=0.4))

    assert [text.split(":")[0] for text in age.warnings][:1] == ["age has changed much"]
    assert len(pressure.warnings) == 1
    assert "pressure is missing in" in pressure.warnings[0]
    assert ward.warnings == ()


def test_what_the_contract_does_not_allow_is_counted_by_itself(tmp_path: Path) -> None:
    """Neither missing nor beyond the training rows, and no part of the index; what is far is warned of."""
    known = profile(patients_table(np.random.default_rng(1), 400))
    usual = (f"{value:.2f}" for value in np.linspace(-1.5, 1.5, 91))
    ages = ["999", "999", "70", "60", "50", "-50", "-60", "-70", "", *usual]
    (tmp_path / "new.csv").write_text("\n".join(["age,pressure,ward", *(f"{age},0.1,a" for age in ages)]))

    new = read_new_rows(tmp_path / "new.csv", CONTRACT, known)
    age, *_ = watch(known, new)

    assert (age.outside_contract, age.outside, age.missing) == (0.02, 0.06, 0.01)
    assert new.off_contract().sum() == 2
    assert age.stability_index is not None
    assert age.stability_index < 0.5
    assert any("the contract does not allow in 2% of the new rows" in text for text in age.warnings)
    assert any("outside the range of the training rows in 6%" in text for text in age.warnings)


def outcomes(
    generator: np.random.Generator, count: int, slope: float = 1.0, shift: float = 0.0
) -> tuple[HeldOutRows, Numbers]:
    """Patients whose outcome follows their probability, or less so, or more often."""
    logit = generator.normal(0, 1.2, count)
    happened = generator.random(count) < 1 / (1 + np.exp(-slope * logit - shift))
    rows = HeldOutRows(task="binary", targets=happened.astype(np.int64), classes=("no", "yes"))
    return rows, 1 / (1 + np.exp(-logit))


@pytest.mark.slow
def test_all_alarms_together_are_as_rare_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns and every metric: of 100 tables of unchanged patients at most about 5 have any alarm."""
    monkeypatch.setattr(quality, "_RESAMPLES", 200)
    alarms = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        found = quality_of(*outcomes(generator, 150), *outcomes(generator, 200))
        columns = watched(profile(patients_table(generator, 200)), patients_table(generator, 150))
        is_worse = any(found["is_worse"].values())  # type: ignore[union-attr]
        alarms += is_worse or any(one.warnings for one in columns)

    assert alarms <= 11  # at 5% more than 11 of 100 happen once in 250 times


def test_repeated_rows_of_patients_count_as_one() -> None:
    """Five equal rows of each patient have the limit of their patients, which is far above that of the rows."""
    generator = np.random.default_rng(0)
    before, now = (patients_table(generator, count, rows_each=5) for count in (150, 100))
    anonymous = Table(contract=CONTRACT, rows=now.rows, features=now.features, target=None, patients=None)

    (by_patient, *_), (by_row, *_) = watched(profile(before), now), watched(profile(before, patients=False), anonymous)

    assert by_patient.by_chance > 2 * by_row.by_chance  # type: ignore[operator]
