"""The default recipe is one plan, its models use the same baseline, and its tables subtract the right models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.experiments import default_recipe
from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.default_recipe import (
    BEST,
    ENCODED,
    MODELS,
    RECIPE,
    SIMPLE,
    DefaultRecipe,
    Trained,
    pages,
)
from benchmarks.experiments.federations import federate
from benchmarks.experiments.simple import Result, read_results, write_results
from site_agent.trainer import baselines

EXAMPLE = Path(__file__).parents[3] / "deploy/examples/plan.yaml"
SEEDS = (3, 4)
# Copies of a stack share their draws of dropout, so that only without it are they what they would be alone.
STILL = DefaultRecipe(dropout=0.0, input_dropout=0.0, epochs=2, latent=8)


@pytest.fixture(scope="module", autouse=True)
def _few_trees() -> Iterator[None]:
    """Laws do not depend on how many trees there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "TREES", 20)
        patch.setattr(baselines, "_TREES_IN_A_FOLD", 10)
        yield


@pytest.fixture(name="trained", scope="module")
def _trained() -> Trained:
    return Trained({seed: breast_cancer(seed) for seed in SEEDS}, STILL)


def test_the_example_of_a_plan_shows_the_recipe() -> None:
    """A person who copies the line with the baseline from plan.yaml gets the recipe's network and baseline."""
    (line,) = re.findall(r"^# or (\{expert: .*\})$", EXAMPLE.read_text(), re.MULTILINE)
    shown = yaml.safe_load(line)

    plan = RECIPE.plan(["ahus", "berlin", "cluj"], 0)

    assert plan.expert is not None
    assert plan.expert.model_dump() == shown["expert"]
    written = plan.architecture.model_dump(mode="json")
    assert {key: written[key] for key in shown["architecture"]} == shown["architecture"]


def test_the_recipe_alone_is_the_recipe_but_for_the_method() -> None:
    """No other key distinguishes the baseline from the federated model."""
    federated, alone = (RECIPE.plan(["ahus"], 5, method) for method in ("global-layers", "local"))

    assert federated.model_copy(update={"method": alone.method}) == alone


def test_seeds_at_once_are_the_deployments_federations(trained: Trained) -> None:
    """Each seed's outputs equal those of the federation of the sites' studies, baselines included."""
    federated = trained.federated()

    for place, seed in enumerate(SEEDS):
        sites = breast_cancer(seed)
        _, outcomes = federate(STILL.plan(sites, seed), sites)
        for name, outcome in outcomes.items():
            np.testing.assert_allclose(federated[name][place], outcome.test_outputs, rtol=1e-4, atol=1e-4)


def test_baselines_differ_and_repeat(trained: Trained) -> None:
    """Alone, among copies and by the baseline a site gets other outputs, each time the same ones."""
    found = [trained.federated()["berlin"], *(make("berlin") for make in (trained.alone, trained.placebo))]

    assert all(outputs.shape == found[0].shape == trained.baseline("berlin").shape for outputs in found)
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[1], found[2])
    np.testing.assert_array_equal(found[2], trained.placebo("berlin"))


def test_copies_of_a_site_fit_no_baseline_of_their_own(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The placebo's copies and the site alone hear the federation's baseline."""
    monkeypatch.setattr(default_recipe, "soft_targets_of", lambda *_: pytest.fail("fitted again"))
    monkeypatch.setattr("benchmarks.experiments.stacks.soft_targets_of", lambda *_: pytest.fail("fitted again"))

    trained.placebo("berlin")
    trained.alone("berlin")


def test_results_survive_their_file(tmp_path: Path) -> None:
    """Results that are written and read again are the same, in any order. Without a file there are no results."""
    results = [_result("federated", seed, "cleveland", 0.5 + seed / 100) for seed in (7, 2)]
    file = tmp_path / "results.csv"

    write_results(file, results)

    assert read_results(file) == sorted(results, key=lambda result: result.seed)
    assert read_results(tmp_path / "absent.csv") == []


def test_tables_subtract_seed_by_seed() -> None:
    """The federated model one point above everything else, and two above what it is above by two."""
    results = [
        _result(model, seed, site, 0.80 + seed / 100 - 0.01 * (model != "federated"), without_time=without)
        for model in MODELS
        for seed in range(5)
        for site in ("cleveland", "south-africa", "faisalabad")
        for without in (False, True)
        if site == "faisalabad" or not without or model == "federated"
    ]
    simple = [
        Result(
            site=site,
            without_time=without,
            model=model,
            seed=seed,
            auroc=0.80 + seed / 100 - 0.02 * (1 + (model == "random-forest")),
            auprc=0.5,
            balanced_accuracy=0.5,
        )
        for model in (*SIMPLE, *ENCODED)
        for seed in range(5)
        for site, without in (*((site, False) for site in ("cleveland", "south-africa")), ("faisalabad", True))
    ] + [
        Result(
            site="faisalabad", without_time=False, model=model, seed=seed, auroc=0.5, auprc=0.5, balanced_accuracy=0.5
        )
        for model in (*SIMPLE, *ENCODED)
        for seed in range(5)
    ]

    lines = {line.split("|")[1].strip(): line for line in pages(results, simple) if line.startswith("|")}

    assert lines["alone"].split("|")[2].strip() == "+1.00 ± 0.00"
    assert lines[BEST].split("|")[2].strip() == lines["logistic-regression"].split("|")[2].strip() == "+2.00 ± 0.00"
    assert lines["random-forest"].split("|")[2].strip() == "+4.00 ± 0.00"
    assert lines["random-forest"].split("|")[-2].strip() == "+4.00 ± 0.00"
    assert lines["gradient-boosting"].split("|")[4].strip().startswith("+32.00")


def _result(model: str, seed: int, site: str, auroc: float, *, without_time: bool = False) -> Result:
    return Result(
        site=site,
        without_time=without_time,
        model=model,
        seed=seed,
        auroc=auroc,
        auprc=0.5,
        balanced_accuracy=0.5,
    )
