"""The counts of a site's own table: cells that are large enough, clipped values, once for each version of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from protos.errors import ConfigurationError, DataError
from protos.plan.analyses import SUM_SCALE
from protos.plan.statistics_plan import StatisticsPlan
from protos.wire.messages import Stage
from site_agent.desk.examination.examine import examined
from site_agent.desk.sets_of_plans import row_sections
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.answered_values import ReleasedBefore
from site_agent.trainer.before_rounds import begin_statistics
from site_agent.trainer.disk import recording
from site_agent.trainer.requests import Asked
from tests.for_each import for_each
from tests.plan_changes import WITHOUT_MASKS
from tests.protos.examples import table_one_of
from tests.site_agent.trainer.sites import make_plan

AGES = [20.0, 30.0, 40.0, None, 50.0, 60.0, 70.0, 80.0, 90.0, 200.0, 25.0, 35.0]
SEXES = ["F"] * 9 + ["M"] * 3
CONTRACT: dict[str, Any] = {
    "format": {"header": True},
    "columns": [
        {"name": "age", "role": "feature", "type": "numeric", "missing": "median", "concept": "age"},
        {"name": "sex", "role": "feature", "type": "categorical", "codes": ["F", "M"], "concept": "sex"},
        {"name": "ill", "role": "target", "task": "binary", "positive": ["1"]},
    ],
}


def site(
    folder: Path, ages: list[float | None] = AGES, smallest_cell: int = 1, unaccepted: str = "tell", **rules: Any
) -> Hospital:
    """A hospital with twelve patients, or with further ones. With `rules` of its policy none of them is ill."""
    rows = [
        f"{'' if age is None else age},{sex},{0 if rules else place % 2}"
        for place, (age, sex) in enumerate(zip(ages, SEXES + ["F"] * (len(ages) - len(SEXES)), strict=True))
    ]
    folder.mkdir(exist_ok=True)
    (folder / "table.csv").write_text("\n".join(["age,sex,ill", *rows]) + "\n")
    (folder / "contract.yaml").write_text(yaml.safe_dump(CONTRACT))
    policy = WITHOUT_MASKS | {"methods": ["local"], "smallest_sites": 1, "smallest_cell": smallest_cell, **rules}
    data = {"table": "table.csv", "contract": "contract.yaml", "split": {"seed": 0}, "unaccepted_warnings": unaccepted}
    (folder / "hospital.yaml").write_text(
        yaml.safe_dump({"site": "ahus", "state": "s", "policy": policy, "data": data})
    )
    return read_hospital(folder / "hospital.yaml")


def released(folder: Path) -> list[tuple[str, str]]:
    """Runs, and the digests of their columns' values, as they are on disk."""
    with recording(folder) as store:
        return store.read("SELECT run, facts FROM used")


def asking(*columns: dict[str, Any], smallest_cell: int = 1, version: int = 1) -> StatisticsPlan:
    """A plan that counts these columns."""
    plan = make_plan(**table_one_of(*columns), smallest_cell=smallest_cell, version=version)
    assert isinstance(plan, StatisticsPlan)
    return plan


def own_numbers(hospital: Hospital, plan: StatisticsPlan, folder: Path) -> tuple[int, ...]:
    """What the site sends of its columns: for each its sites, sites with a small cell, counts, missing, moments."""
    study = begin_statistics(hospital, plan, folder)
    asked = Asked(round=0, stage=Stage.STATISTICS)
    is_void, *numbers = study.train(asked, np.zeros(plan.tensor.number_count, np.float32)).scalars
    assert is_void == 0
    return tuple(numbers)


def reviewed(hospital: Hospital, plan: StatisticsPlan) -> list[str]:
    """The review's sentences about the rows of a plan."""
    return [words for section in row_sections(hospital, plan) for words in section.sentences]


AGE, SEX = {"name": "age", "low": 20.0, "high": 100.0}, {"name": "sex", "codes": ["F", "M", "X"]}


def test_rows_with_a_value_are_counted_and_values_are_clipped_to_the_declared_range(tmp_path: Path) -> None:
    """Eleven ages, one of them beyond the range; the sums are those of the values between 0 and 1."""
    numbers = own_numbers(site(tmp_path), asking(AGE, SEX), tmp_path)

    scaled = np.clip((np.array([age for age in AGES if age is not None]) - 20) / 80, 0, 1)
    sums = [int(np.rint(moment * SUM_SCALE)) for moment in (scaled.sum(), (scaled**2).sum())]
    assert numbers == (1, 0, 11, 1, *sums, 1, 0, 9, 3, 0, 0, 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("plan_says", "policy_says", "sexes"),
    [(3, 1, [0, 9, 3, 0]), (4, 1, [1, 0, 0, 0]), (1, 4, [1, 0, 0, 0]), (10, 1, [1, 0, 0, 0])],
)
def test_a_cell_that_is_too_small_makes_its_column_void(
    tmp_path: Path, plan_says: int, policy_says: int, sexes: list[int]
) -> None:
    """The stricter of plan and policy decides. Not even the large code is sent, so no count follows from a total."""
    hospital = site(tmp_path, smallest_cell=policy_says)

    plan = asking(SEX, AGE, smallest_cell=plan_says)
    numbers = own_numbers(hospital, plan, tmp_path)

    assert numbers[1] == sexes[0]
    if numbers[1]:  # void: secret random numbers, such as no table of this size gives
        assert max(numbers[2:6]) > 1 << 10
    else:
        assert list(numbers[2:5]) == sexes[1:]
    is_small = max(plan_says, policy_says) > 9  # of the ages within the range
    assert (numbers[10], max(numbers[11:13]) > 1 << 10) == (is_small, is_small)
    assert len(reviewed(hospital, plan)) == 1 + numbers[1]  # beside the cut age, if a column is void


def test_a_column_that_the_contract_lacks_stops_before_the_first_round(tmp_path: Path) -> None:
    """A concept that only some sites record needs recorded_by: a number that one site has would be its own."""
    for columns in (
        [{"name": "bmi", "low": 0.0, "high": 1.0}],
        [{"name": "sex", "low": 0.0, "high": 1.0}],
        [{"name": "age", "codes": ["20", "30"]}],
    ):
        with pytest.raises(ConfigurationError):
            begin_statistics(site(tmp_path), asking(*columns), tmp_path)


def test_equal_values_answer_again(tmp_path: Path) -> None:
    """The same run may request again, after a crash, and other runs get the same numbers from the same values."""
    hospital, plan = site(tmp_path), asking(AGE, smallest_cell=2)
    first = own_numbers(hospital, plan, tmp_path)

    assert own_numbers(hospital, plan, tmp_path) == first
    assert own_numbers(hospital, asking(AGE, smallest_cell=2, version=2), tmp_path) == first
    assert own_numbers(hospital, asking(SEX, smallest_cell=2, version=3), tmp_path)[2:5] == (9, 3, 0)
    changed = site(tmp_path, [*AGES[:-1], 36.0])
    with pytest.raises(ReleasedBefore):
        own_numbers(changed, asking(SEX, AGE, smallest_cell=2, version=4), tmp_path)
    listed = table_one_of(SEX) | {"concepts": table_one_of(SEX, AGE)["concepts"]}  # no sum has the age
    own_numbers(changed, make_plan(**listed, smallest_cell=2, version=5), tmp_path)


def test_a_review_counts_the_patients_in_whom_another_plan_differs(tmp_path: Path) -> None:
    """The hospital reads before it approves that a second plan would be refused. A first plan differs from none."""
    hospital, plan = site(tmp_path), asking(AGE, smallest_cell=2, version=2)
    assert not any("differ" in words for words in reviewed(hospital, plan))
    own_numbers(hospital, asking(AGE, smallest_cell=2), hospital.state_path)

    found = [reviewed(site(tmp_path, [*AGES[:9], *ages]), plan) for ages in (AGES[9:], [9.0, 25.0, 35.0])]

    assert [f" {place} patient" in told for place, (*_, told) in enumerate(found)] == [True, True]
    assert ["refuse" in told for *_, told in found] == [False, True]
    with pytest.raises(ReleasedBefore):
        own_numbers(hospital, plan, hospital.state_path)


@pytest.mark.parametrize(("ends", "cut"), [((20.0, 100.0), [1]), ((30.0, 80.0), [4]), ((20.0, 200.0), [])])
def test_a_hospital_reads_how_many_values_the_ranges_of_a_plan_cut(
    tmp_path: Path, ends: tuple[float, float], cut: list[int]
) -> None:
    """In the review before it approves, and beside its own results."""
    hospital, plan = site(tmp_path), asking(AGE | dict(zip(("low", "high"), ends, strict=True)), SEX)

    for told in (reviewed(hospital, plan), begin_statistics(hospital, plan, tmp_path).cut):
        assert [f"{one} of 11 values" in words for words, one in zip(told, cut, strict=True)] == [True] * len(cut)
    (tmp_path / "table.csv").write_text("age,sex,ill\nZebra,F,1\n")
    assert [type(one.error) for one in row_sections(hospital, plan)] == [DataError]
    (tmp_path / "table.csv").unlink()
    assert [(len(one.sentences), one.error) for one in row_sections(hospital, plan)] == [(1, None)]


def test_a_hospital_reads_its_values_in_the_units_and_codes_of_a_plan(tmp_path: Path) -> None:
    """A swapped event and a wrong unit show as numbers; codes that are mapped crosswise are asked about."""
    hospital = site(tmp_path)
    changes = {"unit": "months"}, {"concept_codes": ["M", "F"]}, {"positive": ["0"], "concept": "ill"}
    columns = [one | change for one, change in zip(CONTRACT["columns"], changes, strict=True)]
    (tmp_path / "contract.yaml").write_text(yaml.safe_dump({**CONTRACT, "columns": columns}))
    years = AGE | {"low": 0.0, "unit": "years", "conversions": [{"unit": "months", "factor": 1 / 12}]}
    model = {"name": "risk", "regression": {"family": "binomial", "outcome": "ill", "terms": ["age"]}}
    keys = table_one_of(years, SEX, {"name": "ill", "codes": ["no", "yes"]})
    plan = make_plan(**keys | {"analyses": [*keys["analyses"], model]}, smallest_cell=10)

    assert isinstance(plan, StatisticsPlan)
    own, rows = row_sections(hospital, plan)
    assert own.table is not None
    assert own.table.rows == (
        ("age", "median 4.2, from 1.7 to 16.7 years, missing: 1"),
        ("sex", "F -> M: 9 (75.0%), M -> F: 3 (25.0%)"),
        ("ill", "6 of 12 patients (50.0%) have the event ill = yes (own code 0)"),
    )
    asked = [words for words in rows.sentences if "Is this right?" in words]
    assert [words.split(" of ")[0] for words in asked] == ["sex: F is mapped to M", "sex: M is mapped to F"]


def test_a_site_that_only_counts_needs_no_event_and_reads_of_no_training(tmp_path: Path) -> None:
    """Its table is not split, and no finding is about predictions. A code without a declared meaning is named."""
    counts, trains = (site(tmp_path / tier, tier=tier) for tier in ("statistics", "training"))

    assert [one.key for one in examined(counts).findings] == ["concept-codes"]
    found = {one.key: one.words for one in examined(trains).findings}
    assert {"error:ill", "few-of-class:positive"} < {*found}
    assert "tier: statistics" in found["error:ill"]  # what makes a hospital whose patients are all censored count
    begin_statistics(counts, asking(AGE), counts.state_path)
    with pytest.raises(DataError):
        begin_statistics(trains, asking(AGE), trains.state_path)


def test_a_table_that_may_not_train_is_not_counted(tmp_path: Path) -> None:
    """A table that was not checked stops the counting if it stops training, errors always. Nothing is recorded."""
    hospital = site(tmp_path, unaccepted="stop")

    with pytest.raises(DataError, match="No person has checked"):
        own_numbers(hospital, asking(AGE), tmp_path)
    (tmp_path / "table.csv").write_text((tmp_path / "table.csv").read_text().replace("20.0,F", "Zebra,F", 1))
    with pytest.raises(DataError, match="column age: text where a number is declared in row 2"):
        own_numbers(hospital, asking(AGE), tmp_path)
    assert not released(tmp_path)


@pytest.mark.parametrize("smallest_cell", [1, 2, 3, 5])
@for_each("seed", range(20))
def test_a_column_is_released_again_only_if_enough_rows_differ(tmp_path: Path, seed: int, smallest_cell: int) -> None:
    """No changed row or any number from the smallest cell on is answered, any between is refused."""
    generator = np.random.default_rng(seed)
    changed = int(generator.integers(0, 8))
    ages = [float(age) for age in generator.choice(np.arange(20, 90), 12, replace=False)]
    later = [age + 0.5 if place < changed else age for place, age in enumerate(ages)]
    own_numbers(site(tmp_path, ages), asking(AGE, smallest_cell=smallest_cell), tmp_path)
    again = site(tmp_path, list(generator.permutation(later)))
    plan = asking(AGE, smallest_cell=smallest_cell, version=2)

    if changed == 0 or changed >= smallest_cell:
        assert own_numbers(again, plan, tmp_path)[2] == 12
    else:
        with pytest.raises(ReleasedBefore):
            own_numbers(again, plan, tmp_path)


def test_every_earlier_release_counts(tmp_path: Path) -> None:
    """All but one row go back to the first release, so the difference from it is that row."""
    ages = [float(age) for age in range(20, 32)]
    other = [age + 0.5 for age in ages]
    own_numbers(site(tmp_path, ages), asking(AGE, smallest_cell=3), tmp_path)
    own_numbers(site(tmp_path, other), asking(AGE, smallest_cell=3, version=2), tmp_path)

    with pytest.raises(ReleasedBefore):
        own_numbers(site(tmp_path, [*ages[:-1], 99.0]), asking(AGE, smallest_cell=3, version=3), tmp_path)


def test_the_run_that_asks_again_gets_the_same_rows_or_nothing(tmp_path: Path) -> None:
    """Between two attempts of one run a changed table is refused, however much of it changed."""
    own_numbers(site(tmp_path), asking(AGE), tmp_path)

    with pytest.raises(ReleasedBefore):
        own_numbers(site(tmp_path, [age and age + 0.5 for age in AGES]), asking(AGE), tmp_path)
