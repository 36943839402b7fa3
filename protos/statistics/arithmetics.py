"""Chooses the arithmetic of an analysis, and counts its numbers before any list is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from typing import Any, Final, assert_never

from protos.plan.analyses import (
    Analysis,
    Arithmetic,
    CoxAnalysis,
    CurveAnalysis,
    Model,
    RegressionAnalysis,
    StudySize,
    TableOneAnalysis,
    concept_named,
    concepts_used,
)
from protos.plan.concepts import CodedConcept, Concept
from protos.plan.documents import did_you_mean
from protos.statistics.cox import CoxArithmetic
from protos.statistics.group_curves import MONTH, CurveArithmetic
from protos.statistics.private_tables import PrivateTables
from protos.statistics.regression import RegressionArithmetic
from protos.statistics.table_one import TableOneArithmetic

MOST_SUMS: Final = 1 << 17  # of one round
_ARITHMETICS: Final[dict[str, Callable[[Any, tuple[Concept, ...], StudySize], Arithmetic]]] = {
    "table_one": TableOneArithmetic, "regression": RegressionArithmetic, "cox": CoxArithmetic, "curve": CurveArithmetic,
}  # fmt: skip


def arithmetic_of(analysis: Analysis, concepts: tuple[Concept, ...], size: StudySize) -> Arithmetic:
    """Return the arithmetic of an analysis. Raise ValueError, with one clause, if the plan's concepts do not fit it."""
    return next(
        of(getattr(analysis, kind), concepts, size) for kind, of in _ARITHMETICS.items() if hasattr(analysis, kind)
    )


def reasons_against(
    analyses: Sequence[Analysis],
    concepts: tuple[Concept, ...],
    size: Callable[[Analysis], StudySize],
    *,
    is_private: bool,
) -> Iterator[str]:
    """Yield the reasons why a plan cannot have these analyses, each as one clause.

    Names, sites and sizes are checked before any list of numbers is made. `size` returns what the plan says about an
    analysis.
    """
    names, known = [analysis.name for analysis in analyses], {concept.name for concept in concepts}
    if len(set(names)) != len(names):
        yield "the plan lists two analyses with the same name"
    fitting = []
    for analysis in analyses:
        if strangers := sorted({name for used in concepts_used(analysis) for name in used} - known):
            yield f"{analysis.name} names unknown concepts: {', '.join(strangers)}; {did_you_mean(strangers[0], known)}"
        elif (found := size(analysis)).sites < (fewest := found.fewest_sites):
            yield f"{analysis.name}: only {found.sites} sites record all of its columns, but fewest_sites is {fewest}"
        else:
            fitting.append(analysis)
    yield from _told_twice(analyses)
    total = sum(size_of(analysis, concepts) for analysis in fitting)
    if total > MOST_SUMS:
        yield f"the analyses need about {total:,} sums in a round; {MOST_SUMS:,} are allowed"
        return
    for analysis in fitting:
        try:
            if is_private:
                PrivateTables((analysis,), concepts, 1.0)
            arithmetic_of(analysis, concepts, size(analysis))
        except ValueError as wrong:
            yield f"{analysis.name}: {wrong}"


def _told_twice(analyses: Sequence[Analysis]) -> Iterator[str]:
    """Yield the reasons why two analyses together would tell more than each of them."""
    tables = [(one.name, one.table_one) for one in analyses if isinstance(one, TableOneAnalysis)]
    described = [(name, table.by, whose) for whose, table in tables for name in table.columns]
    described += [(one.curve.event, one.curve.by, one.name) for one in analyses if isinstance(one, CurveAnalysis)]
    crossed = Counter(frozenset((name, by)) for name, by, _ in described if by)
    named = Counter(frozenset((name,)) for name, *_ in described)
    for twice in (one for one, times in (*named.items(), *crossed.items()) if times > 1):
        own = (one for name, by, one in described if twice in (frozenset((name,)), frozenset((name, by))))
        what, whose = " with ".join(sorted(twice)), " and ".join(dict.fromkeys(own))
        yield f"{what} is described twice, by {whose}, and a void cell would follow from the other: make two plans"
    if len({(one.curve.time, one.curve.grid, one.curve.to) for one in analyses if isinstance(one, CurveAnalysis)}) > 1:
        yield "curves differ in time, grid or to, and differences of their intervals would follow: make two plans"
    models = (getattr(one, "cox", None) or getattr(one, "regression", None) for one in analyses)
    knots = {(name, tuple(own)) for model in models if model for name, own in model.splines.items()}
    for name in (name for name, times in Counter(name for name, _ in knots).items() if times > 1):
        yield f"{name} has two sets of knots, and sums of the rows between them would follow: make two plans"


def size_of(analysis: Analysis, concepts: tuple[Concept, ...]) -> int:
    """Return about how many numbers an analysis sends in its largest round. Names of the analysis are declared."""
    match analysis:
        case TableOneAnalysis(table_one=table):
            groups = 1 + _codes(table.by, concepts)
            return groups * sum(max(_codes(name, concepts), 4 + (table.bins or 0)) + 3 for name in table.columns)
        case RegressionAnalysis(regression=model) | CoxAnalysis(cox=model):
            return 2 * _of_columns(model, concepts)
        case CurveAnalysis(curve=curve):
            length = MONTH if curve.grid == "monthly" else curve.grid
            return 4 * max(1, _codes(curve.by, concepts)) * ceil(min(curve.to / length, 1e9))
        case _:
            assert_never(analysis)


def _of_columns(model: Model, concepts: tuple[Concept, ...]) -> int:
    def number(name: str) -> int:
        return max(1, _codes(name, concepts) - 1, len(model.splines.get(name, ())) - 1)

    columns = sum(prod(map(number, term.split(":"))) for term in model.terms)
    return columns * (columns + 12)


def _codes(name: str | None, concepts: tuple[Concept, ...]) -> int:
    concept = name and concept_named(concepts, name)
    return len(concept.codes) if isinstance(concept, CodedConcept) else 0
