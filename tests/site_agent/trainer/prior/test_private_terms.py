"""The largest effect of one patient on a site's private sums. Nothing else in the table depends on the patient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protos.plan.manifest import manifest_of
from protos.plan.noisy_results import noisy_fit
from protos.plan.patient_privacy import SMALLEST_CLIP
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE
from protos.wire.messages import Stage
from site_agent.hospital import Split, read_hospital
from site_agent.trainer.before_rounds import begin_prior
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import SplitRows, prepare_rows, split_rows, steady_split
from site_agent.trainer.data.tables import Table, read_table
from site_agent.trainer.prior.concept_columns import concept_inputs
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.prior.site_sums import clipped_terms
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.for_each import for_each
from tests.protos.privacy.private_plans import private_network_plan, private_plan
from tests.site_agent.trainer.prior.prior_federation import SITES, make_hospital

Terms = Callable[..., tuple[int, ...]]


def private_sums(**promise: Any) -> PrivateSums:
    """Of a plan with five columns and four sites."""
    prior = private_plan(promise)
    assert prior is not None
    assert prior.private is not None
    return prior.private


def norm_of(numbers: Any) -> float:
    """In units of what one patient may change; computed without floating-point sums."""
    return float(np.sqrt(float(sum(int(number) ** 2 for number in numbers)))) / PRIVATE_SCALE


@pytest.mark.parametrize("clip", [SMALLEST_CLIP, 0.5, 2.0, 50.0, 1000.0])
@for_each("seed", range(10))
def test_no_patient_changes_the_sums_by_more_than_the_noise_is_made_for(seed: int, clip: float) -> None:
    """Whoever joins, with one row or many, with values of any size, moves the vector of sums by at most 1."""
    generator, private = np.random.default_rng(seed), private_sums(clip=clip)
    rows = 60
    design = generator.standard_normal((rows, 5)) * np.exp(generator.uniform(-3, 6))
    outcomes = generator.integers(0, 2, rows).astype(float)
    patients = generator.integers(0, 8, rows)

    everybody = clipped_terms(private, "berlin", design, outcomes, patients)

    for patient in range(8):
        others = patients != patient
        without = clipped_terms(private, "berlin", design[others], outcomes[others], patients[others])
        assert norm_of(np.array(everybody) - np.array(without)) <= 1.0


def test_a_patient_with_ten_thousand_rows_counts_once() -> None:
    """The term of 10,000 rows has the norm 1 and not more, in whatever blocks they are added up."""
    private, generator = private_sums(), np.random.default_rng(3)
    design = np.concatenate([generator.standard_normal((10_000, 5)), generator.standard_normal((40, 5))])
    patients = np.concatenate([np.zeros(10_000, np.int64), np.arange(1, 41)])

    together = clipped_terms(private, "ahus", design, np.ones(10_040), patients)
    alone = clipped_terms(private, "ahus", design[10_000:], np.ones(40), patients[10_000:])

    assert 0.99 < norm_of(np.array(together) - np.array(alone)) <= 1.0


@pytest.mark.parametrize("times", [1.0, 7.0, 1e6])
def test_a_long_row_has_the_term_of_its_direction_at_the_norm_clip(times: float) -> None:
    """So one extreme row does not hide the other rows of a patient, and every longer row counts as much. The intercept
    is a part of the row. A patient with an extreme row and an ordinary one has the sum of both terms."""
    private = private_sums(clip=2.0)
    generator = np.random.default_rng(4)
    wide = generator.standard_normal(len(private.columns))
    long = times * 10.0 * wide / np.linalg.norm(wide)
    shortened = 2.0 / np.sqrt(long @ long + 1.0) * np.append(long, 1.0)

    numbers = clipped_terms(private, SITES[0], long[None], np.zeros(1), None)

    entries = dict(zip(private.names, np.array(numbers) * private.units / PRIVATE_SCALE, strict=True))
    for name, value in zip((*(column.name for column in private.columns), f"site {SITES[0]}"), shortened, strict=True):
        assert entries[f"private gradient: {name}"] == pytest.approx(value / 2, abs=1e-6)
        assert entries[f"private hessian: {name} x {name}"] == pytest.approx(value**2 / 4, abs=1e-6)
    short = 0.1 * wide / np.linalg.norm(wide)
    alone = clipped_terms(private, SITES[0], short[None], np.zeros(1), None)
    both = clipped_terms(private, SITES[0], np.stack([long, short]), np.zeros(2), np.zeros(2, np.int64))
    direction = np.array(numbers, float) + np.array(alone, float)
    np.testing.assert_allclose(both, direction / np.linalg.norm(direction) * PRIVATE_SCALE, atol=PRIVATE_SCALE * 1e-6)


def test_rows_that_fit_are_summed_as_they_are() -> None:
    """Nothing is shortened without need: the sums are the gradient and the Hessian, to a rounding per patient."""
    private, generator = private_sums(clip=100.0), np.random.default_rng(4)
    design, outcomes = generator.standard_normal((200, 5)), generator.integers(0, 2, 200).astype(float)
    intercepts = np.tile([0.0, 1.0, 0.0, 0.0], (200, 1))

    numbers = np.array(clipped_terms(private, "berlin", design, outcomes, None)) / PRIVATE_SCALE * private.units

    wide = np.concatenate([design, intercepts], axis=1)
    first, second = private.pairs
    np.testing.assert_allclose(numbers[: len(first)], (wide.T @ wide / 4)[first, second], atol=1e-3)
    np.testing.assert_allclose(numbers[len(first) :], wide.T @ (0.5 - outcomes), atol=1e-4)


def table_of(folder: Path) -> Table:
    """A hospital's table of about 140 rows."""
    config = make_hospital(folder / "ahus", "ahus", "breast-cancer")
    return read_table(config.with_name("table.csv"), read_contract(config.with_name("contract.yaml")))


def less(table: Table, left_out: int) -> Table:
    """The table without one row."""
    return _only(table, np.arange(table.rows) != left_out)


def _without_patient(table: Table, patient: int) -> Table:
    assert table.patients is not None
    return _only(table, np.array(table.patients) != f"patient {patient}")


def _only(table: Table, kept: np.ndarray) -> Table:
    assert table.target is not None
    patients = None if table.patients is None else tuple(np.array(table.patients)[kept])
    features = {name: values[kept] for name, values in table.features.items()}
    return replace(table, rows=int(kept.sum()), features=features, target=table.target[kept], patients=patients)


@pytest.mark.parametrize("has_patients", [False, True])
def test_a_patient_who_leaves_moves_nobody_else_to_another_part(has_patients: bool, tmp_path: Path) -> None:
    """The steady split deals all others as before; the ordinary one does not, which is why there are two."""
    table, split = table_of(tmp_path), Split(seed=3)
    if has_patients:
        table = replace(table, patients=tuple(f"patient {row}" for row in range(table.rows)))

    def training(deal: Callable[[Table, Split], SplitRows], left_out: int | None) -> set[int]:
        whole = np.arange(table.rows)
        kept = whole if left_out is None else whole[whole != left_out]
        return set(kept[deal(table if left_out is None else less(table, left_out), split).training].tolist())

    for row in range(5):
        assert training(steady_split, row) == training(steady_split, None) - {row}
    assert any(training(split_rows, row) != training(split_rows, None) - {row} for row in range(5))
    parts = steady_split(table, split)
    assert sorted(np.concatenate([parts.training, parts.validation, parts.test])) == list(range(table.rows))


@pytest.mark.parametrize("kind", ["usual", "rare"])
def test_through_the_whole_study_one_row_less_changes_one_term(kind: str, tmp_path: Path) -> None:
    """From the table to the numbers that the gate receives, a patient changes at most 1, also with a rare value.
    Without privacy a column with nine values beside the commonest one is zeroed, and with ten it is not. Under privacy
    that rule would let the tenth patient change the terms of all others."""
    plan, split, table = private_plan(), Split(seed=3), table_of(tmp_path)
    table = replace(table, patients=tuple(f"patient {row}" for row in range(table.rows)))
    left_out = int(steady_split(table, split).training[0])
    if kind == "rare":
        name = table.contract.features[0].name
        values = np.full(table.rows, float(np.min(table.features[name])))
        values[steady_split(table, split).training[:10]] = float(np.max(table.features[name]))
        table = replace(table, features={**table.features, name: values})

    def numbers(of: Table) -> np.ndarray:
        rows = steady_split(of, split)
        dataset, _ = prepare_rows(of, rows)
        study = PriorStudy(plan, dataset, of, rows, site="ahus", secret=bytes(32), fewest=0)
        return np.array(
            study.train(Asked(round=0, stage=Stage.STATISTICS), np.zeros(4 * study.prior.words, "<f4")).scalars
        )

    difference = numbers(table) - numbers(less(table, left_out))

    assert 0.0 < norm_of(difference) <= 1.0


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam", "fedbabu", "ditto", "apfl", "local-adaptation"])
@pytest.mark.parametrize("kind", ["usual", "rare"])
def test_through_a_whole_network_one_patient_less_changes_one_term(kind: str, name: str, tmp_path: Path) -> None:
    """From the table to the numbers that the gate receives, in two rounds of each method, a patient changes at most 1.
    A personal model or private layers that shaped the sum of the second round would move the terms of all others."""
    method = {"name": name} | ({"share_rate": 1.0} if name == "apfl" else {})
    changes: dict[str, Any] = {"method": method} | ({"outputs": None} if name == "fedbabu" else {})
    plan, split, table = private_network_plan(hidden=(6,), **changes), Split(seed=3), table_of(tmp_path)
    # The patient who leaves has three rows, as have some others.
    table = replace(table, patients=tuple(f"patient {row // 3}" for row in range(table.rows)))
    training = steady_split(table, split).training
    left_out = int(training[0]) // 3
    if kind == "rare":
        feature = table.contract.features[0].name
        values = np.full(table.rows, float(np.min(table.features[feature])))
        values[training[:10]] = float(np.max(table.features[feature]))
        table = replace(table, features={**table.features, feature: values})

    def numbers(of: Table) -> list[np.ndarray]:
        rows = steady_split(of, split)
        own, _ = prepare_rows(of, rows)
        inputs = concept_inputs(plan, "ahus", of, rows, own)
        study = Study(plan, own, seeds=Seeds.published(plan.seed, "ahus"), inputs=inputs)
        first = study.manifest.initial_parameters(plan.seed)
        return [np.array(study.train(Asked(round=number), first + number).scalars) for number in range(2)]

    for one, other in zip(numbers(table), numbers(_without_patient(table, left_out)), strict=True):
        assert 0.0 < norm_of(one - other) <= 1.0


def test_a_deployed_trainer_deals_rows_steadily(tmp_path: Path) -> None:
    """The worker uses the steady split for a plan with privacy, and the ordinary one for others."""
    hospital = read_hospital(make_hospital(tmp_path / SITES[0], SITES[0], "breast-cancer"))
    table = read_table(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))

    study, _ = begin_prior(hospital, private_plan())

    assert len(study.own.training) == len(steady_split(table, hospital.data.split).training)
    assert len(study.own.training) != len(split_rows(table, hospital.data.split).training)


def test_a_site_with_more_patients_than_the_bound_sends_clipped_sums_and_stops_nothing() -> None:
    """A refusal would tell that there is one patient more. Two sums above the bound are equal, and the gate takes both.
    The bound has room for 1,048,576 rows beside those of the plan, so the test declares fewer than none."""
    private = replace(private_sums(), largest_rows=3 - (1 << 20))
    design = np.full((60, len(private.columns)), 2.0)

    def sums(rows: int) -> tuple[int, ...]:
        return clipped_terms(private, SITES[0], design[:rows], np.zeros(rows), None)

    assert private.bound == 3 * PRIVATE_SCALE
    assert max(map(abs, sums(60))) == private.bound
    assert max(map(abs, sums(2))) < private.bound
    above = np.abs(np.array(sums(59))) == private.bound
    np.testing.assert_array_equal(np.array(sums(59))[above], np.array(sums(60))[above])


def test_the_bound_of_a_trainer_is_the_gate_s() -> None:
    """Otherwise the gate would refuse a number that the trainer had clipped."""
    plan = private_plan()

    assert {scalar.bound for scalar in manifest_of(plan).scalars} == {private_sums().bound}


def test_the_others_score_is_fitted_without_any_term_of_this_site(tmp_path: Path) -> None:
    """Otherwise a site would weigh its own rows a second time, and its gain would look larger than it is."""
    plan, table, split = private_plan(), table_of(tmp_path), Split(seed=3)
    rows = steady_split(table, split)
    study = PriorStudy(plan, prepare_rows(table, rows)[0], table, rows, site=SITES[0], secret=bytes(32), fewest=0)
    private, generator = private_sums(), np.random.default_rng(0)
    design = generator.standard_normal((300, len(private.columns)))
    outcomes = (design[:, 0] > 0).astype(float)
    others = np.array(clipped_terms(private, SITES[1], design, outcomes, None)) / PRIVATE_SCALE
    own = np.array(study._terms(private)) / PRIVATE_SCALE

    known = study._known_privately(SimpleNamespace(terms=own + others, standard=None), private)  # type: ignore[arg-type]

    expected, _ = noisy_fit(private, others, study.prior.ridge)
    np.testing.assert_allclose(known.others, expected, rtol=1e-9)
    assert not np.allclose(known.joint, expected, rtol=1e-3)
