"""A trainer compares its own table with a masked plan's keys about columns and classes that only some sites have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from benchmarks.experiments.plans import experiment_plan
from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.fitting import check_fit

SITES = ("ahus", "berlin", "cluj", "dijon")
OTHERS = SITES[1:]
COLUMNS = ("age", "dose")
CLASSES = 3


def examples(columns: int, seen: Collection[int]) -> Examples:
    """Twelve rows of these classes."""
    targets = np.resize(np.array(sorted(seen), np.int64), 12)
    return Examples(features=np.ones((12, columns), np.float32), targets=targets)


def table(*, columns: tuple[str, ...] = COLUMNS, seen: Collection[int] = range(CLASSES)) -> Dataset:
    """A site's table with three classes; its validation and test rows have all of them."""
    whole = examples(len(columns), range(CLASSES))
    names = tuple(str(number) for number in range(CLASSES))
    return Dataset(
        training=examples(len(columns), seen), validation=whole, test=whole, columns=columns, task="multi-class",
        classes=names,
    )  # fmt: skip


def plan(**changes: Any) -> Plan:
    """A masked plan of four sites that share the whole network."""
    keys: dict[str, Any] = {
        "method": {"name": "fedavg"},
        "architecture": {"name": "dense", "hidden": [4], "activation": "relu"},
        "columns": list(COLUMNS),
        "outputs": CLASSES,
        "schedule": {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 2},
        "optimiser": {"name": "sgd", "learning_rate": 0.1},
        "weighting": {"name": "equal"},
        "masking": {"required": True},
    }
    return experiment_plan(SITES, 0, **keys | changes)


PARTLY = {
    "column dose": {
        "columns": [{"name": "dose", "recorded_by": list(OTHERS)} if name == "dose" else name for name in COLUMNS]
    },
    "output 2": {"outputs": {"count": CLASSES, "partly_observed": [{"output": 2, "recorded_by": list(OTHERS)}]}},
}
LACKING = {"column dose": table(columns=("age",)), "output 2": table(seen=(0, 1))}


@pytest.mark.parametrize("what", PARTLY)
def test_a_table_that_is_as_the_plan_says_fits(what: str) -> None:
    """The site that the plan leaves out lacks it, the others have it."""
    told = plan(**PARTLY[what])

    check_fit(told, LACKING[what], "ahus")
    for site in OTHERS:
        check_fit(told, table(), site)


@pytest.mark.parametrize("what", PARTLY)
def test_a_site_that_lacks_what_the_plan_takes_for_everybodys_does_not_train(what: str) -> None:
    """Its sum would be about fewer sites than all count on; the message names the column or the class."""
    for told, site in ((plan(), "ahus"), (plan(**PARTLY[what]), "berlin")):
        with pytest.raises(ConfigurationError, match=what) as refused:
            check_fit(told, LACKING[what], site)
        assert "Training did not start and nothing was sent" in refused.value.consequence


@pytest.mark.parametrize("what", PARTLY)
def test_a_site_that_has_what_the_plan_says_it_lacks_does_not_train(what: str) -> None:
    """It would contribute where the plan counts it out."""
    with pytest.raises(ConfigurationError, match=f"the table of ahus correctly: {what}"):
        check_fit(plan(**PARTLY[what]), table(), "ahus")


def test_validation_rows_do_not_make_a_class_observed() -> None:
    """Only training patients move a class's numbers towards it."""
    lacking = table(seen=(0, 1))

    assert 2 in lacking.validation.targets
    with pytest.raises(ConfigurationError, match="output 2"):
        check_fit(plan(), lacking, "ahus")


def test_a_site_that_only_evaluates_is_not_compared() -> None:
    """It sends no change, so nobody counts on it."""
    first, *others = plan().sites
    sites = (first.model_copy(update={"tier": "evaluation"}), *others)

    check_fit(plan().model_copy(update={"sites": sites}), LACKING["output 2"], first.name)
