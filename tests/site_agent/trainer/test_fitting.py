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
        "method": {"name": "fedavg"}, "architecture": {"name": "dense", "hidden": [4], "activation": "relu"},
        "columns": list(COLUMNS), "outputs": CLASSES,
        "schedule": {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 2},
        "optimiser": {"name": "sgd", "learning_rate": 0.1}, "weighting": {"name": "equal"},
        "masking": {"required": True},
    }  # fmt: skip
    return experiment_plan(SITES, 0, **keys | changes)


PARTLY = plan(columns=[{"name": "dose", "recorded_by": list(OTHERS)} if name == "dose" else name for name in COLUMNS])
LACKING = {"column dose": table(columns=("age",)), "output 2": table(seen=(0, 1))}


def test_a_table_that_is_as_the_plan_says_fits() -> None:
    """The site that the plan leaves out lacks the column, the others have it."""
    check_fit(PARTLY, LACKING["column dose"], "ahus")
    for site in OTHERS:
        check_fit(PARTLY, table(), site)


@pytest.mark.parametrize(
    ("told", "what", "rows", "site"),
    [
        (plan(), "column dose", LACKING["column dose"], "ahus"),
        (PARTLY, "column dose", LACKING["column dose"], "berlin"),
        (PARTLY, "column dose", table(), "ahus"),
        (plan(), "output 2", LACKING["output 2"], "ahus"),
    ],
)
def test_a_site_whose_table_differs_from_the_plan_does_not_train(
    told: Plan, what: str, rows: Dataset, site: str
) -> None:
    """Its sum would be about fewer or other sites than all count on; the message names the column or the class."""
    with pytest.raises(ConfigurationError, match=f"the table of {site} correctly: {what}") as refused:
        check_fit(told, rows, site)
    assert "Training did not start and nothing was sent" in refused.value.consequence


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
