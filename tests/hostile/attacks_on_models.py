"""A coordinator or a researcher who reads one patient from models, curves and tables that everybody approved. The
coordinator announces sums that it made up, and so chooses the coefficients at which hospitals answer. The researcher
chooses columns, groups and analyses. The numbers are those of the hospitals' own trainers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from protos.plan.analyses import AnnouncedPart, Arithmetic, Frame, Unanswerable
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics import arithmetics, cox, design, group_curves, regression, table_one
from protos.statistics import model as model_sums
from protos.statistics.cox import WeightedRiskSets
from protos.statistics.design import Design
from protos.statistics.group_curves import CurveArithmetic
from protos.statistics.newton_walk import LikelihoodSums
from protos.statistics.regression import RegressionArithmetic
from protos.wire.messages import Stage
from site_agent.trainer.prior.site_sums import Concentrated, own_sums
from site_agent.trainer.prior.site_sums import Rows as PriorRows
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics import statistics_study
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.hostile.attack import Attack, Weakened, in_copy, patched
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan

OLDEST, FEW = 97.3, 3
MODEL = {"family": "binomial", "outcome": "died", "terms": ["age"], "intercept": "common"}
CURVE = {"time": "days", "event": "died", "by": "sex", "grid": 100.0, "to": 900.0}
AGES = {"name": "model", "regression": MODEL}
_WEIGH = np.full(99, 9.0)  # in the round that counts them, all sites have weight


def _patients() -> pd.DataFrame:
    """Four hospitals, one of which has the oldest patient, who is followed longest."""
    table = patients(1).dropna().reset_index(drop=True)
    table["age"] = table["age"].clip(40, 80)
    table.loc[0, ["age", "days", "died"]] = OLDEST, 1000.0, "no"
    return table


def _begun(table: pd.DataFrame, *analyses: dict[str, Any]) -> tuple[tuple[Arithmetic, ...], list[Frame]]:
    plan = statistics_plan(*analyses)
    return plan.arithmetics, list(frames_of(plan, table).values())


@contextmanager
def exact_moments() -> Iterator[None]:
    """Sums that scale a column are exact."""
    rough = {"rough_moments": lambda values: (values.sum(), values @ values)}
    with patched(design, **rough), patched(regression, **rough):
        yield


def _first(arithmetic: Arithmetic, frames: Sequence[Frame]) -> dict[str, float]:
    """The sums of the first round by name, and those of a curve; a void is not a number."""
    numbers, values = arithmetic.first, np.asarray(sum(arithmetic.first_values(frame) for frame in frames))
    if not arithmetic.newton and arithmetic.last:
        sums = AnnouncedPart(first=values)
        last = np.asarray(sum(arithmetic.last_values(frame, sums) for frame in frames))
        numbers, values = numbers + arithmetic.last, np.append(values, last)
    return dict(zip((one.name for one in numbers), values.tolist(), strict=True))


def _moved(arithmetic: Arithmetic, frames: Sequence[Frame], *scores: float, steps: int = 12) -> AnnouncedPart:
    """Honest first sums, then sums that move the coefficients in one direction as far as steps may."""
    first = np.asarray(sum(arithmetic.first_values(frame) for frame in frames))
    information = np.eye(len(scores))[np.triu_indices(len(scores))]
    return AnnouncedPart(first=first, newton=(_WEIGH, *(np.array([0.0, *scores, *information]),) * steps))


def _answer(weakened: bool, lenient: Weakened, model: Arithmetic, frame: Frame, sums: AnnouncedPart) -> Any:
    """What a hospital sends after these sums, or None if it sends a void."""
    with in_copy(weakened, lenient), suppress(Unanswerable):
        return model.newton_values(frame, sums)
    return None


def _without_a_least_weight() -> AbstractContextManager[None]:
    return patched(RegressionArithmetic, _fewest_rows=lambda *_: 1)


def regression_at_one_patient(weakened: bool) -> bool:
    """Move the coefficients until the oldest patient alone has a weight: the information is that patient's age."""
    (model,), frames = _begun(_patients(), AGES)
    assert isinstance(model, RegressionArithmetic)
    standard = model._standard(_moved(model, frames))
    mean, deviation = 120.0 * float(standard.means[0]), 120.0 * float(standard.deviations[0])
    sums = _moved(model, frames, 1e6, -1e6 * (OLDEST - mean) / deviation)
    values = _answer(weakened, _without_a_least_weight, model, frames[0], sums)
    return values is not None and abs(mean + deviation * float(values[-2] / values[-1]) - OLDEST) < 0.1


def cox_of_one_patient(weakened: bool) -> bool:
    """Fit a Cox model to columns that one patient of all hospitals has together: a first sum is that patient's age."""
    cox = {"time": "days", "event": "died", "terms": ["age"]}
    (model,), frames = _begun(_patients()[:1], {"name": "cox", "cox": cox})
    with in_copy(weakened, exact_moments), suppress(Unanswerable):
        cells = [replace(one, smallest_cell=1 if weakened else 10) for one in frames]
        return _is_oldest(_first(model, cells)["sum age"])
    return False


def _without_an_effective_number() -> AbstractContextManager[None]:
    made = WeightedRiskSets.__init__
    return patched(WeightedRiskSets, __init__=lambda self, sets, design, at, _: made(self, sets, design, at, 0))


def cox_at_one_patient(weakened: bool) -> bool:
    """Move the coefficient until every risk set is the oldest patient: the score is made of that patient's age."""
    (model,), frames = _begun(_patients(), {"name": "cox", "cox": {"time": "days", "event": "died", "terms": ["age"]}})
    sums = _moved(model, frames, 1e6, steps=8)
    values = _answer(weakened, _without_an_effective_number, model, frames[0], sums)
    return values is not None and float(values[2]) < 1e-3 * frames[0].rows


def firth_at_one_patient(weakened: bool) -> bool:
    """Announce an information whose inverse has one direction, in which one patient is far from all others."""
    table = _patients()
    table["lactate"] = np.where(table.index == 0, 29.0, 2.0 + 0.001 * table["age"])
    table.loc[table.groupby("site").head(20).index[1:], "lactate"] = 2.5
    keys = {"terms": ["lactate"], "firth": True}
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | keys})
    forged = np.array([0.0, 0.0, 0.0, 1e-6, 0.0, 1e6])
    fitted = RegressionArithmetic._fitted

    def without_a_rule_of_leverages() -> AbstractContextManager[None]:
        def lenient(self: Any, rows: Any, design: Any, at: Any, _: int, sums: Any) -> Any:
            return fitted(self, rows, design, at, 1, sums)

        return patched(RegressionArithmetic, _fitted=lenient)

    with _with_few():
        sums = replace(_moved(model, frames, steps=0), newton=(_WEIGH, forged))
        return _answer(weakened, without_a_rule_of_leverages, model, frames[0], sums) is not None


def _with_few() -> AbstractContextManager[None]:
    return patched(Design, few=lambda self, *_: [False] * len(self.columns))


def _summed(weakened: bool, table: pd.DataFrame, terms: Sequence[str], **keys: Any) -> dict[str, float]:
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | {"terms": terms} | keys})
    with in_copy(weakened, exact_moments), in_copy(weakened, _with_few):
        return _first(model, frames)


def product_with_a_rare_code(weakened: bool) -> bool:
    """Ask for the product of age and a code that one patient has: its sum is that patient's age."""
    table = _patients().replace({"stage": {"III": "I"}})
    table.loc[0, "stage"] = "III"
    return _is_oldest(_summed(weakened, table, ["age", "stage", "age:stage"])["sum age:stage=III"])


def value_beside_the_usual(weakened: bool) -> bool:
    """Ask for the product of a code and a number that is usual for it: the information shows the only other man's."""
    table = _patients()
    table.loc[table["sex"] == "male", "lactate"] = 15.0
    table.loc[0, ["sex", "lactate"]] = "male", 29.0
    keys = {"terms": ["lactate", "sex", "lactate:sex"], "family": "gaussian", "outcome": "pressure"}
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | keys | {"intercept": "site"}})
    with in_copy(weakened, lambda: patched(design, permutations=lambda _: [()])):
        sums = AnnouncedPart(first=np.array(list(_first(model, frames).values())))
        if not np.isfinite(sums.first).all():
            return False
        information = LikelihoodSums.unpacked(np.array(_newton(model, frames, sums.first)), 3).information
    moved = np.array([0.0, -15.0 / 30.0, 1.0]) * model._standard(sums).deviations  # 0 for all men but one
    return round(30.0 * float(moved @ information @ moved) ** 0.5) == 29 - 15


def cell_of_a_crossing(weakened: bool) -> bool:
    """Cross two codes, and subtract the columns of a product: one man has the reference stage."""
    table = _patients()
    table["stage"] = np.where(table["sex"] == "male", "II", "I")
    table.loc[0, ["sex", "stage"]] = "male", "I"
    terms = ["age", "sex", "stage", "age:sex", "age:stage", "sex:stage", "age:sex:stage"]
    found = _summed(weakened, table, terms)
    return _is_oldest(found["sum age:sex=male"] - found["sum age:sex=male:stage=II"])


def code_by_two_references(weakened: bool) -> bool:
    """Ask for the same model with two references: the void code is the total without the columns of the others."""
    table = _patients().replace({"stage": {"III": "I"}})
    table.loc[0, "stage"], terms = "III", ["age", "stage", "age:stage"]
    one, other = (_summed(weakened, table, terms, references={"stage": code}) for code in ("I", "II"))
    return _is_oldest(one["sum age"] - one["sum age:stage=II"] - other["sum age:stage=I"])


def square_of_an_extreme(weakened: bool) -> bool:
    """Ask for the square of a number that one patient has far above all others."""
    table = _patients().assign(lactate=lambda rows: 0.5 + rows["age"] / 1e3)
    table.loc[0, "lactate"] = 29.0
    found = _summed(weakened, table, ["lactate", "lactate:lactate"])["squares lactate:lactate"]
    return abs(30.0 * found**0.25 - 29.0) < 0.1


def window_between_knots(weakened: bool) -> bool:
    """Lay the knots of a spline around one patient's age: the curved columns of all others are straight lines there."""
    table = _patients().assign(age=lambda rows: np.where(rows["age"] < 60, 40.0, 90.0))
    table.loc[0, "age"] = 65.0
    found = _summed(weakened, table, ["age"], splines={"age": [64.0, 64.5, 65.5, 66.0]})
    return bool(np.isfinite(found["sum age'"]))


def few_that_are_denied(weakened: bool) -> bool:
    """Announce that no hospital has few patients of a code, with invented sums: a hospital with one patient answers."""
    table = _patients().replace({"stage": {"III": "I"}})
    table.loc[0, "stage"] = "III"
    keys = {"terms": ["stage"], "family": "gaussian", "outcome": "pressure"}
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | keys})
    first = np.array(list(_first(model, frames).values()))
    first[-11:] = [len(frames), 0.0, 20.0, 20.0] * 2 + [len(frames)] * 3
    return _answer(weakened, _with_few, model, frames[0], AnnouncedPart(first=first)) is not None


def pair_of_numbers(weakened: bool) -> bool:
    """Ask for two numbers that many patients have, but only one has both: the information has their product."""
    table = _patients().assign(age=50.0, lactate=2.0, sex="female")
    for _, rows in table.groupby("site"):
        table.loc[rows.index[:8], "age"], table.loc[rows.index[8:16], "lactate"] = 75.0, 9.0
    table.loc[0, ["age", "lactate"]] = OLDEST, 29.0
    with in_copy(weakened, lambda: patched(design, combinations=lambda *_: ())):
        (model,), frames = _begun(table, {"name": "model", "regression": MODEL | {"terms": ["age", "lactate"]}})
        first = np.asarray(sum(model.first_values(frame) for frame in frames))
        if not np.isfinite(first).all():
            return False
        sums = dict(zip((one.name for one in model.newton), _newton(model, frames, first), strict=True))
    means, deviations = (np.array(found) for found in _moments(model, first))
    usual = (np.array([50.0 / 120.0, 2.0 / 30.0]) - means) / deviations
    pair, ages, lactates, weights = (
        sums[name] for name in ("age x lactate", "age x intercept", "lactate x intercept", "intercept x intercept")
    )
    both = pair - usual[0] * lactates - usual[1] * ages + usual.prod() * weights  # of the one patient
    shown = both * len(table) / weights * deviations.prod()
    return bool(abs(shown - (OLDEST - 50.0) / 120.0 * 27.0 / 30.0) < 1e-6)


def product_and_number(weakened: bool) -> bool:
    """Ask for a product and a number: all patients but one have the usual value of one of both."""
    table = _patients().assign(age=50.0, died=lambda rows: np.where(rows.index % 2, "yes", "no"))
    table.loc[table["sex"] == "male", "lactate"] = 15.0
    for _, rows in table.groupby(["site", "sex"]):
        table.loc[rows.index[:9], "lactate"], table.loc[rows.index[9:18], "age"] = 9.0, 75.0
    table.loc[0, ["sex", "age", "lactate"]] = "male", OLDEST, 29.0
    terms = ["lactate", "sex", "lactate:sex", "age"]
    with in_copy(weakened, lambda: patched(design, combinations=lambda *_: ())):
        (model,), frames = _begun(table, {"name": "model", "regression": MODEL | {"terms": terms}})
        sums = AnnouncedPart(first=np.array(list(_first(model, frames).values())))
        if not np.isfinite(sums.first).all():
            return False
        information = LikelihoodSums.unpacked(np.array(_newton(model, frames, sums.first)), 5).information
    standard, beside = (
        model._standard(sums),
        np.array([[0.0, -0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, -50.0 / 120.0]]),
    )
    moved = np.column_stack([beside[:, :4] * standard.deviations, beside @ [*standard.means, 1.0]])
    shown = float(moved[0] @ information @ moved[1]) * len(table) / information[4, 4]
    return bool(abs(shown - (29.0 - 15.0) / 30.0 * (OLDEST - 50.0) / 120.0) < 1e-6)


def _newton(model: Arithmetic, frames: Sequence[Frame], first: Any) -> Any:
    sums = AnnouncedPart(first=first, newton=(_WEIGH,))
    return np.asarray(sum(model.newton_values(frame, sums) for frame in frames)).tolist()


def _moments(model: Arithmetic, first: Any) -> list[list[float]]:
    named = dict(zip((one.name for one in model.first), first.tolist(), strict=True))
    means = [named[f"sum {name}"] / named["rows"] for name in ("age", "lactate")]
    squares = [named[f"squares {name}"] / named["rows"] for name in ("age", "lactate")]
    return [means, [(square - mean**2) ** 0.5 for square, mean in zip(squares, means, strict=True)]]


def outcome_of_one_patient(weakened: bool) -> bool:
    """Ask for a number as outcome that is the same for all patients but one."""
    table = _patients().assign(pressure=120.0)
    table.loc[0, "pressure"] = 231.0
    keys = {"family": "gaussian", "outcome": "pressure"}
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | keys})
    lenient = partial(patched, Design, is_decided=lambda *_: False)
    with in_copy(weakened, exact_moments), in_copy(weakened, lenient), suppress(Unanswerable):
        outcomes = _first(model, frames)["sum of outcomes"]
        return abs(50.0 + 200.0 * (outcomes - (len(table) - 1) * 70.0 / 200.0) - 231.0) < 1e-6
    return False


def outcome_by_a_formula(weakened: bool) -> bool:
    """Ask for robust errors of an outcome that follows from the age but in one patient: its sums are of this row."""
    table = _patients().assign(pressure=lambda rows: 100.0 + rows["age"])
    table.loc[0, "pressure"] = 231.0
    keys = {"family": "gaussian", "outcome": "pressure", "terms": ["age", "sex"], "intercept": "site", "robust": True}
    (model,), frames = _begun(table, {"name": "model", "regression": MODEL | keys})
    first = np.array(list(_first(model, frames).values()))
    sums = AnnouncedPart(first=first, newton=(_WEIGH, np.array(_newton(model, frames, first))))
    with in_copy(weakened, lambda: patched(regression, is_of_one_patient=lambda *_: False)), suppress(Unanswerable):
        *_, one, both, other = sum(model.last_values(frame, sums) for frame in frames)
        return bool(both**2 > 0.9 * one * other)
    return False


def outcomes_of_almost_the_same_patients(weakened: bool) -> bool:
    """Ask for an outcome beside another, or beside groups, that differs in one patient: a difference is this row."""
    table = _patients().assign(sex=lambda rows: np.where(rows["died"] == "yes", "male", "female"))
    table.loc[0, "sex"] = "male"
    other = {"name": "other", "regression": MODEL | {"outcome": "sex"}}
    groups = {"name": "groups", "table_one": {"columns": ["age"], "by": "died"}}
    by_sex = {"name": "by sex", "table_one": {"columns": ["pressure"], "by": "sex"}}
    plans = statistics_plan(other, AGES), statistics_plan(other, groups), statistics_plan(by_sex, groups)
    return any(_answers_alike(weakened, plan, table) for plan in plans)


def codes_that_differ_within_a_code(weakened: bool) -> bool:
    """Ask for two codes that differ in one patient of stage III: counts with this stage are apart by that patient."""
    table = _patients()
    severe = table["stage"] == "III"
    table.loc[severe, "sex"] = np.where(table.loc[severe, "died"] == "yes", "male", "female")
    table.loc[table.index[severe][0], ["sex", "died"]] = "male", "no"
    keys = {"family": "gaussian", "outcome": "pressure", "terms": ["sex", "died", "stage"]}
    plan = statistics_plan({"name": "m", "regression": MODEL | keys})
    return _answers_alike(weakened, plan, table)


def _answers_alike(weakened: bool, plan: StatisticsPlan, table: pd.DataFrame) -> bool:
    """Whether the first hospital answers; the copy does not compare columns."""
    frame = next(iter(frames_of(plan, table).values()))
    with in_copy(weakened, lambda: patched(statistics_study, nearly_equal=lambda *_: frozenset())):
        study = StatisticsStudy(plan, frame, site=plan.site_names[0], secret=bytes(32))
        zeros = np.zeros(plan.tensor.number_count, np.float32)
        return study.train(Asked(round=0, stage=Stage.STATISTICS), zeros).scalars[0] == 0


def _is_oldest(number: float) -> bool:
    return abs(number * 120.0 - OLDEST) < 1e-6


@contextmanager
def _with_single_voids() -> Any:
    def alone(rows: Sequence[int], is_small: Any) -> frozenset[int]:
        return frozenset(place for place, number in enumerate(rows) if number and is_small([place]))

    with ExitStack() as stack:
        for module in (table_one, group_curves):
            stack.enter_context(patched(module, void_groups=alone))
        yield


def _few_men() -> pd.DataFrame:
    table = _patients().assign(sex="female")
    table.loc[table.index[:FEW], "sex"] = "male"
    return table


def group_as_the_rest_of_a_total(weakened: bool) -> bool:
    """Subtract the women of a Table 1 or of a curve from a model's rows: the rest are three men, whose cell is void."""
    table = {"name": "t", "table_one": {"columns": ["age"], "by": "sex"}}
    (described, curves, model), frames = _begun(_few_men(), table, {"name": "c", "curve": CURVE}, AGES)
    with in_copy(weakened, _with_single_voids):
        women = _first(described, frames)["rows with a value age of sex=female"]
        shown = {name: one for name, one in _first(curves, frames).items() if "sex=female" in name}
    followed = sum(one for name, one in shown.items() if not name.startswith("sites"))
    return FEW in (_first(model, frames)["rows"] - women, _first(model, frames)["rows"] - followed)


def cell_in_two_analyses(weakened: bool) -> bool:
    """Ask for the same cell twice: void in a Table 1, and the events of a curve."""
    table = {"name": "t", "table_one": {"columns": ["died"], "by": "sex"}}
    with in_copy(weakened, lambda: patched(arithmetics, Counter=lambda _: {})):
        try:
            (_, curves), frames = _begun(_patients(), table, {"name": "c", "curve": CURVE})
        except ValueError:
            return False
        return _first(curves, frames)["sites sex=male"] == len(frames)


def _leaving(curves: Sequence[dict[str, Any]], *, half: bool = False) -> list[Counter[float]]:
    """How many leave at each time. The last hospital follows its patients longer, and its days may be half ones."""
    table, leaving = _patients(), list[Counter[float]]()
    table["days"] = np.ceil(table["days"] / 4.0) + (table["site"] == 3) * (100.5 if half else 100.0)
    with suppress(Unanswerable):
        found, frames = _begun(table, *({"name": str(k), "curve": CURVE | one} for k, one in enumerate(curves)))
        for one in found:
            leaving.append(Counter())
            for name, number in _first(one, frames).items():
                if name.startswith(("events", "censored", "followed")):
                    leaving[-1][float(name.split()[-1]) if " to " in name else np.inf] += number
    return leaving


def patient_who_leaves_alone(weakened: bool) -> bool:
    """Draw two curves by day: a patient who leaves alone on a day shows a code in both, and so on a row."""
    size = StatisticsPlan._size
    apart = {"_size": lambda plan, one: replace(size(plan, one), joins=False)}
    with in_copy(weakened, lambda: patched(StatisticsPlan, **apart)):
        days = _leaving([{"grid": 1.0}, {"grid": 1.0, "by": "stage", "event": "sex"}])
    return any(days[0][day] == days[1][day] == 1 for day in days[0])


def end_of_one_hospital(weakened: bool) -> bool:
    """Draw a curve beyond the last day of all hospitals but one: its end is of this hospital."""
    open_to = {"_ends": lambda one, _: np.full(len(one._groups), len(one._grid))}
    with in_copy(weakened, lambda: patched(CurveArithmetic, **open_to)):
        fine, wide = (_leaving([{"grid": grid, "to": 300.0}])[0] for grid in (10.0, 150.0))
    own = _patients().query("site == 3 and days > 800")  # all others leave in the last wide interval
    return any(number > 0 for day, number in fine.items() if 250 < day <= 300) or wide[np.inf] == len(own)


def code_of_one_hospital(weakened: bool) -> bool:
    """Ask for a code that one hospital has: in a Table 1, or as a reference, so that the intercept is its own."""
    table = _patients()
    table.loc[(table["site"] != 3) & (table["stage"] == "III"), "stage"] = "I"
    model = MODEL | {"terms": ["stage"], "family": "gaussian", "outcome": "pressure", "references": {"stage": "III"}}
    plan = statistics_plan({"name": "t", "table_one": {"columns": ["stage"]}}, {"name": "m", "regression": model})
    with ExitStack() as stack:
        for module in (table_one, model_sums) if weakened else ():
            stack.enter_context(patched(module, are_few=lambda *_: np.False_))
        described, fitted = results_of(plan, frames_of(plan, table))
    return "codes" in described["columns"]["stage"]["all"] or "terms" in fitted


def two_codes_of_one_hospital(weakened: bool) -> bool:
    """Ask for two codes that one hospital alone has together: with a common intercept their count is a sum."""
    table = _patients()
    table.loc[(table["site"] != 3) & (table["sex"] == "male") & (table["stage"] == "III"), "stage"] = "I"
    plan = statistics_plan({"name": "m", "regression": MODEL | {"terms": ["sex", "stage"]}})
    with in_copy(weakened, lambda: patched(model_sums, are_few=lambda sites, _: np.zeros(sites.shape, np.bool_))):
        return "terms" in results_of(plan, frames_of(plan, table))[0]


def number_that_names_hospitals(weakened: bool) -> bool:
    """Ask for the powers of a number that hardly varies within hospitals: with a common intercept, they are rates."""
    table = _patients()
    table["lactate"] = 4.0 + 6.0 * table["site"] + np.arange(len(table)) % 7 / 10
    plan = statistics_plan({"name": "m", "regression": MODEL | {"terms": ["lactate", "lactate:lactate"]}})
    with in_copy(weakened, lambda: patched(model_sums, _LEAST_SPREAD=0.0, _FARTHEST=np.inf, LEAST_WEIGHT=0.0)):
        return "terms" in results_of(plan, frames_of(plan, table))[0]


def events_after_an_end(weakened: bool) -> bool:
    """Subtract a curve's events from all: later ones are of one hospital, and all others follow patients longer."""
    table = _patients()
    table.loc[(table["site"] != 3) & (table["days"] > 500), "died"] = "no"
    with in_copy(weakened, lambda: patched(group_curves, are_few=lambda sites, _: np.zeros(sites.shape, np.bool_))):
        (curve,), frames = _begun(table, {"name": "c", "curve": CURVE | {"by": None, "to": 600.0}})
        shown = sum(number for name, number in _first(curve, frames).items() if name.startswith("events"))
    later = (table["site"] == 3) & (table["days"] > 600) & (table["died"] == "yes")
    return bool(0 < shown == (table["died"] == "yes").sum() - later.sum())


def days_of_one_hospital(weakened: bool) -> bool:
    """Draw a curve by half days, which one hospital has: every other interval is of this hospital."""
    with in_copy(weakened, lambda: patched(group_curves, step_of=lambda _: 0.0)):
        return any(days[day] > 0 for days in _leaving([{"grid": 0.5}], half=True) for day in days if day % 1)


def weight_of_one_hospital(weakened: bool) -> bool:
    """Ask for numbers, exposures or times that hardly vary but at one hospital: sums and their differences are its own.

    Or for patients who leave before all events elsewhere."""
    table, line = _patients(), MODEL | {"intercept": "site"}
    away, died = table["site"] != 3, table["died"] == "yes"
    once = table.assign(days=table["days"].where(~(away & died), 30.0))
    once["admissions"] = once["admissions"].where(died | ~away)
    table["lactate"] = table["lactate"].where(~away, 2.0 + table.index % 7 / 1e3)
    table.loc[away & (table["sex"] == "male"), ["days", "died"]] = 1.0, "no"
    rates = {"family": "poisson", "outcome": "admissions", "exposure": "days"}
    tried: tuple[tuple[pd.DataFrame, dict[str, Any]], ...] = (
        (table, {"regression": line | {"terms": ["lactate"]}}),
        (table, {"regression": line | {"family": "gaussian", "outcome": "lactate"}}),
        (table, {"cox": {"time": "days", "event": "died", "terms": ["sex"]}}),
        (once, {"cox": {"time": "days", "event": "died", "terms": ["age"]}}),
        (once, {"regression": line | rates}),
    )
    with ExitStack() as stack:
        for module in (model_sums, regression, cox):
            stack.enter_context(in_copy(weakened, partial(patched, module, LEAST_WEIGHT=-1.0)))
        no_few = partial(patched, model_sums, are_few=lambda sites, _: np.zeros(sites.shape, np.bool_))
        stack.enter_context(in_copy(weakened, no_few))
        plans = [(rows, statistics_plan({"name": "m"} | one)) for rows, one in tried]
        found = [results_of(plan, frames_of(plan, rows))[0] for rows, plan in plans]
    return (all if weakened else any)("terms" in one for one in found)


def commonest_code_of_one_patient(weakened: bool) -> bool:
    """Ask for a code that one patient has in most rows of a hospital, and for its product with age."""
    rows = _patients()
    rows = rows[rows.site == rows.site[0]]
    rows = pd.concat([rows.assign(stage="I"), *[rows.head(1).assign(stage="III")] * 3 * len(rows)], ignore_index=True)
    (model,), frames = _begun(rows, {"name": "model", "regression": MODEL | {"terms": ["age", "stage", "age:stage"]}})
    people = np.minimum(np.arange(len(rows)), len(rows) // 4)
    frame = frames[0] if weakened else replace(frames[0], patients=people)
    with suppress(Unanswerable):
        return bool(_first(model, [frame])["sum stage=III"] == 3 * len(rows) // 4)
    return False


def cells_of_one_patient(weakened: bool) -> bool:
    """Count a code, and the events of a model, that one patient has in all visits: as many as the smallest cell."""
    table = {"name": "t", "table_one": {"columns": ["sex"]}}
    rows = _patients().assign(sex="female")
    own = rows.index[rows.site == rows.site[0]]
    rows.loc[own[:12], "sex"], rows.loc[own, "died"] = "male", ["yes"] * 12 + ["no"] * (len(own) - 12)
    (described, model), frames = _begun(rows, table, {"name": "model", "regression": MODEL})
    if not weakened:
        patients = np.maximum(np.arange(frames[0].rows) - 11, 0)
        frames[0] = replace(frames[0], patients=patients)
    with suppress(Unanswerable):
        return _first(model, frames)["rows"] > 0
    return _first(described, frames)["rows with male sex of all"] == 12


def values_in_a_table(weakened: bool) -> bool:
    """Ask for a Table 1 of a number that is usual for all men but two: the sum and the squares are their values."""
    rows, two = _patients(), (6.0, 9.0)
    men = rows.index[rows["sex"] == "male"]
    rows.loc[men, "lactate"] = 15.0
    rows.loc[men[:2], "lactate"] = two
    (table,), frames = _begun(rows, {"name": "t", "table_one": {"columns": ["lactate"], "by": "sex"}})
    with in_copy(weakened, lambda: patched(table_one, beside_commonest=lambda *_: 0)):
        found = _first(table, frames)
    moved = 30.0 * found["sum lactate of sex=male"] - 15.0 * found["rows with a value lactate of sex=male"]
    squares = 900.0 * found["squares lactate of sex=male"] - 30.0 * moved - 225.0 * len(men)
    return bool(np.allclose([moved, squares], [sum(two) - 30.0, sum((one - 15.0) ** 2 for one in two)], atol=1e-5))


def model_of_few_patients(weakened: bool) -> bool:
    """Ask for a model with more sums than its few patients have values: their rows are many."""
    rows = _patients().groupby("site").head(12).assign(died=["yes", "no"] * 24, sex=["male", "male", "female"] * 16)
    rows["stage"] = ["I", "II", "III", "III", "II", "I"] * 8
    people = np.repeat(np.arange(12), 4)
    terms = ["age", "lactate", "admissions", "days", "sex", "stage", "pressure", "age:lactate", "age:pressure"]
    model = {"name": "model", "regression": MODEL | {"terms": terms, "intercept": "site"}}
    (model,), frames = _begun(rows.loc[rows.index.repeat(4)], model)
    frames = [replace(one, patients=people) for one in frames]
    first = np.array(list(_first(model, frames).values()))
    lenient = partial(patched, RegressionArithmetic, _people="rows")
    answer = _answer(weakened, lenient, model, frames[0], AnnouncedPart(first=first))
    return answer is not None and 6 * len(answer) > len(rows) * len(frames[0].columns)


def prior_at_one_patient(weakened: bool) -> bool:
    """Choose coefficients of federated-prior at which one patient's many rows have the weight: H shows the patient."""
    generator, visits = np.random.default_rng(3), 30
    design = np.concatenate([generator.normal(size=(270, 2)), [[9.0, -9.0]] * visits])
    targets = (np.arange(300) % 20 == 0).astype(float)[:, None]
    people = np.arange(300) if weakened else np.minimum(np.arange(300), 270)
    with suppress(Concentrated):
        own_sums(PriorRows(design=design, targets=targets, patients=people), np.array([[4.0, -4.0]]))
        return True
    return False


def _attack(name: str, run: Any, without: str) -> Attack:
    return Attack(name=name, tries=str(run.__doc__).splitlines()[0].rstrip("."), without=without, run=run)


ATTACKS = (
    _attack("regression-at-one-patient", regression_at_one_patient, "the least number of rows with a weight"),
    _attack("cox-at-one-patient", cox_at_one_patient, "the least number of rows in a risk set's weight"),
    _attack("cox-of-one-patient", cox_of_one_patient, "the smallest cell of a hospital's complete rows"),
    _attack("firth-at-one-patient", firth_at_one_patient, "the least number of rows with a leverage"),
    _attack("regression-product-with-a-rare-code", product_with_a_rare_code, "the rows beside a column's usual value"),
    _attack("regression-value-beside-the-usual", value_beside_the_usual, "the patients beside a usual value in a cell"),
    _attack("regression-cell-of-a-crossing", cell_of_a_crossing, "the cells of crossed codes"),
    _attack("regression-two-references", code_by_two_references, "the void of all codes"),
    _attack("regression-square-of-an-extreme", square_of_an_extreme, "the largest part of one patient in a column"),
    _attack("regression-window-between-knots", window_between_knots, "the patients between two knots"),
    _attack("regression-pair-of-numbers", pair_of_numbers, "the patients who decide products of columns"),
    _attack("regression-product-and-number", product_and_number, "the patients who decide products of terms"),
    _attack("regression-outcome-of-one-patient", outcome_of_one_patient, "the patients beside the usual outcome"),
    _attack("regression-outcome-by-a-formula", outcome_by_a_formula, "the patients behind the residuals"),
    _attack("regression-two-outcomes", outcomes_of_almost_the_same_patients, "the patients in whom columns differ"),
    _attack("regression-few-that-are-denied", few_that_are_denied, "the own look at few patients in each round"),
    _attack("statistics-group-as-the-rest", group_as_the_rest_of_a_total, "the further groups of a void"),
    _attack("statistics-patient-who-leaves-alone", patient_who_leaves_alone, "the patients who leave with another"),
    _attack("statistics-end-of-one-hospital", end_of_one_hospital, "the sites with patients at risk"),
    _attack("statistics-code-of-one-hospital", code_of_one_hospital, "the sites that have a code"),
    _attack("regression-two-codes-of-one-hospital", two_codes_of_one_hospital, "the sites that have two codes"),
    _attack("regression-number-of-hospitals", number_that_names_hospitals, "the spread within a hospital"),
    _attack("statistics-events-after-an-end", events_after_an_end, "the sites with later events"),
    _attack("regression-codes-within-a-code", codes_that_differ_within_a_code, "the patients in whom columns differ"),
    _attack("statistics-weight-of-one-hospital", weight_of_one_hospital, "the hospitals with weight in a column"),
    _attack("statistics-days-of-one-hospital", days_of_one_hospital, "the step of the times"),
    _attack(
        "regression-commonest-code-of-one-patient", commonest_code_of_one_patient, "patients behind the usual value"
    ),
    _attack("statistics-cells-of-one-patient", cells_of_one_patient, "the patients behind the rows of a cell"),
    _attack("statistics-values-beside-the-usual", values_in_a_table, "the patients beside the usual value of a cell"),
    _attack("regression-of-few-patients", model_of_few_patients, "the patients for each unknown"),
    _attack("prior-at-one-patient", prior_at_one_patient, "the patients behind the rows with a weight"),
    _attack("statistics-cell-twice", cell_in_two_analyses, "the check that concepts are counted together once"),
)
