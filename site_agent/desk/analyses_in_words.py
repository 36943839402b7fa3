"""Shows in the review the analyses of a statistics plan: what each prints, of which columns and how many hospitals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import compress, islice
from typing import assert_never

import numpy as np

from protos.plan.analyses import (
    Analysis,
    CoxAnalysis,
    CurveAnalysis,
    Frame,
    Model,
    RegressionAnalysis,
    TableOneAnalysis,
    concept_named,
    concepts_used,
)
from protos.plan.concepts import Concept
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.design import event_of, in_words
from protos.wire.messages import Stage
from site_agent.desk.plan_review import Section, Table
from site_agent.trainer.requests import Asked

_RATIOS = {"binomial": "odds ratios", "gaussian": "differences", "poisson": "rate ratios"}


def analysis_section(plan: StatisticsPlan) -> Section:
    """Return the section that lists all analyses, and the true number of hospitals of each set of columns."""
    rows = []
    for analysis, arithmetic in zip(plan.analyses, plan.arithmetics, strict=True):
        numbers = f"{len(arithmetic.first)} once" if plan.privacy is None else "counts with noise, once"
        numbers += f", {len(arithmetic.newton)} in each Newton round" if arithmetic.newton else ""
        numbers += f", {len(arithmetic.last)} at the end" if arithmetic.last else ""
        for place, used in enumerate(concepts_used(analysis)):
            sites = plan.recorders(used)
            whose = "all" if len(sites) == len(plan.site_names) else ", ".join(sorted(sites))
            first = (analysis.name, result_in_words(analysis, plan.concepts), numbers) if place == 0 else ("", "", "")
            rows.append((*first, ", ".join(used), f"{len(sites)} ({whose})"))
    head = ("analysis", "result", "numbers that this site sends", "columns", "hospitals in each sum")
    return Section("Analyses", tuple(_rules(plan)), Table(head, tuple(rows)))


def reversed_events(plan: StatisticsPlan) -> Iterator[str]:
    """Yield a question for each outcome of two codes whose words say that the first one is the event."""
    from site_agent.desk.drafting.column_draft import ColumnDraft
    from site_agent.trainer.statistics.concept_frame import outcomes_of

    for name in sorted(outcomes_of(plan)):
        codes = getattr(concept_named(plan.concepts, name), "codes", ())
        if codes and ColumnDraft(name, ".", 2 * codes).event == codes[0]:
            yield f"{name}={codes[1]} is the event, because it is the second code. Is the order of the codes right?"


def void_analyses(plan: StatisticsPlan, frame: Frame, site: str) -> Iterator[str]:
    """Yield which analyses a site's own rows will make void, by what its trainer would send first. Nothing is sent."""
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy

    study = StatisticsStudy(plan, frame, site=site, secret=b"")
    nothing = np.zeros(plan.tensor.number_count, np.float32)
    numbers = iter(study.train(Asked(round=0, stage=Stage.STATISTICS), nothing).scalars)
    for one, arithmetic in zip(plan.analyses, plan.arithmetics, strict=True):
        _, *own = islice(numbers, 1 + len(arithmetic.first))
        names = "\n".join(number.name for number in compress(arithmetic.first, own))
        void = in_words(re.findall(r"^sites with (?:a small|few) \w+ (.+)", names, re.M))
        if reason := study.reasons.get(one.name) or (void and f"Few patients would show in or beside {void}."):
            yield f"This hospital will make {one.name} void for all, in whole or in part. {reason}"


def _rules(plan: StatisticsPlan) -> Iterator[str]:
    yield from reversed_events(plan)
    if plan.privacy is not None:
        return
    yield (
        f"At least {plan.fewest_sites} hospitals must record a column. If few rows of this site would decide a sum, it "
        "sends secret random numbers instead. All sites see only how many did so, and nothing of it is printed."
    )
    yield (
        f"A count below {plan.smallest_cell} rows of one hospital makes a column of Table 1 void for all, with further "
        f"groups. Fewer than {plan.smallest_part} rows of a code, an outcome or a group make a model or a curve void. "
        "Bins of quartiles and intervals of curves can count fewer rows."
    )


def result_in_words(analysis: Analysis, concepts: tuple[Concept, ...]) -> str:
    """Return what an analysis prints, with every choice of its plan, for a clinician."""
    match analysis:
        case TableOneAnalysis(table_one=table):
            bins = f", quartiles from counts in {table.bins} parts of each range" if table.bins else ""
            return "description of patients" + (f" by {table.by}" if table.by else "") + bins
        case RegressionAnalysis(regression=model):
            chosen = "one common intercept" if model.intercept == "common" else "an intercept for each hospital"
            chosen += f", {model.exposure} as exposure" if model.exposure else ""
            chosen += ", standard errors robust by patient" if model.robust else ""
            chosen += ", Firth's correction" if model.firth else ""
            outcome = event_of(model.outcome, concepts) if model.family == "binomial" else model.outcome
            return f"{_RATIOS[model.family]} for {outcome} by {', '.join(model.terms)}; {chosen}{_columns(model)}"
        case CoxAnalysis(cox=cox):
            what = f"hazard ratios for {event_of(cox.event, concepts)} after {cox.time}"
            return f"{what} by {', '.join(cox.terms)}{_columns(cox)}"
        case CurveAnalysis(curve=curve):
            grid = "by month" if curve.grid == "monthly" else f"in steps of {curve.grid:g}"
            what = f"curve of {curve.time} until {event_of(curve.event, concepts)}"
            return what + (f" by {curve.by}" if curve.by else "") + f", {grid} up to {curve.to:g}"
        case _:
            assert_never(analysis)


def _columns(model: Model) -> str:
    found = [f"{name} compared with {code}" for name, code in model.references.items()]
    found += [f"spline of {name} with knots {', '.join(f'{k:g}' for k in ks)}" for name, ks in model.splines.items()]
    found += [f"ridge {model.ridge:g}, so without intervals"] if model.ridge else []
    return "".join(f", {one}" for one in found)
