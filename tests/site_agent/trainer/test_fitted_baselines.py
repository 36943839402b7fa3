"""The site's own baseline: fitted to training rows alone, and joined by the out-of-fold results of each part."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge

from protos.errors import DataError
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.stored_arrays import baseline_arrays, baseline_of
from site_agent.trainer import baselines
from site_agent.trainer.baselines import FOLDS, Baseline, fit_baseline
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from tests.for_each import for_each

TASKS: tuple[Task, ...] = ("binary", "multi-class", "regression")
CLASSES = {"binary": ("negative", "positive"), "multi-class": ("a", "b", "c"), "regression": ()}


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws do not depend on how many trees there are."""
    monkeypatch.setattr(baselines, "TREES", 20)
    monkeypatch.setattr(baselines, "_TREES_IN_A_FOLD", 10)


def made_up(task: Task, seed: int, rows: int = 60, **changes: Any) -> Dataset:
    """A site whose first column matters in a straight line and whose second one does at a threshold."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, 4)).astype(np.float32)
    line = features[:, 0] + (features[:, 1] > 0.5) + generator.standard_normal(rows)
    if task == "regression":
        targets: Any = line.astype(np.float64)
    else:
        edges = np.quantile(line, [0.5] if task == "binary" else [0.33, 0.66])
        targets = np.searchsorted(edges, line).astype(np.float32 if task == "binary" else np.int64)
    part = Examples(features=features, targets=targets)
    dataset = Dataset(
        training=part, validation=part, test=part, columns=("a", "b", "c", "d"), task=task, classes=CLASSES[task]
    )
    return replace(dataset, **changes)


def bits(baseline: Baseline) -> list[bytes]:
    """All that is kept of it."""
    return [name.encode() + array.tobytes() for name, array in sorted(baseline_arrays(baseline).items())]


@pytest.mark.parametrize("task", TASKS)
@for_each("seed", range(2))
def test_it_repeats_to_the_bit_and_follows_its_seed(task: Task, seed: int) -> None:
    """Equal rows and seed, equal bits in the model and out of fold; another seed, another forest."""
    dataset = made_up(task, seed)

    first, again, other = fit_baseline(dataset, seed), fit_baseline(dataset, seed), fit_baseline(dataset, seed + 1000)

    assert bits(first.baseline) == bits(again.baseline)
    np.testing.assert_array_equal(first.out_of_fold, again.out_of_fold)
    assert bits(first.baseline) != bits(other.baseline)


@pytest.mark.parametrize("task", TASKS)
def test_it_reads_training_rows_alone(task: Task) -> None:
    """With no validation and test row at all it comes out the same."""
    dataset = made_up(task, 1)
    nobody = Examples(features=dataset.test.features[:0], targets=dataset.test.targets[:0])

    blind = fit_baseline(replace(dataset, validation=nobody, test=nobody), 4)

    assert bits(blind.baseline) == bits(fit_baseline(dataset, 4).baseline)


@pytest.mark.parametrize("task", TASKS)
@for_each("seed", range(3))
def test_kept_arrays_say_the_same(task: Task, seed: int) -> None:
    """Read again they give the same bits, and for each row alone too."""
    dataset = made_up(task, seed)
    baseline, features = fit_baseline(dataset, seed).baseline, made_up(task, seed + 50).test.features

    predictions = baseline.predictions(features)

    assert predictions.shape == (len(features), dataset.outputs)
    np.testing.assert_array_equal(baseline_of(task, baseline_arrays(baseline)).predictions(features), predictions)
    for row in range(0, len(features), 7):
        np.testing.assert_array_equal(baseline.predictions(features[row : row + 1])[0], predictions[row])


@for_each("seed", range(5))
def test_a_binary_opinion_is_a_bounded_mean_of_two_logits(seed: int) -> None:
    """Scikit-learn's own probabilities p, as log((p + .005) / (1 - p + .005)), at the shares of the two models."""
    dataset = made_up("binary", seed)
    rows, labels = dataset.training, dataset.training.targets.astype(np.int64)
    line = LogisticRegression(C=0.1, max_iter=1000).fit(rows.features.astype(np.float64), labels)
    grown = RandomForestClassifier(20, min_samples_leaf=3, random_state=seed).fit(rows.features, labels)

    fitted = fit_baseline(dataset, seed)

    parts = [line.predict_proba(rows.features.astype(np.float64))[:, 1], grown.predict_proba(rows.features)[:, 1]]
    logits = [np.log((p + 0.005) / (1 - p + 0.005)) for p in parts]
    share = fitted.baseline.forest_share
    expected = (1 - share) * logits[0] + share * logits[1]
    np.testing.assert_allclose(fitted.baseline.predictions(rows.features)[:, 0], expected, rtol=0, atol=1e-12)
    assert fitted.evidence["forest_share"] == share


@pytest.mark.parametrize("present", [(0, 1, 2), (0, 2)])
def test_opinions_on_several_classes_are_logarithms_of_probabilities(present: tuple[int, ...]) -> None:
    """They add up to one, follow scikit-learn's, and a class without a training row gets about half a percent."""
    dataset = made_up("multi-class", 3)
    kept = np.isin(dataset.training.targets, present)
    rows = Examples(features=dataset.training.features[kept], targets=dataset.training.targets[kept])

    baseline = fit_baseline(replace(dataset, training=rows), 3).baseline

    line = LogisticRegression(C=0.1, max_iter=1000).fit(rows.features.astype(np.float64), rows.targets)
    probabilities = np.zeros((len(rows), 3))
    probabilities[:, list(present)] = line.predict_proba(rows.features.astype(np.float64))
    predictions = baseline.predictions(rows.features)
    np.testing.assert_allclose(np.exp(predictions).sum(axis=1), 1.0, rtol=0, atol=1e-12)
    linear = replace(baseline, forest_share=0.0).predictions(rows.features)
    expected = np.log((probabilities + 0.005) / 1.015)
    np.testing.assert_allclose(linear, expected, rtol=0, atol=1e-12)
    if len(present) == 2:
        assert np.exp(predictions[:, 1]).max() < 0.01


def test_an_opinion_on_a_number_is_a_mean_of_two_numbers() -> None:
    """Ridge regression and a forest, at their shares."""
    dataset = made_up("regression", 2)
    rows = dataset.training
    line = Ridge(alpha=10.0).fit(rows.features.astype(np.float64), rows.targets)

    baseline = fit_baseline(dataset, 2).baseline

    linear = replace(baseline, forest_share=0.0).predictions(rows.features)[:, 0]
    np.testing.assert_allclose(linear, line.predict(rows.features.astype(np.float64)), rtol=0, atol=1e-12)
    both = linear + baseline.forest_share * (
        replace(baseline, forest_share=1.0).predictions(rows.features)[:, 0] - linear
    )
    np.testing.assert_allclose(baseline.predictions(rows.features)[:, 0], both, rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_no_row_teaches_itself(task: Task) -> None:
    """Other labels within a fold change what is said of the other folds' rows, and nothing that is said of its own."""
    dataset = made_up(task, 5)
    folds = np.arange(len(dataset.training)) % FOLDS
    targets = dataset.training.targets.copy()
    targets[folds == 0] = np.roll(targets[folds == 0], 1)
    rows = Examples(features=dataset.training.features, targets=targets)

    before, after = (_out_of_fold(each, folds) for each in (dataset, replace(dataset, training=rows)))

    np.testing.assert_array_equal(after[folds == 0], before[folds == 0])
    assert (after[folds != 0] != before[folds != 0]).all(axis=1).mean() > 0.9


def _out_of_fold(dataset: Dataset, folds: np.ndarray) -> np.ndarray:
    """Predictions out of these folds, of both models in equal parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "patient_folds", lambda *_, **__: folds)
        patch.setattr(baselines, "_probability_of_less", lambda *_: 0.5)
        return fit_baseline(dataset, 5).out_of_fold


@for_each("seed", range(20))
def test_a_patient_is_in_one_fold_and_classes_are_in_all(seed: int) -> None:
    """Rows of one patient stay together; each fold has its part of the rarer class."""
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, 40, 100)
    of_patient = generator.random(40) < 0.3
    targets = of_patient[patients].astype(np.float32)

    folds = baselines.patient_folds(targets, patients, seed, has_classes=False)

    assert all(len(set(folds[patients == patient])) == 1 for patient in patients)
    positive = [len(set(patients[(folds == fold) & (targets == 1)])) for fold in range(FOLDS)]
    assert max(positive) - min(positive) <= 1


@for_each("seed", range(10))
def test_the_forests_share_is_the_probability_that_it_is_better(seed: int) -> None:
    """Of a normal with the mean and standard error of the patients' differences; halves where nothing differs."""
    generator = np.random.default_rng(seed)
    differences, patients = generator.standard_normal(50) - 0.1, np.arange(50)

    share = baselines._probability_of_less(differences, patients)

    error = differences.std(ddof=1) / np.sqrt(50)
    assert share == pytest.approx(NormalDist().cdf(-differences.mean() / error), abs=1e-12)
    doubled = baselines._probability_of_less(np.repeat(differences, 2), np.repeat(patients, 2))
    assert doubled == pytest.approx(share, abs=1e-12)
    assert baselines._probability_of_less(np.zeros(50), patients) == 0.5


@pytest.mark.parametrize("kind", ["straight", "threshold"])
def test_the_better_model_has_the_larger_share(kind: str) -> None:
    """A straight line is the linear model's, a checkerboard the forest's."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((200, 4)).astype(np.float32)
    score = features.sum(axis=1) if kind == "straight" else np.sign(features[:, 0]) * np.sign(features[:, 1])
    rows = Examples(features=features, targets=(score > 0).astype(np.float32))

    share = fit_baseline(made_up("binary", 0, training=rows), 0).baseline.forest_share

    assert share < 0.1 if kind == "straight" else share > 0.9


def test_a_strange_row_has_no_boundless_opinion() -> None:
    """However far from all others, a logit stays within log(1.005 / .005), which is about 5.3."""
    baseline = fit_baseline(made_up("binary", 0), 0).baseline

    predictions = baseline.predictions(np.full((2, 4), [[1e9], [-1e9]], dtype=np.float32))

    assert np.isfinite(predictions).all()
    assert np.abs(predictions).max() <= np.log(1.005 / 0.005) + 1e-12


@pytest.mark.parametrize("rows", [4, 12])
def test_too_few_patients_are_refused(rows: int) -> None:
    """Fewer patients than folds, or a class that one fold would hold as a whole."""
    dataset = made_up("binary", 0, rows=rows)
    targets = np.zeros(rows, np.float32)
    targets[0] = 1.0
    only = Examples(features=dataset.training.features, targets=targets)

    for fit in (fit_baseline, fit_own_models):
        with pytest.raises(DataError, match="own baseline models cannot be fitted"):
            fit(replace(dataset, training=only), 0)


def test_large_tables_bound_each_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of rows each tree draws so many, and trees grow no further."""
    dataset = made_up("binary", 0, rows=400)
    whole = fit_baseline(dataset, 0).baseline.forest
    monkeypatch.setattr(baselines, "MOST_ROWS", 50)

    bounded = fit_baseline(dataset, 0).baseline.forest

    assert len(bounded.columns) < len(whole.columns) / 2


def test_other_arrays_are_no_baseline() -> None:
    """A name too few or too many, or another type: nothing is made of them."""
    arrays = baseline_arrays(fit_baseline(made_up("binary", 0), 0).baseline)

    for broken in (
        {name: array for name, array in arrays.items() if name != "share"},
        arrays | {"more": np.zeros(1)},
        arrays | {"share": np.zeros(1, np.float32)},
        arrays | {"share": np.array([1.5])},
        arrays | {"intercepts": np.zeros(2)},
        arrays | {"values": np.zeros((len(arrays["columns"]), 2))},
    ):
        with pytest.raises(ValueError, match=r"baseline|linear|share"):
            baseline_of("binary", broken)
