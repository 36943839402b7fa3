"""Shows in the review the question of a plan, and which columns of this site record the concepts of the plan.

The mapping is in the contract, so the table is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from protos.errors import ConfigurationError
from protos.plan.analyses import Frame
from protos.plan.concepts import CodedConcept, Concept, NumberConcept, Question
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.plan_review import Section, Table
from site_agent.trainer.data.contract import BinaryTarget, Contract
from site_agent.trainer.data.tables import Table as Rows
from site_agent.trainer.prior.concept_columns import (
    Recorded,
    mapped_columns,
    mapped_number,
    meanings_of,
    recorded_concepts,
)
from site_agent.trainer.statistics.concept_frame import mapped_concepts, outcomes_of

_SMALL_PART: Final = 0.05  # of the larger of two ranges is in both


def concept_sections(plan: Plan, contract: Contract | None, site: str) -> Iterator[Section]:
    """Yield the sections about question and concepts. `contract` is None if this user cannot read this site's."""
    if plan.question is not None:
        yield _question(plan.question)
    try:
        require_fitting(plan, contract, site)
    except ConfigurationError as wrong:
        yield Section("This site cannot take part now", (wrong.what,), error=wrong)
    if plan.concepts:
        yield _concepts(plan, contract)


def require_fitting(plan: Plan, contract: Contract | None, site: str) -> None:
    """Raise ConfigurationError if this site cannot take part in a plan with its contract. Accept one that is None."""
    if contract is None:
        return
    if isinstance(plan, StatisticsPlan):
        mapped_concepts(plan.concepts, contract, site)
    elif plan.concepts and (isinstance(plan, PriorPlan) or plan.reads_concepts):
        mapped_columns(plan.concepts, contract, None if plan.tier_of(site) == "receiving" else site)


def own_values(plan: StatisticsPlan, table: Rows, frame: Frame, site: str) -> Iterator[tuple[str, str]]:
    """Yield each concept of a plan that this site records, with its values here, for this site's own people alone."""
    for concept, one in mapped_concepts(plan.concepts, table.contract, site):
        own, values = one.own(table), frame.columns[concept.name]
        is_known = ~np.isnan(values)
        if isinstance(concept, NumberConcept):
            found = mapped_number(concept, one).converted(own)[is_known]
            low, middle, high = np.quantile(found if len(found) else np.nan, (0.0, 0.5, 1.0))
            told = f"median {middle:g}, from {low:g} to {high:g} {concept.unit or ''}".rstrip()
        else:
            event, cells = concept.codes[-1], map(" or ".join, _cells(one, table.contract))
            pairs = [*zip(cells, meanings_of(concept, one), strict=True)]
            names = (cell if cell == code else f"{cell} -> {code}" for cell, code in pairs)
            sizes = {name: (own == k).sum() for k, name in enumerate(names) if pairs[k][1]}
            told = ", ".join(f"{name}: {n} ({n / max(1, is_known.sum()):.1%})" for name, n in sizes.items())
            if concept.name in outcomes_of(plan):
                rows = values == len(concept.codes) - 1, is_known
                count, of = (len(np.unique(frame.patients[chosen])) for chosen in rows)
                whose = f"{event} (own code {' or '.join(cell for cell, code in pairs if code == event)})"
                told = f"{count} of {of} patients ({count / max(1, of):.1%}) have the event {concept.name} = {whose}"
        yield concept.name, told if is_known.all() else f"{told}, missing: {(~is_known).sum()}"


def doubtful_codes(plan: StatisticsPlan, contract: Contract, site: str) -> Iterator[str]:
    """Yield a question for each own code that has the name of another code of the plan than the one it is mapped to."""
    for concept, one in mapped_concepts(plan.concepts, contract, site):
        if isinstance(concept, CodedConcept):
            for cells, code in zip(_cells(one, contract), meanings_of(concept, one), strict=True):
                if code and (wrong := [cell for cell in cells if cell in concept.codes and cell != code]):
                    yield f"{one.name}: {', '.join(wrong)} is mapped to {code} of {concept.name}. Is this right?"


def _cells(feature: Recorded, contract: Contract) -> list[tuple[str, ...]]:
    """Return the cells of the table that count as each code of a column."""
    target = contract.target
    if feature.name == target.name and isinstance(target, BinaryTarget):
        return [target.negative or ("any other code",), target.positive]
    return [(code,) for code in feature.codes or ()]


def _question(asked: Question) -> Section:
    sentences = [
        f"Outcome: {asked.outcome}",
        f"Patients: {asked.population}",
        f"Time: {asked.time}",
        f"Use: {asked.use}",
        f"Responsible: {asked.responsible}. Approval number: {asked.approval_number}",
    ]
    return Section("The question", tuple(sentences))


def _concepts(plan: Plan, contract: Contract | None) -> Section:
    heading = "Columns with a common meaning"
    if contract is None:
        return Section(
            heading,
            ("Your user account cannot read the contract, so this page does not show the columns of the concepts.",),
        )
    own = recorded_concepts((*contract.features, *contract.columns))
    count = sum(one.name in own for one in plan.concepts)
    sentences = [f"This site records {count} of the {len(plan.concepts)} concepts of the plan."]
    if unused := sorted(set(own) - {one.name for one in plan.concepts}):
        sentences.append(f"The contract of this site names concepts that the plan does not have: {', '.join(unused)}.")
    for one in (one for one in plan.concepts if isinstance(one, NumberConcept) and one.name in own):
        for low, high in _ranges(one, own[one.name], contract):
            words = f"The contract's range of {own[one.name].name} becomes {low:g} to {high:g}, and {one.name} has"
            common = min(high, one.high) - max(low, one.low)
            if common < _SMALL_PART * max(high - low, one.high - one.low):
                sentences.append(f"{words} {one.low:g} to {one.high:g}: are unit and factor right?")
            elif common < high - low:
                sentences.append(f"{words} {one.low:g} to {one.high:g}: values beyond count as its ends.")
    rows = tuple(_row(one, own.get(one.name), contract) for one in plan.concepts)
    return Section(heading, tuple(sentences), Table(("concept", "definition", "unit or codes", "own column"), rows))


def _ranges(concept: NumberConcept, feature: Recorded, contract: Contract) -> Iterator[tuple[float, float]]:
    """Yield the range that the contract declares for a column, in the concept's unit, if it can be converted."""
    column = next(one for one in contract.columns if one.name == feature.name)
    declared = getattr(column, "range", None) or (0.0, getattr(column, "longest", None) or 0.0)
    with suppress(ConfigurationError):
        mapped = mapped_number(concept, feature)
        low, high = sorted(mapped.factor * limit + mapped.offset for limit in declared)
        if low < high:
            yield low, high


def _row(concept: Concept, feature: Recorded | None, contract: Contract) -> tuple[str, str, str, str]:
    if isinstance(concept, CodedConcept):
        unit = ", ".join(concept.codes)
    else:
        unit = f"{concept.unit or 'no unit'}, {concept.low:g} to {concept.high:g}"
    return concept.name, concept.definition, unit, "-" if feature is None else _own(concept, feature, contract)


def _own(concept: Concept, feature: Recorded, contract: Contract) -> str:
    if isinstance(concept, CodedConcept):
        means = feature.concept_codes or [code if code in concept.codes else None for code in feature.codes or ()]
        own = map(", ".join, _cells(feature, contract))
        told = [f"{one} is {code or 'missing'}" for one, code in zip(own, means, strict=True) if one != code]
        return f"{feature.name} ({', '.join(told)})" if told else feature.name
    if feature.codes is not None or feature.unit == concept.unit:
        return feature.name
    factors = {one.unit: one for one in concept.conversions}
    if feature.unit not in factors:
        return f"{feature.name} in {feature.unit or 'no unit'}"
    one = factors[feature.unit]
    return f"{feature.name} in {feature.unit}, times {one.factor:g}" + (f" plus {one.offset:g}" if one.offset else "")
