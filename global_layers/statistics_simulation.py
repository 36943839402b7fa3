"""Computes the results of a statistics plan over data frames, with the numbers that hospitals would get."""

from __future__ import annotations

import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final
from unicodedata import normalize

import numpy as np
import pandas as pd

from global_layers.frames import CORRECT
from global_layers.one_process import plan_among, run_rounds
from protos.plan.analyses import Float64, Frame
from protos.plan.concepts import Concept, NumberConcept
from protos.plan.documents import did_you_mean
from protos.plan.prior_sums import FEWEST_ROWS
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.analyses_in_words import reversed_events
from site_agent.desk.examination.examined_columns import IDENTIFIER
from site_agent.hospital import Policy
from site_agent.trainer.answered_values import numbers_of
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.table_sources import shortest
from site_agent.trainer.statistics.concept_frame import doubts_of, times_of
from site_agent.trainer.statistics.statistics_study import StatisticsStudy

_TRUTHS: Final = {False: ("false", "no", "0"), True: ("true", "yes", "1")}


def simulate(
    plan: StatisticsPlan | Mapping[str, Any], sites: Mapping[str, pd.DataFrame], patient: str | None = None
) -> list[dict[str, Any]]:
    """Return what each analysis of the plan prints, or the reason under the key `refused`.

    Args:
        plan: a plan, or its keys `concepts`, `analyses`, `smallest_cell` and others without study, version and sites.
        sites: by the names in the plan a frame whose columns have the names of concepts: numbers in the concept's unit,
            and codes as texts, numbers or truth values. A frame lacks just the concepts that `recorded_by` denies it.
        patient: the column that identifies patients; None if each row is one.

    Raise OperatorError with all mistakes of plan and frames. Warn of what people would ask, or a policy refuse.
    """
    frames = [*sites.values()] if isinstance(sites, Mapping) else [None]
    if not isinstance(plan, StatisticsPlan | Mapping) or not all(isinstance(one, pd.DataFrame) for one in frames):
        refuse(["simulate needs the keys of a plan, and a dictionary of frames by the names of hospitals"], CORRECT)
    made = plan if isinstance(plan, StatisticsPlan) else plan_among(sites, {"kind": "statistics", **plan})
    if not isinstance(made, StatisticsPlan) or set(sites) != set(made.site_names):
        refuse([f"the plan is of kind: {made.kind}, with the hospitals {', '.join(made.site_names)}"], CORRECT)
    studies, wrong, doubts = {}, list[str](), [*reversed_events(made)]
    if made.privacy is None and made.smallest_cell < (usual := Policy.model_fields["smallest_cell"].default):
        doubts.append(f"Hospitals refuse a smallest_cell below {usual}, unless they set policy.smallest_cell.")
    for name, table in sites.items():
        recorded = [one for one in made.concepts if name in (one.recorded_by or made.site_names)]
        columns = {one.name: _values(one, table, times_of(made)) for one in recorded}
        own = pd.Series(range(len(table))) if patient is None else table.get(patient, pd.Series([None]))
        owners = pd.factorize(own)[0].astype(np.int64)
        told = [] if (owners >= 0).all() else [f"the column {patient} is absent, or has rows without a patient"]
        wrong += [f"{name}: {one}" for one in (*columns.values(), *told) if isinstance(one, str)]
        if not wrong:
            numbers = [one for one in recorded if isinstance(one, NumberConcept)]
            used = ChainMap(*(numbers_of(one.name, columns[one.name], one.low, one.high) for one in numbers))
            columns |= {one.name: used[f"{one.name}, mapped"].values for one in numbers}
            times = {one: columns[one] for one in sorted(times_of(made) & {*columns})}
            frame = Frame(columns=columns, patients=owners, smallest_cell=made.smallest_cell)
            doubts += [f"{name}: {words}" for words in (*doubts_of(made, used, frame), *_asked(times, table, patient))]
            studies[name] = StatisticsStudy(made, frame, site=name, secret=b"simulated")
    if wrong:
        refuse(wrong, CORRECT)
    found = run_rounds(made, studies).run.analyses()
    doubts += [f"{name}: {words}" for name, study in studies.items() for words in study.other_units()]
    if doubts:
        warnings.warn("\n".join(doubts), stacklevel=2)
    for one in found:
        if "refused" in one:  # here nobody's rows are secret
            reasons = ((name, study.reasons.get(one["name"], one["refused"])) for name, study in studies.items())
            causes = " ".join(f"{name}: {why}" for name, why in reasons if why != one["refused"])
            one["refused"] = causes or one["refused"]
    return found


def _asked(times: Mapping[str, Float64], table: pd.DataFrame, patient: str | None) -> Iterator[str]:
    for time, values in times.items():
        if zeros := np.count_nonzero(values == 0.0):
            yield f"{zeros} of its times {time} are 0. A hospital refuses them, unless its contract has `zero: keep`."
    for name in table if patient is None else ():
        if IDENTIFIER.fullmatch(str(name)) and table[name].duplicated().any():
            yield f"rows with one {name} count as different patients, without patient={name!r}"


def _values(concept: Concept, table: pd.DataFrame, times: Set[str]) -> Any:
    """Return the values of a concept, float64 of shape (rows,), or why there are none, as one clause."""
    if [*table].count(concept.name) != 1:
        return f"not one column {concept.name}; {did_you_mean(concept.name, {*map(str, table)} - {concept.name})}"
    own = table[concept.name]
    if isinstance(own.dtype, pd.CategoricalDtype):
        own = own.astype(object).infer_objects()
    if str(own.dtype).lower().startswith(("float16", "float32")):
        own = pd.Series(shortest(own.to_numpy(np.float32, na_value=np.nan)))
    if isinstance(concept, NumberConcept):
        try:  # as objects, because pandas converts dates to nanoseconds
            numbers = own.astype(object).to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError, OverflowError):
            numbers = np.array([np.inf])
        if np.isinf(numbers).any():
            return f"the column {concept.name} has dates, words or inf: use a number in {concept.unit or 'its unit'}"
        if concept.name in times and (numbers < 0).any():
            return f"the column {concept.name} has times below 0"
        return numbers
    codes = {normalize("NFC", code): float(place) for place, code in enumerate(concept.codes)}
    if pd.api.types.infer_dtype(own) == "boolean":
        own = own.map({it: next((x for x in codes if x.lower() in words), str(it)) for it, words in _TRUTHS.items()})
    texts = own.map("{:.15g}".format if pd.api.types.is_numeric_dtype(own) else str, na_action="ignore")  # 1 is "1"
    places = texts.map(lambda text: codes.get(normalize("NFC", text), np.nan), na_action="ignore")
    counts = texts[places.isna() & own.notna()].value_counts()
    if len(counts):
        such = ", ".join(map(repr, counts.index[counts >= FEWEST_ROWS][:3]))  # rarer ones may be a patient's
        told = f"the column {concept.name} has values that are none of its codes {', '.join(concept.codes)}"
        return f"{told}, such as {such}" if such else told
    return places.to_numpy(np.float64)
