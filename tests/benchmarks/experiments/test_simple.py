"""Models for comparison with federated ones: they give the published figures, and an interrupted run continues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.simple import (
    MODELS,
    RESULTS,
    Result,
    main,
    missing_results,
    probabilities_of,
    read_results,
    result_of,
    write_results,
)

from .data.conftest import DATA, needs_heart


@needs_heart
@pytest.mark.parametrize(
    ("site", "without_time", "auroc"),
    [("cleveland", False, 92.34), ("south-africa", False, 77.41), ("faisalabad", False, 87.23)],
)
def test_logistic_regression_has_its_published_area(site: str, without_time: bool, auroc: float) -> None:
    """Over seeds 0 to 9 the mean is the published one, to the second digit."""
    results = [result_of(DATA, site, "logistic-regression", seed, without_time=without_time) for seed in range(10)]

    assert 100 * np.mean([result.auroc for result in results]) == pytest.approx(auroc, abs=0.0051)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_a_table_that_comes_with_scikit_learn(model: str) -> None:
    """Malignant tumours rank above benign ones, and equal seeds give equal bits."""
    dataset = breast_cancer(0)["berlin"]
    name = next(known for known in MODELS if known == model)

    first, again = (probabilities_of(name, dataset, seed=1) for _ in range(2))

    np.testing.assert_array_equal(first, again)
    positives, negatives = first[dataset.test.targets == 1], first[dataset.test.targets == 0]
    assert np.mean(positives[:, None] > negatives) > 0.9


@needs_heart
def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Results in the file are not computed again, and the final file is the same as without an interruption."""
    file = tmp_path / "results.csv"
    arguments = ["--data", str(DATA), "--results", str(file), "--model", "logistic-regression"]
    at_once = tmp_path / "at-once.csv"
    started = CliRunner().invoke(main, [*arguments, "--seeds", "1"])

    resumed = CliRunner().invoke(main, [*arguments, "--seeds", "3"])
    CliRunner().invoke(main, [*arguments[:3], str(at_once), *arguments[4:], "--seeds", "3"])

    assert (started.exit_code, resumed.exit_code) == (0, 0)
    assert file.read_text() == at_once.read_text()
    assert len(read_results(file)) == 12
    assert not list(missing_results(DATA, read_results(file), range(3), ["logistic-regression"]))


def test_results_survive_their_file(tmp_path: Path) -> None:
    """The program reads the lines that it wrote, in the order of site, model and seed."""
    metrics = {"auroc": 0.5, "auprc": 0.25, "balanced_accuracy": 0.75}
    results = [
        Result(site=site, without_time=False, model="random-forest", seed=seed, **metrics)
        for seed in (1, 0)
        for site in ("faisalabad", "cleveland")
    ]

    write_results(tmp_path / "results.csv", results)

    found = read_results(tmp_path / "results.csv")
    assert set(found) == set(results)
    assert [(result.site, result.seed) for result in found] == [
        *(("cleveland", 0), ("cleveland", 1), ("faisalabad", 0), ("faisalabad", 1))
    ]
    assert read_results(tmp_path / "nothing.csv") == []


@pytest.mark.parametrize(
    ("site", "without_time", "auroc"),
    [
        ("cleveland", False, 91.64),
        ("south-africa", False, 77.60),
        ("faisalabad", False, 87.03),
        ("faisalabad", True, 75.7),
    ],
)
def test_the_kept_results_are_the_published_ones(site: str, without_time: bool, auroc: float) -> None:
    """The file in the repository has all 101 seeds, and their means are the published ones."""
    own = [result for result in read_results(RESULTS) if (result.site, result.without_time) == (site, without_time)]
    logistic = [result.auroc for result in own if result.model == "logistic-regression"]

    assert len(own) == 101 * len(MODELS)
    assert 100 * np.mean(logistic) == pytest.approx(auroc, abs=0.05 if without_time else 0.0051)
