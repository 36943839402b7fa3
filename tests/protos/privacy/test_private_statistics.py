"""Statistics under privacy: the possible plans, the noise, the effect of a patient, and the result of the sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.statistics_plan import StatisticsPlan
from protos.privacy.accounting import PRIVATE_SCALE, delta_of
from protos.privacy.discrete_gaussian import discrete_gaussian
from protos.wire.messages import Stage
from site_agent.gate.policy import refusals
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics.concept_frame import concept_frame
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.for_each import for_each
from tests.protos.examples import listed, plan_with, table_one_of
from tests.protos.privacy.private_plans import PROMISE
from tests.rehearsal.gates import policy_with
from tests.site_agent.trainer.test_statistics import CONTRACT

AGE, SEX = {"name": "age", "low": 20.0, "high": 100.0}, {"name": "sex", "codes": ["F", "M", "X"]}


def private_statistics_plan(
    promise: dict[str, Any] | None = None, smallest_cell: int = 1, **keys: Any
) -> StatisticsPlan:
    """A plan that counts ages and sexes at four sites, with noise."""
    asked = table_one_of(AGE, SEX) | {"smallest_cell": smallest_cell, "sites": listed(4)}
    plan = plan_with(**asked | {"privacy": PROMISE | {"clip": 1.0} | (promise or {})} | keys)
    assert isinstance(plan, StatisticsPlan)
    return plan


def _private_numbers(plan: StatisticsPlan, table: Table) -> tuple[int, ...]:
    name = plan.site_names[0]
    study = StatisticsStudy(plan, concept_frame(plan, table, name, 1), site=name, secret=b"secret")
    asked = Asked(round=0, stage=Stage.STATISTICS)
    return study.train(asked, np.zeros(plan.tensor.number_count, np.float32)).scalars


def results_of(plan: StatisticsPlan, sums: Sequence[int], noise_variance: float) -> dict[str, Any]:
    """What is printed of each column."""
    assert plan.private_tables is not None
    (found,) = plan.private_tables.results(sums, noise_variance)
    return {"noise": found["noise"]} | {name: groups["all"] for name, groups in found["columns"].items()}


def table_of(ages: np.ndarray, sexes: np.ndarray, patients: np.ndarray | None = None) -> Table:
    """A table with these columns; a sex is a place among the contract's codes, or -1."""
    contract = Contract.model_validate(CONTRACT, strict=False)
    names = None if patients is None else tuple(map(str, patients))
    features = {"age": ages, "sex": sexes}
    return Table(contract=contract, rows=len(ages), features=features, target=np.zeros(len(ages)), patients=names)


def drawn(generator: np.random.Generator, rows: int, spread: float = 15.0) -> tuple[np.ndarray, np.ndarray]:
    """Ages, of which some are missing, and sexes."""
    ages = np.where(generator.random(rows) < 0.1, np.nan, generator.normal(60.0, spread, rows))
    return ages, generator.integers(-1, 2, rows).astype(np.float64)


def norm_of(numbers: Any) -> float:
    """In units of what one patient may change; computed without floating-point sums."""
    return float(np.sqrt(float(sum(int(number) ** 2 for number in numbers)))) / PRIVATE_SCALE


@for_each("mean", (60.0, 98.0))
def test_the_error_of_a_mean_is_that_of_its_noise(mean: float) -> None:
    """1,000 draws of noise move the mean of 3,000 ages as the closed form says, within the limits of chance."""
    plan, generator = private_statistics_plan(), np.random.default_rng(7)
    assert plan.private_tables is not None
    place, rows, draws = (mean - 60.0) / 40.0, 3000, 1000
    exact = np.array([rows, rows * place, rows * place**2, 500.0, 500.0, 500.0]) / plan.private_tables.unit
    variance = 4.0 * plan.noise_variance
    means, shares = [], discrete_gaussian(4 * 6 * draws, plan.noise_variance, generator.bytes).reshape(draws, 4, 6)
    for noise in shares.sum(axis=1):
        assert results_of(plan, noise.tolist(), variance)["age"]["mean"] is None  # too few rows beside the noise
        sums = np.rint(exact * PRIVATE_SCALE + noise).astype(int).tolist()
        found = results_of(plan, sums, variance)
        means.append(found["age"]["mean"])

    # To first order, the noise in the count moves the mean by its distance from the middle of the range.
    wanted = 40.0 * found["noise"] / rows * np.sqrt(1 + place**2)
    assert abs(np.std(means) / wanted - 1) < 5 / np.sqrt(2 * draws)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"smallest_cell": 10}, "smallest_cell is 10, but noise hides small counts"),
        ({"promise": {"patients": 300}}, "Extra inputs are not permitted"),
        ({"masking": {"required": False}}, "Set required under masking to true"),
        ({"assumed_colluders": 0}, "assumed_colluders is 0"),
    ],
)
def test_statistics_that_cannot_keep_the_promise_are_refused(keys: dict[str, Any], words: str) -> None:
    """Every rule has its reason in the refusal."""
    with pytest.raises(ValidationError, match=words):
        private_statistics_plan(**keys)


def test_one_round_sends_signed_sums_and_nothing_else() -> None:
    """The names are those of plain statistics; the bounds leave room for rows, for noise and for a hundred sites."""
    plan = private_statistics_plan({"epsilon": 0.01, "delta": 1e-12})
    manifest = manifest_of(plan)

    assert (plan.rounds, plan.private_sums, plan.noise_variance) == (1, 1, plan.noise_variance)
    assert (stage_at(plan, 0), stage_at(plan, 1)) == (Stage.STATISTICS, None)
    exchange = Exchanges(plan, manifest).of(0, Stage.STATISTICS, b"")
    assert (exchange.up, exchange.scalars) == ((), manifest.scalars)
    assert plan.private_tables is not None
    assert tuple(scalar.name for scalar in manifest.scalars) == plan.private_tables.names
    assert len(manifest.scalars) == 6
    assert all(scalar.is_signed and scalar.scale == PRIVATE_SCALE for scalar in manifest.scalars)
    assert all(100 * scalar.bound < 1 << 63 for scalar in manifest.scalars)
    assert all(scalar.bound > 64 * float(plan.noise_variance) ** 0.5 for scalar in manifest.scalars)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize(("quorum", "colluders"), [(4, 1), (4, 2), (3, 1)])
def test_the_honest_shares_of_the_fewest_sites_keep_the_promise(epsilon: float, quorum: int, colluders: int) -> None:
    """Less colluders and rounding they meet delta, and with 1% less noise they do not."""
    plan = private_statistics_plan({"epsilon": epsilon}, sites=listed(quorum), assumed_colluders=colluders)

    honest = (quorum - colluders) * (plan.noise_variance - 4)

    assert delta_of(epsilon, PRIVATE_SCALE / np.sqrt(float(honest))) <= 1e-5
    assert delta_of(epsilon, 1.01 * PRIVATE_SCALE / np.sqrt(float(honest))) > 1e-5


@pytest.mark.parametrize("clip", [0.3, 1.0, 4.0])
@for_each("seed", range(10))
def test_no_patient_changes_the_sums_by_more_than_the_noise_is_made_for(seed: int, clip: float) -> None:
    """With one row or many, missing, huge or infinite values: whoever leaves moves the vector of sums by at most 1."""
    generator, private = np.random.default_rng(seed), private_statistics_plan({"clip": clip})
    ages, sexes = drawn(generator, 60, spread=1e3)
    ages[:3] = np.inf, -np.inf, 1e300
    patients = generator.integers(0, 12, 60)
    everybody = np.array(_private_numbers(private, table_of(ages, sexes, patients)))

    for patient in range(12):
        others = patients != patient
        without = _private_numbers(private, table_of(ages[others], sexes[others], patients[others]))
        assert norm_of(everybody - np.array(without)) <= 1.0


def test_a_complete_row_at_the_end_of_the_range_is_as_long_as_the_clip_allows() -> None:
    """So the unit is not larger than it has to be, and a patient with a thousand such rows has the same norm."""
    private = private_statistics_plan()
    one = _private_numbers(private, table_of(np.array([100.0]), np.array([0.0])))
    many = _private_numbers(private, table_of(np.full(1000, 100.0), np.zeros(1000), np.zeros(1000)))

    assert 0.9999 < norm_of(one) <= 1.0
    assert 0.9999 < norm_of(many) <= 1.0


@for_each("seed", range(5))
def test_without_noise_the_sums_are_the_moments_of_all_rows(seed: int) -> None:
    """Clip 1 shortens no patient with one row: counts, mean and deviation are exact to rounding."""
    generator, private = np.random.default_rng(seed), private_statistics_plan()
    ages, sexes = drawn(generator, 2000)
    parts = np.array_split(np.arange(2000), 4)
    each = [_private_numbers(private, table_of(ages[part], sexes[part])) for part in parts]

    told = results_of(private, [sum(numbers) for numbers in zip(*each, strict=True)], 4.0 * private.noise_variance)

    known = np.clip(ages[~np.isnan(ages)], 20.0, 100.0)
    assert told["age"]["rows"] == known.size
    assert told["age"]["mean"] == pytest.approx(known.mean(), abs=1e-3)
    assert told["age"]["deviation"] == pytest.approx(known.std(), abs=1e-3)
    rows = [told["sex"]["codes"][code]["rows"] for code in "FMX"]
    assert rows == [(sexes == 0).sum(), (sexes == 1).sum(), 0]
    assert sum(told["sex"]["codes"][code]["share"] for code in "FMX") == pytest.approx(1.0)


def test_a_policy_s_smallest_cell_forbids_plain_statistics_and_no_private_ones() -> None:
    """Under privacy the limits of epsilon decide; without limits a private plan is refused."""
    private, limits = private_statistics_plan(), {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.0}
    plain = private.model_copy(update={"privacy": None})

    def why(plan: Plan, **keys: Any) -> str:
        found = refusals(policy_with(smallest_cell=10, **keys), plan, manifest_of(plan), site="ahus", identity=None)
        return "; ".join(found)

    assert "smallest cell is 1, and the policy requires 10" in why(plain)
    assert "smallest cell" not in why(private, privacy=limits | {"delta": 1e-5})
    assert "the policy has no epsilon limits" in why(private)


def test_the_sums_of_a_trainer_do_not_depend_on_small_cells() -> None:
    """One row of a code is in the sum, for any plan: leaving it out would tell others that it is alone."""
    table = table_of(np.full(20, 50.0), np.array([0.0] * 19 + [1.0]))
    plan, another = private_statistics_plan(), private_statistics_plan(version=2)

    numbers = _private_numbers(plan, table)

    assert _private_numbers(another, table) == numbers
    assert plan.private_tables is not None
    assert numbers[4] == pytest.approx(PRIVATE_SCALE / plan.private_tables.unit, rel=1e-6)


def test_a_site_with_more_patients_than_the_bound_sends_clipped_sums_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal would tell that there is one patient more. The bound is the gate's, with room for 1,048,576 rows."""
    monkeypatch.setattr("protos.plan.statistics_plan.LARGEST_PATIENTS", 3 - (1 << 20))
    plan = private_statistics_plan()

    one, other = (_private_numbers(plan, table_of(np.full(rows, 100.0), np.zeros(rows))) for rows in (59, 60))

    assert {scalar.bound for scalar in manifest_of(plan).scalars} == {3 * PRIVATE_SCALE}
    assert one == other
    assert max(one) == plan.largest_private_number == 3 * PRIVATE_SCALE
