"""Proposes for each concept of a plan a column of the table that records it. A person must confirm each proposal.

A proposal depends on the column's name, and on whether its values fit the concept's range, unit or codes. The rules:

* without a name that is similar to the concept's or to a synonym of the plan, nothing is proposed, because many
  numbers look alike;
* if two columns fit a concept about equally well, both are named and neither is proposed;
* a unit is proposed only if the values fit this unit and no other one of the plan, or if the column's name has it;
* a code is proposed only for a code of the same name; a person must declare what 0 and 1 mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from site_agent.desk.drafting.concept_names import likeness
from site_agent.desk.drafting.table_profile import ColumnDraft
from site_agent.desk.examination.disguised import disguised_numbers
from site_agent.trainer.data.cell_rules import canonical_code
from site_agent.trainer.data.cells import Numbers

_LEAST: Final = 0.55  # names with less similarity are ignored
_TIE: Final = 0.05
_FITS: Final = 0.9  # a unit fits if at least this share of the values is inside the range
_LEAST_INSIDE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """The proposal that one column records one concept.

    Attributes:
        concept: the name of the concept.
        unit: of the column, with its name in the plan; None if there is no evidence for one.
        codes: for a concept with codes, the concept's code for each code of the column; None if not all are known.
        reasons: reasons for a person to read.
    """

    concept: str
    unit: str | None
    codes: Mapping[str, str] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The proposed concept of each column, and for each concept without a column the reason."""

    by_column: Mapping[str, Proposed]
    without_column: Mapping[str, str]


def propose(concepts: Sequence[Concept], numbers: Sequence[ColumnDraft], coded: Sequence[ColumnDraft]) -> Proposal:
    """Propose a column for each concept.

    Args:
        numbers: columns that are drafted as numbers or dates.
        coded: columns that are drafted with codes.
    """
    fits = {concept.name: _fits(concept, numbers, coded) for concept in concepts}
    by_column: dict[str, Proposed] = {}
    without: dict[str, str] = {}
    named = sorted(concepts, key=lambda one: -max((score for score, _, _ in fits[one.name]), default=0.0))
    for concept in named:
        free = sorted((fit for fit in fits[concept.name] if fit[1] not in by_column), key=lambda fit: -fit[0])
        if not free:
            without[concept.name] = _why_not(concept, numbers, coded)
        elif len(free) > 1 and free[0][0] - free[1][0] < _TIE:
            without[concept.name] = f"{free[0][1]} and {free[1][1]} fit about equally well"
        else:
            by_column[free[0][1]] = free[0][2]
    in_order = {one.name: without[one.name] for one in concepts if one.name in without}
    return Proposal(by_column=by_column, without_column=in_order)


def _fits(
    concept: Concept, numbers: Sequence[ColumnDraft], coded: Sequence[ColumnDraft]
) -> list[tuple[float, str, Proposed]]:
    """Return the similarity, name and proposal of each column whose name and values fit the concept."""
    found = []
    for column in numbers if isinstance(concept, NumberConcept) else coded:
        alike = likeness(column.name, (concept.name, *concept.synonyms))
        if alike < _LEAST:
            continue
        proposed = _number(concept, column) if isinstance(concept, NumberConcept) else _codes(concept, column)
        if proposed is not None:
            found.append((alike, column.name, proposed))
    return found


def _why_not(concept: Concept, numbers: Sequence[ColumnDraft], coded: Sequence[ColumnDraft]) -> str:
    names = (concept.name, *concept.synonyms)
    is_number = isinstance(concept, NumberConcept)
    others = [one.name for one in (coded if is_number else numbers) if likeness(one.name, names) >= _LEAST]
    if others:
        return f"{others[0]} has such a name, and holds {'codes' if is_number else 'numbers'}"
    misfits = [one.name for one in (numbers if is_number else coded) if likeness(one.name, names) >= _LEAST]
    if misfits:
        return f"{misfits[0]} has such a name, and its values do not fit or it fits another concept better"
    return "no column has such a name"


def _number(concept: NumberConcept, column: ColumnDraft) -> Proposed | None:
    if not column.is_numeric:  # the column is a date; the contract shows the day from which the time is counted
        return Proposed(concept=concept.name, unit=None, codes=None, reasons=("by its name",))
    sample = column.sample
    values = sample[~np.isin(sample, disguised_numbers(sample))]
    if not len(values):
        return None
    inside = {concept.unit: _inside(concept, values)}
    for one in concept.conversions:
        inside[one.unit] = _inside(concept, one.factor * values + one.offset)
    best = max(inside.values())
    if best < _LEAST_INSIDE:
        return None
    fitting = [unit for unit, share in inside.items() if share >= min(_FITS, best)]
    written = [unit for unit in fitting if unit is not None and _has_unit(column.name, unit)]
    units = written or fitting
    if len(units) > 1:
        told = " and ".join(unit or "no unit" for unit in units)
        return Proposed(concept=concept.name, unit=None, codes=None, reasons=("by its name", f"its values fit {told}"))
    low, high, share = concept.low, concept.high, inside[units[0]]
    told = f"{100 * share:.0f}% of its values lie in {low:g} to {high:g}"
    if units[0] != concept.unit:
        told += f" {concept.unit}, if they are in {units[0]}"
    return Proposed(concept=concept.name, unit=units[0], codes=None, reasons=("by its name", told))


def _inside(concept: NumberConcept, values: Numbers) -> float:
    return float(((values >= concept.low) & (values <= concept.high)).mean())


def _has_unit(name: str, unit: str) -> bool:
    """Return whether a column's name ends with the unit. Characters other than letters and digits are ignored."""
    letters = re.sub(r"[^a-z0-9]", "", unit.lower())
    return bool(letters) and re.sub(r"[^a-z0-9]", "", name.lower()).endswith(letters)


def _codes(concept: CodedConcept, column: ColumnDraft) -> Proposed | None:
    own = list(column.codes)
    known = {canonical_code(code, ".").casefold(): code for code in concept.codes}
    means = {code: known[code.casefold()] for code in own if code.casefold() in known}
    if not means:
        means = _by_first_letters(own, concept.codes)
    if not means and len(own) > len(concept.codes):
        return None
    if not means:
        told = f"which of its codes are {', '.join(concept.codes)}? write concept_codes"
        return Proposed(concept=concept.name, unit=None, codes=None, reasons=("by its name", told))
    told = f"{len(means)} of its {len(own)} codes are codes of the concept"
    return Proposed(concept=concept.name, unit=None, codes=means, reasons=("by its name", told))


def _by_first_letters(own: Sequence[str], codes: Sequence[str]) -> dict[str, str]:
    """Match codes such as f and m with female and male. Each code must be the beginning of exactly one longer code."""
    found = {}
    for mine in own:
        begun = [code for code in codes if code.casefold().startswith(mine.casefold())]
        if len(begun) != 1 or not mine.isalpha():
            return {}
        found[mine] = begun[0]
    return found if len(set(found.values())) == len(found) else {}
