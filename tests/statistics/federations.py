"""Statistics plans over made-up patients at several sites, run by the programs' own code in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from global_layers.one_process import run_rounds
from protos.plan.analyses import Frame
from protos.plan.concepts import NumberConcept
from protos.plan.plan import plan_from_json
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.protos.examples import listed

CONCEPTS: list[dict[str, Any]] = [
    {"kind": "number", "name": "age", "definition": "Age.", "low": 0.0, "high": 120.0, "unit": "years"},
    {"kind": "number", "name": "lactate", "definition": "Lactate.", "low": 0.0, "high": 30.0},
    {"kind": "codes", "name": "sex", "definition": "Sex.", "codes": ["female", "male"]},
    {"kind": "codes", "name": "stage", "definition": "Stage.", "codes": ["I", "II", "III"]},
    {"kind": "codes", "name": "died", "definition": "Death.", "codes": ["no", "yes"]},
    {"kind": "number", "name": "admissions", "definition": "Admissions.", "low": 0.0, "high": 60.0},
    {"kind": "number", "name": "days", "definition": "Days at risk.", "low": 0.0, "high": 2000.0, "unit": "days"},
    {"kind": "number", "name": "pressure", "definition": "Blood pressure.", "low": 50.0, "high": 250.0},
]


def patients(seed: int, rows: Sequence[int] = (90, 140, 60, 200)) -> pd.DataFrame:
    """Rows of several sites with effects of their columns; every column lacks some values but the outcomes."""
    generator, total = np.random.default_rng(seed), sum(rows)
    frame = pd.DataFrame(
        {
            "site": np.repeat(np.arange(len(rows)), rows),
            "age": generator.normal(60, 12, total).clip(18, 99),
            "lactate": generator.gamma(2.0, 1.2, total).clip(0.1, 29),
            "sex": generator.choice(["female", "male"], total),
            "stage": generator.choice(["I", "II", "III"], total, p=[0.5, 0.3, 0.2]),
            "days": generator.uniform(10, 1000, total),
        }
    )
    line = 0.04 * (frame.age - 60) + 0.3 * (frame.lactate - 2) + 0.6 * (frame.stage == "III") - 0.2 * frame.site
    frame["died"] = np.where(generator.random(total) < 1 / (1 + np.exp(0.8 - line)), "yes", "no")
    frame["admissions"] = generator.poisson(np.exp(0.3 * line + np.log(frame.days / 300))).clip(0, 60).astype(float)
    frame["pressure"] = (130 + 6 * line + generator.normal(0, 15, total)).clip(51, 249)
    for name in ("age", "lactate"):
        frame.loc[generator.random(total) < 0.05, name] = np.nan
    return frame


def statistics_plan(*analyses: dict[str, Any], sites: int = 4, **keys: Any) -> StatisticsPlan:
    """A plan of these analyses for sites that all record every concept."""
    content = {
        "kind": "statistics",
        "study": "statistics",
        "version": 1,
        "sites": listed(sites),
        "masking": {"required": False},
        "concepts": CONCEPTS,
        "analyses": list(analyses),
        "smallest_cell": 10,
        "rows_per_unknown": 1.0,
        **keys,
    }
    plan = plan_from_json(json.dumps(content))
    assert isinstance(plan, StatisticsPlan)
    return plan


def frames_of(plan: StatisticsPlan, table: pd.DataFrame, patients: str | None = None) -> dict[str, Frame]:
    """Each site's rows as concepts; sites are numbered."""
    found = {}
    for number, name in enumerate(plan.site_names):
        own, columns = table[table.site == number], {}
        for concept in plan.concepts:
            if concept.name not in own or (concept.recorded_by is not None and name not in concept.recorded_by):
                continue
            if isinstance(concept, NumberConcept):
                columns[concept.name] = own[concept.name].to_numpy(np.float64).clip(concept.low, concept.high)
            else:
                places = {code: float(place) for place, code in enumerate(concept.codes)}
                columns[concept.name] = own[concept.name].map(places).to_numpy(np.float64)
        owners = np.arange(len(own)) if patients is None else own[patients].to_numpy(np.int64)
        found[name] = Frame(columns=columns, patients=owners, smallest_cell=plan.smallest_cell)
    return found


def studies_of(plan: StatisticsPlan, frames: Mapping[str, Frame]) -> dict[str, StatisticsStudy]:
    """A study at each site."""
    return {name: StatisticsStudy(plan, frame, site=name, secret=name.encode()) for name, frame in frames.items()}


def results_of(plan: StatisticsPlan, frames: Mapping[str, Frame]) -> list[dict[str, Any]]:
    """What the coordinator prints, after it was checked that every site prints the same."""
    studies = studies_of(plan, frames)
    collection = run_rounds(plan, studies)
    found = collection.run.analyses()
    for study in studies.values():
        assert study.results() == found
    return found
