"""Whatever rows hospitals have, a plan ends with finite numbers or a sentence, the same at every program."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from host.statistics_page import statistics_page
from tests.for_each import for_each
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan, studies_of

ANALYSES: list[dict[str, Any]] = [
    {"name": "one", "table_one": {"columns": ["age", "stage", "lactate"], "by": "sex", "bins": 20}},
    {"name": "cox", "cox": {"time": "days", "event": "died", "terms": ["age", "sex"]}},
    {"name": "penalised", "cox": {"time": "days", "event": "died", "terms": ["lactate"], "ridge": 2.0}},
    {"name": "curve", "curve": {"time": "days", "event": "died", "by": "stage", "grid": 100.0, "to": 900.0}},
    {"name": "logistic", "regression": {"family": "binomial", "outcome": "died", "terms": ["age", "lactate"]}},
]


def _spoilt(table: pd.DataFrame, how: int) -> pd.DataFrame:
    died = table["died"] == "yes"
    changes: tuple[dict[str, Any], ...] = (
        {"died": "no"}, {"days": 300.0}, {"sex": "male", "lactate": table["age"] / 5},
        {"sex": np.where(died, "male", "female"), "lactate": np.where(died, 20.0, 1.0)},
        {"died": table["died"].where(table["site"] > 0, "no")}, {},
    )  # fmt: skip
    return table.assign(**changes[how])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@for_each("seed", range(6))
def test_any_rows_give_numbers_or_sentences(seed: int) -> None:
    """Few rows, no event, one time, separation, collinear columns: nothing is infinite, and no program stops."""
    generator = np.random.default_rng(seed)
    rows = generator.choice([0, 1, 4, 12, 40, 150], 4)
    plan = statistics_plan(*ANALYSES, fewest_sites=3, smallest_cell=int(generator.choice([1, 5])), newton_rounds=8)
    frames = frames_of(plan, _spoilt(patients(seed, (*rows[:3], rows[3] + 1)), seed % 6))

    found = results_of(plan, frames)
    own = next(iter(studies_of(plan, frames).values())).own()

    json.dumps([found, own], allow_nan=False)
    head = {"study": "any", "version": 1, "plan_digest": "", "run": "any-1", "sites": ["one"], "analyses": found}
    page = statistics_page(head, own)
    assert all(f">{one['name']}</h2>" in page for one in found)
