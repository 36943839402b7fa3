"""Converts a site's table to the concepts of a statistics plan, in their units and codes.

Features, the outcome and the time of follow-up can record a concept. Every row of the table takes part, whatever part
of a split it is in. The rules:

* a number is converted by the factor that the plan declares, and replaced by the nearer limit beyond the range;
* `recorded_by` decides which sites record a concept. A site that is listed must have a column for it, and a site that
  is not listed leaves its column out. So no number is of fewer sites than the plan says;
* each product in a model or curve is a column of the memory of answered values, with all codes, because a reference
  follows from the others and a total. A product of 0 adds nothing, so it is no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, compress, product

import numpy as np

from protos.errors import DataError
from protos.plan.analyses import (
    Analysis,
    CoxAnalysis,
    CurveAnalysis,
    Float64,
    Frame,
    RegressionAnalysis,
    TableOneAnalysis,
    complete_rows,
    concept_named,
    concepts_used,
)
from protos.plan.concepts import Concept, NumberConcept
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.design import spline_column
from protos.statistics.group_curves import step_of
from site_agent.trainer.answered_values import Values, codes_of, numbers_of, rows_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import (
    Recorded,
    mapped_number,
    meanings_of,
    recorded_concepts,
    recording_columns,
)


def concept_frame(plan: StatisticsPlan, table: Table, site: str, smallest_cell: int) -> Frame:
    """Return a table as concepts. Raise ConfigurationError if they don't fit, DataError if a time is below 0."""
    columns, steps = {}, {}
    for concept, one in mapped_concepts(plan.concepts, table.contract, site):
        own, is_time = one.own(table), concept.name in times_of(plan)
        if is_time and (own < 0.0).any():
            raise DataError(
                what=f"The column {one.name} is a time to an event, and {(own < 0.0).sum()} of its values are below 0.",
                consequence="Nothing was sent.",
                remedy="Correct the table. `site-agent data check` lists them if the contract has a `range` from 0.",
            )
        columns[concept.name] = _values(concept, one, own)
        if is_time and isinstance(concept, NumberConcept):
            number = mapped_number(concept, one)
            steps[concept.name] = step_of(own) * number.factor, number.rounding
    owners = np.arange(table.rows) if table.patients is None else np.array(table.patients)
    patients = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    left_out = len(table.dropped)
    return Frame(columns=columns, patients=patients, smallest_cell=smallest_cell, left_out=left_out, steps=steps)


def times_of(plan: StatisticsPlan) -> set[str]:
    """Return the concepts that are times to an event."""
    return {concepts_used(one)[0][0] for one in plan.analyses if isinstance(one, CoxAnalysis | CurveAnalysis)}


def outcomes_of(plan: StatisticsPlan) -> set[str]:
    """Return the concepts that are the outcome or the event of a model or a curve."""
    models = [one for one in plan.analyses if not isinstance(one, TableOneAnalysis)]
    return {concepts_used(one)[0][not isinstance(one, RegressionAnalysis)] for one in models}


def mapped_concepts(concepts: Sequence[Concept], contract: Contract, site: str) -> list[tuple[Concept, Recorded]]:
    """Return each concept that this site records, with its column. Raises as `recording_columns`."""
    pairs = recording_columns(concepts, contract.columns, site)
    return [(concept, one) for concept, one in pairs if one is not None]


def used_values(plan: StatisticsPlan, table: Table, frame: Frame) -> dict[str, Values]:
    """Return the values that sums depend on, by name: as the table has them, as the plan maps them, and their products.

    `frame` has all rows of the table. Those that take no part have no value, but one under `row`, also those that the
    contract leaves out, which come last.
    """
    recorded, found = recorded_concepts(table.contract.columns), dict[str, Values]()
    named = {name for analysis in plan.analyses for used in concepts_used(analysis) for name in used}
    for concept in plan.concepts:
        if concept.name not in named & {*frame.columns}:
            continue
        one, mapped = recorded[concept.name], frame.columns[concept.name]
        own = one.own(table)
        if isinstance(concept, NumberConcept):
            number = mapped_number(concept, one)
            found |= numbers_of(one.name, own, concept.low, concept.high, number.converted(own), concept.name)
        else:
            found |= codes_of(one.name, own, one.codes or ())
            found |= codes_of(f"{concept.name}, mapped", mapped, concept.codes)
    for analysis in plan.analyses:
        found |= cells_of(analysis, plan.concepts, frame, found)
    # A difference of sums is of those in whom two outcomes differ.
    for first, second in combinations(sorted(outcomes_of(plan) & {*frame.columns}), 2):
        values = np.where(frame.columns[first] != frame.columns[second], 1.0, np.nan)
        found[f"{first}, {second} differ"] = Values(values=values, is_code=True)
    kept = complete_rows(plan.analyses, frame)
    found = {name: one.only(kept, frame.left_out) for name, one in found.items()}
    owners = -1 - np.arange(frame.rows + frame.left_out)  # of rows that take no part, nobody counts patients
    owners[: frame.rows][kept] = frame.patients[kept]
    return found | rows_of(owners)


def doubts_of(
    plan: StatisticsPlan, used: Mapping[str, Values], frame: Frame, contract: Contract | None = None
) -> Iterator[str]:
    """Yield what this site's own people must look at: values that a range replaces, and what models seem to mistake."""
    late = times_of(plan) | {str(getattr(contract and contract.follow_up, "concept", ""))}
    sizes = np.unique(frame.patients[complete_rows(plan.analyses, frame)], return_counts=True)[1]
    for concept in plan.concepts:
        one = used.get(f"{concept.name}, mapped")
        if isinstance(concept, NumberConcept) and one is not None and one.hides is not None:
            inside = one.hides[~np.isnan(one.values)]
            if cut := np.count_nonzero(~inside):
                words = f"{cut} of {len(inside)} values of {concept.name} ({cut / len(inside):.1%}) are beyond"
                yield f"{words} {concept.low:g} to {concept.high:g}, the plan's range, and count as its ends."

    for analysis in plan.analyses:
        names, *_ = concepts_used(analysis)
        if isinstance(analysis, RegressionAnalysis):
            model, several = analysis.regression, sizes[sizes > 1]
            if len(several) and not (model.robust or model.ridge or {*names} - {*frame.columns}):
                words = f"{several.sum()} rows of {len(several)} patients count as independent in {analysis.name}"
                yield f"{words}, so its errors are mostly too small. `robust: true` in the plan allows for this."
            rows = np.count_nonzero(frame.columns.get(names[0], np.zeros(0)) % 1.0 > 0.0)
            if model.family == "poisson" and rows:
                yield f"{rows} values of {names[0]} are no whole numbers, as counts are. Are they rates?"
            for time in sorted(late.intersection(names[1:]) - {str(model.exposure)}):
                yield f"{time} is known only after the outcome and a term of {analysis.name}. Is this meant?"
        elif isinstance(analysis, CoxAnalysis | CurveAnalysis) and {*names[:2]} <= {*frame.columns}:
            is_last = frame.columns[names[0]] >= getattr(concept_named(plan.concepts, names[0]), "high", np.inf)
            if rows := np.count_nonzero(is_last & (frame.columns[names[1]] == 1)):
                yield f"{rows} events at the upper end of the range of {names[0]} count as censored: raise `high`."


def unmapped_in_words(plan: StatisticsPlan, table: Table, site: str) -> Iterator[str]:
    """Yield for each column how many rows have codes that the plan lacks and the contract does not map to null."""
    recorded = recorded_concepts(table.contract.columns)
    for concept in (one for one in plan.concepts if site in (one.recorded_by or plan.site_names)):
        one = recorded.get(concept.name)
        if one is None or one.concept_codes or isinstance(concept, NumberConcept):
            continue
        own = one.own(table)
        lost = {code: (own == k).sum() for k, code in enumerate(one.codes or ()) if code not in concept.codes}
        if rows := sum(lost.values()):
            told = ", ".join(compress(lost, lost.values()))
            words = f"{rows} of {len(own)} rows have a code of {one.name} that the plan's {concept.name} lacks ({told})"
            yield f"{words}, and count as missing. If this is right, map the code to null with `concept_codes`."


def _values(concept: Concept, one: Recorded, own: Float64) -> Float64:
    """Return a concept's values, float64 (rows,), from the site's own numbers or positions of codes."""
    if isinstance(concept, NumberConcept):
        return np.asarray(np.clip(mapped_number(concept, one).converted(own), concept.low, concept.high))
    found = np.full(len(own), np.nan)
    for place, code in enumerate(meanings_of(concept, one)):
        if code is not None:
            found[own == place] = concept.codes.index(code)
    return found


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
    """Return numbers, and codes of models, curves and groups, that nearly equal another: few patients differ."""
    columns, found, part, events = [], set[str](), plan.smallest_part, outcomes_of(plan)
    first = np.unique(frame.patients, return_index=True)[1]  # patients who differ in one of these rows do differ
    used = [concepts_used(one)[0][isinstance(one, TableOneAnalysis) :] for one in plan.analyses]
    described = [name for one in plan.analyses for name, *_ in concepts_used(one)]
    numbers = [name for name in described if isinstance(concept_named(plan.concepts, name), NumberConcept)]
    for name in dict.fromkeys(name for names in (*used, numbers) for name in names if name in frame.columns):
        concept, own = concept_named(plan.concepts, name), frame.columns[name]
        codes = 0 if isinstance(concept, NumberConcept) else len(concept.codes)
        columns.append((name, own.astype(np.int64) if codes else np.nan_to_num(own, nan=-np.inf), codes))
    coded = {name: (own, codes) for name, own, codes in columns if codes}
    models = (one for one in plan.analyses if isinstance(one, RegressionAnalysis))
    common = [coded.keys() & concepts_used(one)[0] for one in models if one.regression.intercept == "common"]
    for pair in {pair for names in common for pair in combinations(sorted(names), 2)}:
        (one, first_codes), (other, codes) = (coded[name] for name in pair)
        columns.append((":".join(pair), one * codes + other, first_codes * codes))
    for (name, one, codes), (another, other, other_codes) in combinations(columns, 2):
        near = [] if codes or other_codes or np.count_nonzero(one[first] != other[first]) >= part else [(one, other)]
        # Design.few counts the codes of a pair within one of the two. Few of a pair may have an outcome.
        mine, others = {*name.split(":")}, {*another.split(":")}
        is_counted = mine < others or (len(mine) + len(others) > 2 and len(mine & events) != len(others & events))
        if codes and other_codes and not is_counted:
            both = np.bincount((one * other_codes + other)[first], minlength=codes * other_codes).reshape(codes, -1)
            sizes = [np.bincount(each, minlength=size) for each, size in ((one, codes), (other, other_codes))]
            large = np.outer(*((part <= each) & (each <= frame.rows - part) for each in sizes))
            apart = np.add.outer(both.sum(axis=1), both.sum(axis=0)) - 2 * both
            near = [(one == k, other == j) for k, j in np.argwhere(large & (apart < part))]
        if any(0 < len(np.unique(frame.patients[here != there])) < part for here, there in near):
            # A pair concerns only models whose common intercept counts two codes together.
            found |= {one for one in (name, another) if ":" in one} or {name, another}
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
