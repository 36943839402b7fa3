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
        f"A number is printed only if at least {plan.fewest_sites} hospitals have it. If few rows of this site would "
        "decide a sum, this site sends zeros for the analysis. All sites see only how many did so, and the analysis "
        "has no result."
    )
    yield (
        f"In a Table 1 a count below {plan.smallest_cell} rows of one hospital makes the column void for all. In a "
        f"model a hospital needs {plan.smallest_part} rows in each code and of each outcome."
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
