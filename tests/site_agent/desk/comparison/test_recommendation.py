"""The recommended model is the simplest one that may be the best, by the validation rows alone."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.recommendation import MODEL_TITLES, recommend
from site_agent.desk.comparison.scored_rows import ScoredRows
from site_agent.trainer.probabilities import probabilities
from tests.for_each import for_each

LINE, FOREST, BOOSTING = "logistic_regression", "random_forest", "gradient_boosting"
ALONE, JOINED = "siloed", "federated"


def rows_with(seed: int, shifts: dict[str, float], *, count: int = 300, is_number: bool = False) -> ScoredRows:
    """A site whose models know so much of the outcome of its validation rows; the test rows say the opposite."""
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=count)
    noise = generator.normal(size=(len(shifts), count))
    if is_number:
        rows = HeldOutRows(task="regression", targets=hidden, classes=())
        said: dict[str, Scores] = {
            name: hidden + one / shift for (name, shift), one in zip(shifts.items(), noise, strict=True)
        }
        turned = replace(rows, targets=-hidden)
    else:
        labels = (generator.random(count) < probabilities("binary", 2.0 * hidden)).astype(np.int64)
        rows = HeldOutRows(task="binary", targets=labels, classes=("no", "yes"))
        said = {
            name: probabilities("binary", shift * 2.0 * hidden + 0.2 * one)
            for (name, shift), one in zip(shifts.items(), noise, strict=True)
        }
        turned = replace(rows, targets=1 - labels)
    return ScoredRows(test=turned, scores=said, validation=rows, validation_scores=said, dataset="d")


@pytest.mark.parametrize("is_number", [False, True])
@for_each("seed", range(8))
def test_the_federated_model_is_recommended_where_it_is_clearly_the_best(seed: int, is_number: bool) -> None:
    """Simplicity is no reason to use a model that is clearly worse."""
    kept = rows_with(seed, {LINE: 0.1, FOREST: 0.1, ALONE: 0.1, JOINED: 1.0}, is_number=is_number)

    found = recommend(kept, seed)

    assert found is not None
    assert found["model"] == JOINED
    assert found["metric"] == ("rmse" if is_number else "log_loss")
    assert "clearly lower than that of every other model" in str(found["sentence"])


@for_each("seed", range(8))
def test_within_chance_the_simplest_local_model_is_recommended(seed: int) -> None:
    """Of models of one quality it is the linear one, without it the next simplest; the sentence says why."""
    whole = rows_with(seed, dict.fromkeys((JOINED, ALONE, FOREST, LINE), 1.0), count=60)
    said = whole.validation_scores
    without = replace(whole, validation_scores={name: said[name] for name in (JOINED, ALONE)})

    first, second = recommend(whole, seed), recommend(without, seed)

    assert first is not None
    assert second is not None
    losses = cast(dict[str, float], first["losses"])
    assert first["model"] == LINE
    assert second["model"] == ALONE
    word = "is the lowest" if min(losses, key=losses.__getitem__) == LINE else "does not differ clearly from the lowest"
    assert word in str(first["sentence"])


@for_each("seed", range(8))
def test_test_rows_have_no_say(seed: int) -> None:
    """Whatever they hold, and whatever the models say of them, the recommendation is the same."""
    kept = rows_with(seed, {LINE: 0.7, FOREST: 1.0, JOINED: 1.2})
    other = replace(kept, test=kept.validation, scores={name: scores[::-1] for name, scores in kept.scores.items()})

    assert recommend(kept, seed) == recommend(other, seed)


def test_only_what_can_be_adopted_is_recommended() -> None:
    """Neither the placebo nor the guess nor a baseline, however good; a model without finite scores is left out."""
    kept = rows_with(0, {LINE: 0.2, JOINED: 0.2, "placebo": 1.0, "majority_guess": 1.0})
    failed = {**kept.validation_scores, LINE: np.full(len(kept.validation), np.nan)}

    found = recommend(kept, 0)
    alone = recommend(replace(kept, validation_scores=failed), 0)

    assert found is not None
    assert alone is not None
    assert cast(dict[str, float], found["losses"]).keys() == {LINE, JOINED} <= MODEL_TITLES.keys()
    assert alone["sentence"] == (
        "Recommended: the federated model. This model is the only model of the run that can be adopted."
    )
    assert recommend(replace(kept, validation_scores={}), 0) is None


def nine_rows(losses: dict[str, list[float]]) -> ScoredRows:
    """Nine validation rows, two without the outcome, and each model's log loss of each row."""
    labels = np.array([1, 1, 1, 0, 1, 1, 0, 1, 1])
    rows = HeldOutRows(task="binary", targets=labels, classes=("no", "yes"))
    of_truth = {name: np.exp(-np.array(one)) for name, one in losses.items()}
    said: dict[str, Scores] = {name: np.where(labels == 1, one, 1.0 - one) for name, one in of_truth.items()}
    return ScoredRows(test=rows, scores=said, validation=rows, validation_scores=said, dataset="d")


@pytest.mark.parametrize("has_steady_models", [True, False])
@for_each("seed", range(8))
def test_a_model_is_not_recommended_because_its_losses_are_noisy(seed: int, has_steady_models: bool) -> None:
    """One terrible row makes a model's interval wide, so it is not clearly worse; it is still the worst model."""
    steady = {LINE: [0.42] * 9, FOREST: [0.41] * 9} if has_steady_models else {}
    kept = nine_rows({**steady, BOOSTING: [0.01] * 4 + [8.0] + [0.01] * 4, JOINED: [0.3, 0.34, 0.32] * 3})

    found = recommend(kept, seed)

    assert found is not None
    assert found["model"] == JOINED
    assert "clearly lower than that of every other model" not in str(found["sentence"])


@for_each("seed", range(8))
def test_no_model_is_recommended_that_is_worse_than_a_clearly_worse_one(seed: int) -> None:
    """The best model's losses vary, so its standard error is wide; the line is steadily worse, the forest noisily."""
    best = [0.05, 0.6] * 4 + [0.3]
    line, forest = [one + 0.05 for one in best], [*best[:4], best[4] + 0.7, *best[5:]]

    apart = recommend(nine_rows({FOREST: forest, JOINED: best}), seed)
    together = recommend(nine_rows({LINE: line, FOREST: forest, JOINED: best}), seed)

    assert apart is not None
    assert together is not None
    assert (apart["model"], together["model"]) == (FOREST, JOINED)


def test_few_validation_rows_are_named() -> None:
    """With 30 rows or more the sentence has no such remark."""
    few, many = (recommend(rows_with(0, dict.fromkeys((JOINED, LINE), 1.0), count=n), 0) for n in (29, 30))

    assert few is not None
    assert many is not None
    assert "These are too few rows for a reliable choice (fewer than 30)." in str(few["sentence"])
    assert "too few" not in str(many["sentence"])
