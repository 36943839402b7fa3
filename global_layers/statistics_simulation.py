"""Computes the results of a statistics plan over data frames, with the numbers that hospitals would get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from global_layers.one_process import plan_among, run_rounds
from protos.plan.analyses import Frame
from protos.plan.concepts import Concept, NumberConcept
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.trainer.data.table_sources import shortest
from site_agent.trainer.statistics.concept_frame import times_of
from site_agent.trainer.statistics.statistics_study import StatisticsStudy


def simulate(
    plan: StatisticsPlan | Mapping[str, Any], sites: Mapping[str, pd.DataFrame], patient: str | None = None
) -> list[dict[str, Any]]:
    """Return what each analysis of the plan prints, or the reason under the key `refused`.

    Args:
        plan: a plan, or its keys `concepts`, `analyses`, `smallest_cell` and others without study, version and sites.
        sites: by the names in the plan a frame whose columns have the names of concepts: numbers in the concept's unit,
            and codes as texts or numbers. A frame lacks exactly the concepts that `recorded_by` does not give it.
        patient: the column that identifies patients; None if each row is one.

    Raises:
        ValueError: the sites are not those of the plan, or a column is absent or has other values.
    """
    if not isinstance(plan, StatisticsPlan):
        made = plan_among(sites, **{"kind": "statistics", **plan})
        assert isinstance(made, StatisticsPlan)
        plan = made
    if set(sites) != set(plan.site_names):
        raise ValueError(f"the plan has the sites {', '.join(plan.site_names)}")
    studies = {}
    for name, table in sites.items():
        owners = np.arange(len(table)) if patient is None else pd.factorize(table[patient])[0]
        if (owners < 0).any():
            raise ValueError(f"the column {patient} of {name} has rows without a patient")
        recorded = (one for one in plan.concepts if name in (one.recorded_by or plan.site_names))
        columns = {one.name: _values(one, table, name) for one in recorded}
        if any((table[time] < 0).any() for time in times_of(plan) & {*columns}):
            raise ValueError(f"the frame of {name} has times below 0")
        frame = Frame(columns=columns, patients=owners.astype(np.int64), smallest_cell=plan.smallest_cell)
        studies[name] = StatisticsStudy(plan, frame, site=name, secret=b"simulated")
    found = run_rounds(plan, studies).run.analyses()
    for one in found:
        if "refused" in one:  # here nobody's rows are secret
            reasons = (f"{name}: {study.reasons[one['name']]}" for name, study in studies.items() if study.reasons)
            one["refused"] = " ".join([one["refused"], *reasons])
    return found


def _values(concept: Concept, table: pd.DataFrame, site: str) -> Any:  # Any: float64 of shape (rows,)
    if concept.name not in table:
        raise ValueError(f"the frame of {site} has no column {concept.name}")
    own = table[concept.name]
    if isinstance(own.dtype, pd.CategoricalDtype):
        own = own.astype(object).infer_objects()
    if str(own.dtype).lower().startswith(("float16", "float32")):
        own = pd.Series(shortest(own.to_numpy(np.float32, na_value=np.nan)))
    if isinstance(concept, NumberConcept):
        try:  # as objects, because pandas converts dates to nanoseconds
            numbers = own.astype(object).to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            told = f"dates, durations or words: use a number in {concept.unit or 'its unit'}"
            raise ValueError(f"the column {concept.name} of {site} has {told}") from None
        return numbers.clip(concept.low, concept.high)
    if pd.api.types.is_numeric_dtype(own):
        own = own.map("{:.15g}".format, na_action="ignore")  # 1 is the code 1
    places = own.map({code: float(place) for place, code in enumerate(concept.codes)})
    if (places.isna() & own.notna()).any():
        raise ValueError(f"the column {concept.name} of {site} has values that are no codes of the concept")
    return places.to_numpy(np.float64)
