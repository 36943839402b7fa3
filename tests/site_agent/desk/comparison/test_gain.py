"""The sentence states exactly what the numbers show."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.gain import FEDERATED, PLACEBO, SILOED, Baselines, Gain, gain_of
from site_agent.trainer.fitted_models import probabilities
from tests.for_each import for_each

TWO = ("negative", "positive")


def _two_classes(rows: int = 200, positives: int = 80) -> HeldOutRows:
    labels = (np.arange(rows) < positives).astype(np.int64)
    return HeldOutRows(task="binary", targets=labels, classes=TWO, patients=np.arange(rows))


def model(rows: HeldOutRows, shift: float, seed: int = 0) -> Scores:
    """A model that separates the classes by so many deviations; all have the same noise."""
    return probabilities("binary", np.random.default_rng(seed).normal(size=len(rows)) + shift * rows.labels)


def numbers(rows: int = 60) -> HeldOutRows:
    """Blood pressures."""
    targets = np.random.default_rng(1).normal(130, 15, size=rows)
    return HeldOutRows(task="regression", targets=targets, classes=(), unit="mmHg")


def gained(rows: HeldOutRows, models: dict[str, Scores], baselines: Baselines) -> Gain:
    """What joining brought, by few resamples."""
    return gain_of(rows, compare(rows, models, 0, 300), baselines)


def _gain_between(rows: HeldOutRows, federated: Scores, siloed: Scores, **others: Scores) -> Gain:
    return gained(rows, {FEDERATED: federated, SILOED: siloed, PLACEBO: siloed} | others, Baselines())


@pytest.mark.parametrize(
    ("federated", "siloed", "verdict", "opening"),
    [
        (2.0, 1.0, "gained", "This site gained from joining. "),
        (1.0, 2.0, "lost", "Joining made the predictions at this site worse. "),
        (1.0, 1.001, "no clear difference", "The two models do not differ clearly. "),
        (1.0, 1.0, "no clear difference", "The two models do not differ clearly. "),
    ],
)
def test_a_verdict_needs_an_interval_without_zero(federated: float, siloed: float, verdict: str, opening: str) -> None:
    """Gained, lost, or neither; the sentence begins with it."""
    rows = _two_classes()

    gain = _gain_between(rows, model(rows, federated), model(rows, siloed))

    assert gain.verdict == verdict
    assert gain.sentence.startswith(opening)
    assert gain.warnings == ()


@pytest.mark.parametrize(
    ("local", "placebo", "verdict"),
    [
        (0.5, 0.5, "gained"), (0.5, 2.0, "better, cause not shown"), (0.5, 3.5, "better, cause not shown"),
        (0.5, None, "better, cause not shown"), (2.0, 0.5, "no clear difference"), (3.5, 0.5, "lost"),
    ],
)  # fmt: skip
@for_each("seed", range(5))
def test_gained_needs_the_best_local_model_and_the_placebo(
    seed: int, local: float, placebo: float | None, verdict: str
) -> None:
    """Both differences must exclude zero to be called a gain, however bad the network alone is."""
    rows = _two_classes()
    models = {
        FEDERATED: model(rows, 2.0, seed),
        SILOED: model(rows, 0.1, seed),
        "random_forest": model(rows, local, seed),
    }
    models |= {} if placebo is None else {PLACEBO: model(rows, placebo, seed)}

    gain = gained(rows, models, Baselines(best_local="random_forest"))

    assert gain.verdict == verdict
    assert ("This site gained from joining" in gain.sentence) == (verdict == "gained")
    assert "The best local model (random forest, chosen on the training rows) ranks" in gain.sentence
    assert all(len(one.split()) <= 25 for one in gain.sentence.replace(" (", ". (").split(". "))
    assert gain.difference is not None
    assert gain.to_json()["best_local_value"] == gain.difference.second
    assert ("no placebo" in gain.sentence) == (placebo is None)


def test_a_recipe_without_the_others_is_its_own_placebo() -> None:
    """For federated-prior the same join without the others' score stands where copies of the site would stand."""
    rows = _two_classes()
    models = {FEDERATED: model(rows, 2.0), SILOED: model(rows, 2.0, seed=7), "random_forest": model(rows, 0.5)}
    baselines = Baselines(best_local="random_forest", placebo=SILOED)

    close = gained(rows, models, baselines)
    apart = gained(rows, models | {SILOED: model(rows, 0.5)}, baselines)

    assert (close.verdict, apart.verdict) == ("better, cause not shown", "gained")
    assert (
        "The placebo is the model trained alone (siloed): the same recipe without the other hospitals."
        in apart.sentence
    )
    assert "Compared with placebo, the other hospitals made the model better" in apart.sentence


def test_a_simple_model_that_is_clearly_better_is_said() -> None:
    """By its usual name; one that is not clearly better is not mentioned, and neither is the guess."""
    rows = _two_classes()

    gain = _gain_between(
        rows,
        model(rows, 1.0),
        model(rows, 0.9),
        logistic_regression=model(rows, 2.0),
        random_forest=model(rows, 1.0),
        majority_guess=model(rows, 3.0),
    )

    assert len(gain.warnings) == 1
    assert gain.warnings[0].startswith("A model of logistic regression on this site's own rows is clearly better")
