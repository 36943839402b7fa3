"""Shows in the review the analyses of a statistics plan: what each prints, of which columns and how many hospitals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from protos.plan.analyses import (
    Analysis,
    CoxAnalysis,
    CurveAnalysis,
    RegressionAnalysis,
    TableOneAnalysis,
    concepts_used,
)
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.plan_review import Section, Table

_RATIOS = {"binomial": "odds ratios", "gaussian": "differences", "poisson": "rate ratios"}


def analysis_section(plan: StatisticsPlan) -> Section:
    """Return the section that lists all analyses, and the true number of hospitals of each set of columns."""
    rows = []
    for analysis, arithmetic in zip(plan.analyses, plan.arithmetics, strict=True):
        numbers = f"{len(arithmetic.first)} once" if plan.privacy is None else "counts with noise, once"
        if arithmetic.newton:
            numbers += f", {len(arithmetic.newton)} in each Newton round, {len(arithmetic.last)} at the end"
        for place, used in enumerate(concepts_used(analysis)):
            sites = plan.recorders(used)
            whose = "all" if len(sites) == len(plan.site_names) else ", ".join(sorted(sites))
            first = (analysis.name, result_in_words(analysis), numbers) if place == 0 else ("", "", "")
            rows.append((*first, ", ".join(used), f"{len(sites)} ({whose})"))
    head = ("analysis", "result", "numbers that this site sends", "columns", "hospitals in each sum")
    return Section("Analyses", tuple(_rules(plan)), Table(head, tuple(rows)))


def _rules(plan: StatisticsPlan) -> Iterator[str]:
    if plan.privacy is not None:
        return
    yield (
        f"At least {plan.fewest_sites} hospitals must record a column. If few rows of this site would decide a sum, it "
        "sends secret random numbers instead. All sites see only how many did so, and nothing of it is printed."
    )
    yield (
        f"A count below {plan.smallest_cell} rows of one hospital makes a column of Table 1 void for all, and fewer "
        f"than {plan.smallest_part} rows of a code, an outcome or a group make a model or a curve void. Bins of "
        "quartiles and intervals of curves can count fewer rows."
    )


def result_in_words(analysis: Analysis) -> str:
    """Return what an analysis prints, for a clinician."""
    match analysis:
        case TableOneAnalysis(table_one=table):
            return "description of patients" + (f" by {table.by}" if table.by else "")
        case RegressionAnalysis(regression=model):
            return f"{_RATIOS[model.family]} for {model.outcome} by {', '.join(model.terms)}"
        case CoxAnalysis(cox=cox):
            return f"hazard ratios for {cox.event} by {', '.join(cox.terms)}"
        case CurveAnalysis(curve=curve):
            return f"curve of {curve.time} until {curve.event}" + (f" by {curve.by}" if curve.by else "")
        case _:
            assert_never(analysis)
