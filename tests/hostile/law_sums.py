"""What the sums of a plan are made of: for each site a function of a row, in exact integers modulo a prime. A function
is known by its values on a grid of made-up rows: each code, and each number missing, low, at some probes, or beyond its
range. The plan's own code computes these values for one row, without any rule about few rows. Updates of networks,
Newton sums and whatever else is no sum of terms are one random function for each way to compute it, as if a coordinator
could solve for it. A number that a site may not send is a random one, which only this sum has."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protos.numbers.newton_sums import OutOfBound
from protos.plan.analyses import (
    Analysis,
    AnnouncedPart,
    Arithmetic,
    Bools,
    CurveAnalysis,
    Frame,
    Unanswerable,
    complete_rows,
    concepts_used,
)
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import MOMENTS, PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from protos.statistics.arithmetics import arithmetic_of
from protos.wire.messages import Stage
from site_agent.trainer.prior.concept_columns import Float64, values_of
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics.concept_frame import concept_frame
from tests.hostile.law_histories import CODES, OTHER_UNIT, UNIT, House, Values

PRIME: Final = (1 << 20) - 3  # sums of products of two residues are exact in float64
_X = np.nan, 1.0, 7.0, 16.0, 20.0, 29.0, 36.0, 43.0, 51.0, 58.0, 1000.0
_Y = np.nan, 1.0, 4.0, 13.0, 23.0, 27.0, 38.0, 44.0, 52.0, 59.0, 1000.0
MISSING, LOW, PROBES, BEYOND = 0, 1, tuple(range(2, 10)), 10  # places of numbers; two are at one probe
POINTS: Final = tuple((x, y) for x, y in product(range(11), repeat=2) if x == y or {x, y} & {MISSING, BEYOND})
SHAPE: Final = (len(CODES), len(POINTS))
Integers = npt.NDArray[np.int64]
Answers = Mapping[str, Any]  # by site its study and what it sent first


@dataclass
class Sum:
    """One answered sum of the plan at a `place` in the history: by site what a row adds, int64 of the grid's shape.
    `voids` are the sites whose number is a random one."""

    place: int
    functions: dict[str, Integers] = field(default_factory=dict)
    voids: set[str] = field(default_factory=set)


@dataclass
class _Site:
    """What one site adds: to sums by name, and to a later sum by what was announced. `closed` are sums of nobody."""

    functions: dict[str, Integers] = field(default_factory=dict)
    voids: set[str] = field(default_factory=set)
    later: dict[str, Callable[[str], Integers]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)


def sums_of(
    plan: Plan, houses: Sequence[House], place: int, answers: Answers, later: Sequence[Mapping[str, str]]
) -> list[Sum]:
    """Return all first sums of a plan, and one of each later round.

    Args:
        answers: by site its study and what it sent first.
        later: for each sum of a later round what was announced to each site.
    """
    sites = {house.name: _OF[type(plan)](plan, house, answers) for house in houses}
    found: dict[tuple[str, int], Sum] = defaultdict(lambda: Sum(place))
    for name, site in sites.items():
        for key, function in site.functions.items():
            found[key, 0].functions[name] = function
        for key in site.voids:
            found[key, 0].voids.add(name)
        for key, function_of in site.later.items():
            for number, announced in enumerate(later, 1):
                found[key, number].functions[name] = function_of(announced[name])
    closed = set[str]().union(*(site.closed for site in sites.values()))
    return [one for (key, _), one in found.items() if key not in closed]


def _grid(unit: str) -> list[Values]:
    """Return the rows of the grid in a hospital's unit. Those of another unit become the same numbers."""
    scale = 2.0 if unit == OTHER_UNIT else 1.0
    return [(scale * _X[x], _Y[y], float(stage), float(ill)) for (stage, ill), (x, y) in product(CODES, POINTS)]


def _residues(values: Float64) -> Integers:
    """Return numbers of few decimals as exact residues."""
    each, places = np.unique(np.nan_to_num(values), return_inverse=True)
    return np.array([_residue(one) for one in each.tolist()], np.int64)[places.reshape(np.shape(values))]


@lru_cache(1 << 16)
def _residue(value: float) -> int:
    exact = Fraction(value).limit_denominator(10**7)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def _random(columns: Float64, weight: Any, *settings: str) -> Integers:
    """Return the values of a random function of the rows, float64 (rows, columns), on the grid; 0 if one is missing.
    `weight` is a number, or flags of the rows that take part."""
    key = blake2b(json.dumps(settings).encode(), digest_size=16).digest()
    digests = (blake2b(one.tobytes(), key=key, digest_size=8).digest() for one in np.round(columns, 6))
    found = np.array([int.from_bytes(one, "little") % PRIME for one in digests], np.int64)
    return (weight * found * ~np.isnan(columns).any(axis=1) % PRIME).reshape(SHAPE)


def _settings(concepts: Sequence[Any]) -> str:
    """How concepts are used, besides who records them and in which unit."""
    return json.dumps([one.model_dump(exclude={"recorded_by", "conversions"}) for one in concepts])


def _of_prior(plan: PriorPlan, house: House, answers: Answers) -> _Site:
    """Counts, moments and products of two columns, the outcome among them."""
    (study, sent), found, table = answers[house.name], _Site(), house.table_of(_grid(house.unit))
    values = values_of(study._recorded, table.features, table.rows, is_summed=True)
    columns = {"rows": np.ones(table.rows, np.int64), "ill": table.target.astype(np.int64)}
    for column, own in zip(plan.columns, values.T, strict=True):
        columns[column.name] = _residues(own)
        found.functions[f"count {column.name}"] = (~np.isnan(own)).astype(np.int64).reshape(SHAPE)
    for one, other in combinations_with_replacement(columns, 2):
        found.functions[f"{one} x {other}"] = (columns[one] * columns[other] % PRIME).reshape(SHAPE)
    for place in study._rare:
        name = plan.columns[place].name
        moments = f"count {name}", f"rows x {name}", f"{name} x {name}"
        found.closed |= {key for key in found.functions if name in key.split(" x ")} - {*moments}
        for number, key in enumerate(moments, len(MOMENTS) * place + 1):
            del found.functions[key]
            found.voids |= {key} if sent[number] else set()
    values[:, sorted(study._rare.union(*(one._rare for one, _ in answers.values() if _refuses_claims(one))))] = np.nan
    rows = np.column_stack([np.nan_to_num(values, nan=-1.0), table.target])
    found.later["newton"] = partial(_random, rows, 1, _settings(plan.concepts))
    return found


def _refuses_claims(study: PriorStudy) -> bool:
    """Whether a site sends a void if its void columns are announced as those that take part."""
    claimed: Any = SimpleNamespace(rows=1, patients=1 << 40, is_used=np.ones(len(study._recorded), np.bool_))
    try:
        study._check_own(SimpleNamespace(standard=claimed), (claimed,))  # type: ignore[arg-type]
    except OutOfBound:
        return True
    return False


def _of_statistics(plan: StatisticsPlan, house: House, answers: Answers) -> _Site:
    """What an analysis adds up, but for what its own program made void; in later rounds a function of complete rows."""
    (study, sent), found, start, members = answers[house.name], _Site(), 0, np.zeros(1)
    frame = concept_frame(plan, house.table_of(_grid(house.unit)), house.name, 1)
    kept = complete_rows(plan.analyses, frame)
    for at, (analysis, arithmetic) in enumerate(zip(plan.analyses, plan.arithmetics, strict=True)):
        name, numbers = analysis.name, arithmetic.first
        integers, start = sent[start : start + 1 + len(numbers)], start + 1 + len(numbers)
        if not any(house.name in plan.recorders(used) for used in concepts_used(analysis)):
            continue
        try:
            values = _once(arithmetic, study._frame)
        except Unanswerable:
            values = np.full(len(numbers) + len(arithmetic.last), np.nan)
            found.closed.add(name)
        if isinstance(analysis, CurveAnalysis):
            numbers += arithmetic.last
            integers = (*integers, *study._void(Asked(round=1, stage=Stage.GUARD), at, arithmetic.last))
        alone = _alone(plan, analysis, frame, kept)
        used = sorted({one for names in concepts_used(analysis) for one in names} & {*frame.columns})
        for place, number in enumerate(numbers):
            key = f"{name} {place}"
            if number.name.startswith("sites"):
                continue  # not defended: how many hospitals have a void
            if np.isnan(values[place]):
                found.voids |= {key, f"{key} times"} if integers[1 + place] else set()
            elif number.name.startswith("log-rank"):
                found.functions[key] = _random(np.column_stack([frame.columns[one] for one in used]), kept, key)
            elif isinstance(analysis, CurveAnalysis) and number.name.startswith(("events", "censored")):
                members = members + alone[:, place]  # not defended: intervals show each time roughly
            elif isinstance(analysis, CurveAnalysis) and number.name.startswith("followed"):
                found.functions[key] = _residues(members + alone[:, place]).reshape(SHAPE)
                times, members = frame.columns[analysis.curve.time][:, None], np.zeros(1)
                found.functions[f"{key} times"] = found.functions[key] * _random(times, 1, key) % PRIME
            else:
                found.functions[key] = _residues(alone[:, place]).reshape(SHAPE)
        if arithmetic.newton:
            rows, how = np.column_stack([frame.columns[one] for one in used]), analysis.model_dump_json()
            settings = _settings([one for one in plan.concepts if one.name in used])
            found.later[name] = partial(_random, rows, kept, how, settings)
    return found


def _once(arithmetic: Arithmetic, frame: Frame) -> Float64:
    """Return the numbers of the first round, and those of a curve, as if all hospitals were followed to its end."""
    if arithmetic.newton:
        return arithmetic.first_values(frame)
    told = np.array([0.0 if "few" in number.name else 1e9 for number in arithmetic.first])
    return np.append(arithmetic.first_values(frame), arithmetic.last_values(frame, AnnouncedPart(first=told)))


def _alone(plan: StatisticsPlan, analysis: Analysis, frame: Frame, kept: Bools) -> Float64:
    """Return what each row of a frame adds, float64 (rows, numbers), if it is one of the `kept` ones."""
    used = sorted({one for names in concepts_used(analysis) for one in names} & {*frame.columns})
    rows = np.column_stack([kept, *(np.nan_to_num(frame.columns[one], nan=-1.0) * kept for one in used)])
    key = analysis.model_dump_json(), _settings(plan.concepts), *used, rows.tobytes()
    if key not in _KNOWN:
        size = replace(plan._size(analysis), smallest_cell=1, smallest_part=1)
        arithmetic, found = arithmetic_of(analysis, plan.concepts, size), []
        _, firsts, places = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        for at in (slice(first, first + 1) for first in firsts.tolist()):
            own = {name: column[at] for name, column in frame.columns.items()}
            steps = dict.fromkeys(own, (0.0, 0.0))
            single = Frame(columns=own, patients=np.zeros(1, np.int64), smallest_cell=1, steps=steps).only(kept[at])
            found.append(_once(arithmetic, single))
        if len(_KNOWN) > 200:
            _KNOWN.clear()
        _KNOWN[key] = np.array(found)[places.reshape(-1)]
    return _KNOWN[key]


_KNOWN: Final[dict[object, Float64]] = {}


def _of_network(plan: NetworkPlan, house: House, _: object) -> _Site:
    """A weighted sum of updates: gradients, all rows in one batch. The weight is that of the site's first rows, so new
    rows change no earlier ones."""
    content, found, rule = json.loads(plan.canonical), _Site(), plan.weighting
    for key in ("study", "version", "question", "timing", "sites", "weighting", "assumed_colluders", "columns"):
        content.pop(key, None)
    how = json.dumps([content, [column.name for column in plan.listed_columns]])
    weight = rule.counted(house.counted) if isinstance(rule, RowWeights) else 1
    rows = np.nan_to_num(np.array(_grid(UNIT)), nan=-1.0)
    found.functions["update"] = _random(rows, weight, how)
    found.later["update"] = partial(_random, rows, weight, how)
    for column in plan.recorded_columns:
        if house.name in (column.recorded_by or ()):
            found.functions[f"of {column.name}"] = _random(rows, weight, how, column.name)
    return found


_OF: Final[Mapping[type[Plan], Any]] = {
    PriorPlan: _of_prior, StatisticsPlan: _of_statistics, NetworkPlan: _of_network,
}  # fmt: skip
