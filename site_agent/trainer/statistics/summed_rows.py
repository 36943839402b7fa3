"""Which cells of a frame the sums of models and curves have that no column and no pair of columns has.

Each product in a model or curve is a column of the memory of answered values, with all codes, because a reference
follows from the others and a total. A product of 0 adds nothing, so it is no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import numpy as np

from protos.plan.analyses import (
    Analysis,
    CoxAnalysis,
    CurveAnalysis,
    Float64,
    Frame,
    RegressionAnalysis,
    TableOneAnalysis,
    concept_named,
    concepts_used,
)
from protos.plan.concepts import Concept, NumberConcept
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.design import spline_column
from site_agent.trainer.answered_values import Values


def cells_of(
    analysis: Analysis, concepts: tuple[Concept, ...], frame: Frame, mapped: Mapping[str, Values]
) -> dict[str, Values]:
    """Return the products that a model or curve sums. `mapped` has the concepts of used_values."""
    found = dict[str, Values]()
    for term, splines in _terms(analysis) if {*concepts_used(analysis)[0]} <= {*frame.columns} else ():
        factors = (_factors(concept_named(concepts, name), frame, splines.get(name, ())) for name in term)
        numbers = (mapped.get(f"{name}, mapped") for name in term)
        hides = [one.hides for one in numbers if one is not None and one.hides is not None]
        for cell in product(*factors):
            values = np.prod([one for _, one in cell], axis=0)
            found[f"{':'.join(name for name, _ in cell)}, product"] = Values(
                values=np.where(values != 0.0, values, np.nan),
                hides=np.logical_and.reduce(hides) if hides else None,
                is_code=not hides,
            )
    return found


def nearly_equal(plan: StatisticsPlan, frame: Frame) -> frozenset[str]:
    """Return the concepts of models and curves that differ from another one in fewer than `smallest_part` patients."""
    columns, found, part = [], set[str](), plan.smallest_part
    first = np.unique(frame.patients, return_index=True)[1]  # patients who differ in one of these rows do differ
    used = (concepts_used(one)[0] for one in plan.analyses if not isinstance(one, TableOneAnalysis))
    for name in dict.fromkeys(name for names in used for name in names if name in frame.columns):
        concept, own = concept_named(plan.concepts, name), frame.columns[name]
        codes = 0 if isinstance(concept, NumberConcept) else len(concept.codes)
        columns.append((name, own.astype(np.int64) if codes else own, codes))
    for (name, one, codes), (another, other, other_codes) in combinations(columns, 2):
        near = [] if codes or other_codes or np.count_nonzero(one[first] != other[first]) >= part else [(one, other)]
        if codes and other_codes:
            both = np.bincount((one * other_codes + other)[first], minlength=codes * other_codes).reshape(codes, -1)
            sizes = [np.bincount(each, minlength=size) for each, size in ((one, codes), (other, other_codes))]
            large = np.outer(*((part <= each) & (each <= frame.rows - part) for each in sizes))
            apart = np.add.outer(both.sum(axis=1), both.sum(axis=0)) - 2 * both
            near = [(one == k, other == j) for k, j in np.argwhere(large & (apart < part))]
        if any(0 < len(np.unique(frame.patients[mine != others])) < part for mine, others in near):
            found |= {name, another}
    return frozenset(found)


def _terms(analysis: Analysis) -> Iterator[tuple[tuple[str, ...], Mapping[str, tuple[float, ...]]]]:
    match analysis:
        case CurveAnalysis():
            yield concepts_used(analysis)[0], {}
        case RegressionAnalysis(regression=model) | CoxAnalysis(cox=model):
            yield from ((tuple(term.split(":")), model.splines) for term in model.terms)
            yield from (((name,), {}) for name in concepts_used(analysis)[0])


def _factors(concept: Concept, frame: Frame, knots: tuple[float, ...]) -> list[tuple[str, Float64]]:
    """Return the columns of a concept by name, (rows,): of a number, of its spline, or of each code, NaN for others."""
    own = frame.columns[concept.name]
    if not isinstance(concept, NumberConcept):
        return [(f"{concept.name}={one}", np.where(own == k, 1.0, np.nan)) for k, one in enumerate(concept.codes)]
    name = f"{concept.name}, knots {knots}," if knots else concept.name
    return [(f"{name}{place}", spline_column(own, knots, place)) for place in range(max(1, len(knots) - 1))]
