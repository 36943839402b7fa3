"""A statistician's models are scikit-learn's, fitted to the site's own training rows and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from protos.errors import DataError
from protos.plan.architecture import ImageSize
from site_agent.desk.results import simple_models
from site_agent.desk.results.joining_models import FOLDS, _patient_folds, fit_own_models
from site_agent.desk.results.simple_models import TITLES, best_simple_model, reads_simply, simple_scores
from site_agent.hospital import read_hospital
from site_agent.trainer.data.contract import Task, read_contract
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.data.preprocessing import Preprocessing, Scale
from tests.for_each import for_each
from tests.site_agent.trainer.sites import Table, make_site, prepared


@pytest.fixture(scope="module", autouse=True)
def small_reports() -> None:
    """The best simple model is chosen with all folds."""


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws hold for any number of trees, and 500 take a second."""
    monkeypatch.setattr(simple_models, "_TREES", 10)


def site(folder: Path, table: Table) -> tuple[Dataset, Preprocessing]:
    """A hospital's rows, split and encoded."""
    hospital = read_hospital(make_site(folder, table=table, columns=slice(0, 10)))
    return prepared(Path(hospital.data.table), read_contract(Path(hospital.data.contract)), hospital.data.split)


def test_two_classes_are_scikit_learns_models(tmp_path: Path) -> None:
    """The recipes that the pages name, to the bit; the guess is the share of the positive class in training."""
    dataset, preprocessing = site(tmp_path, "breast-cancer")
    features, labels = dataset.training.features.astype(np.float64), dataset.training.targets.astype(np.int64)
    recipes = {
        "logistic_regression": LogisticRegression(C=0.1, max_iter=1_000),
        "random_forest": RandomForestClassifier(10, min_samples_leaf=3, random_state=5),
        "gradient_boosting": GradientBoostingClassifier(random_state=5),
    }

    found = dict(simple_scores(dataset, preprocessing, seed=5))

    assert list(found) == [*recipes, "majority_guess"]
    for name, recipe in recipes.items():
        expected = recipe.fit(features, labels).predict_proba(dataset.test.features.astype(np.float64))[:, 1]
        np.testing.assert_array_equal(found[name], expected)
    np.testing.assert_allclose(found["majority_guess"], labels.mean())


def test_neither_validation_nor_test_rows_teach_them(tmp_path: Path) -> None:
    """Other outcomes there change no score."""
    dataset, preprocessing = site(tmp_path, "breast-cancer")

    def turned(part: Examples) -> Examples:
        return replace(part, targets=1 - part.targets)

    changed = replace(dataset, validation=turned(dataset.validation), test=turned(dataset.test))

    straight, with_others = (dict(simple_scores(rows, preprocessing, seed=0)) for rows in (dataset, changed))

    for name, scores in straight.items():
        np.testing.assert_array_equal(scores, with_others[name])


@pytest.mark.parametrize("table", ["breast-cancer", "wine", "diabetes"])
def test_the_best_simple_model_is_chosen_without_a_test_row(tmp_path: Path, table: Table) -> None:
    """Other test rows leave the choice as it is, and equal rows and seeds give an equal choice."""
    dataset, _ = site(tmp_path, table)
    other = replace(dataset, test=Examples(features=-dataset.test.features, targets=dataset.test.targets[::-1].copy()))

    chosen = best_simple_model(dataset, 0)

    assert chosen in TITLES
    assert best_simple_model(other, 0) == chosen


def test_a_line_that_is_one_is_best_told_by_the_linear_model(tmp_path: Path) -> None:
    """Where the outcome is a sum of columns with noise, no forest is chosen; where it is their product, no line is."""
    dataset, _ = site(tmp_path, "breast-cancer")
    for seed in range(2):
        generator = np.random.default_rng(seed)
        features, noise = generator.normal(size=(400, 4)).astype(np.float32), generator.logistic(size=400)
        sums = (features.sum(axis=1) + noise > 0).astype(dataset.training.targets.dtype)
        products = (6 * features[:, 0] * features[:, 1] + noise > 0).astype(dataset.training.targets.dtype)

        chosen = [
            best_simple_model(
                replace(dataset, training=Examples(features=features, targets=targets), training_patients=None), seed
            )
            for targets in (sums, products)
        ]

        assert chosen[0] == "logistic_regression", f"seed {seed}"
        assert chosen[1] != "logistic_regression", f"seed {seed}"


@pytest.mark.parametrize("image", [ImageSize(height=64, width=64), None], ids=["image", "columns"])
@pytest.mark.parametrize(
    ("task", "fitted"),
    [
        ("multi-class", ["logistic_regression", "random_forest", "majority_guess"]),
        ("regression", ["ridge_regression", "mean_guess"]),
    ],
)
def test_large_images_and_many_columns_get_the_models_that_end_in_time(
    task: Task, fitted: list[str], image: ImageSize | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees that would look at each column are left out. Above a number of pixels no simple model is fitted."""
    columns, generator = tuple(f"column {number}" for number in range(64 * 64)), np.random.default_rng(0)

    def examples(rows: int) -> Examples:
        targets, features = np.arange(rows) % 3, generator.normal(size=(rows, len(columns))).astype(np.float32)
        return Examples(features=features, targets=targets.astype(np.float64 if task == "regression" else np.int64))

    dataset = Dataset(
        training=examples(30),
        validation=examples(6),
        test=examples(6),
        columns=columns,
        task=task,
        classes=() if task == "regression" else ("a", "b", "c"),
        image=image,
    )
    scale = Scale(mean=0.0, deviation=1.0) if task == "regression" else None
    preprocessing = Preprocessing.model_construct(target_scale=scale)

    assert [name for name, _ in simple_scores(dataset, preprocessing, 0)] == fitted
    assert best_simple_model(dataset, 0) in fitted
    monkeypatch.setattr(simple_models, "MOST_NUMBERS", 30 * 64 * 64)
    assert reads_simply(dataset)
    monkeypatch.setattr(simple_models, "MOST_NUMBERS", 30 * 64 * 64 - 1)
    assert reads_simply(dataset) is (image is None)


@for_each("seed", range(20))
def test_a_patient_is_in_one_fold_and_classes_are_in_all(seed: int) -> None:
    """Rows of one patient stay together; each fold has its part of the rarer class."""
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, 40, 100)
    targets = (generator.random(40) < 0.3)[patients].astype(np.float32)

    folds = _patient_folds(targets, patients, seed, has_classes=False)

    assert all(len(set(folds[patients == patient])) == 1 for patient in patients)
    positive = [len(set(patients[(folds == fold) & (targets == 1)])) for fold in range(FOLDS)]
    assert max(positive) - min(positive) <= 1


@pytest.mark.parametrize("rows", [4, 12])
def test_too_few_patients_are_refused(rows: int) -> None:
    """Fewer patients than folds, or a class that one fold would hold as a whole."""
    features, targets = (
        np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32),
        np.zeros(rows, np.float32),
    )
    targets[0] = 1.0
    part = Examples(features=features, targets=targets)
    classes = ("negative", "positive")
    dataset = Dataset(
        training=part, validation=part, test=part, columns=("a", "b", "c", "d"), task="binary", classes=classes
    )

    with pytest.raises(DataError):
        fit_own_models(dataset, 0)
