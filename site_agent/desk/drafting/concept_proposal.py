"""Proposes which column of the table records each concept of a plan. A person must confirm each proposal.

A proposal depends on the column's name, and on whether its values fit the concept's range, unit or codes. The rules:

* without a name that is similar to the concept's or to a synonym of the plan, nothing is proposed, because many
  numbers look alike;
* names are compared word by word. Two words are similar if they are equal, if one begins with the other, or if they
  differ by a letter. One word can abbreviate several: `bp` is blood pressure, and `exang` is exercise angina;
* if two columns fit a concept about equally well, both are named and neither is proposed;
* a unit is proposed only if the values fit this unit and no other one of the plan, or if the column's name has it;
* a code is proposed only for a code of the same name; a person must declare what 0 and 1 mean.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from site_agent.desk.drafting.table_profile import ColumnDraft
from site_agent.desk.examination.suspicious_numbers import disguised_numbers
from site_agent.trainer.data.cell_rules import canonical_code
from site_agent.trainer.data.cells import Numbers

_LEAST: Final = 0.55  # names with less similarity are ignored
_TIE: Final = 0.05
_FITS: Final = 0.9  # a unit fits if at least this share of the values is inside the range
_LEAST_INSIDE: Final = 0.5
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
_EMPTY: Final = frozenset({"at", "of", "the", "in", "on", "value", "values", "baseline", "admission", "column", "col"})
_ABBREVIATION: Final = 0.8  # similarity of a word and several words that it abbreviates by their first letters
_BEGINNING: Final = 0.85
_ALIKE: Final = 0.8  # if at least this fraction of letters is equal, two words are treated as one misspelt word
_SHORTEST_BEGINNING: Final = 3
_MOST_WORDS: Final = 4  # words that one word abbreviates


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """The proposal that one column records one concept, with reasons for a person to read.

    `unit` is the column's, with its name in the plan; None if there is no evidence for one. `codes` has the concept's
    code for each code of the column; None if not all are known.
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
    """Propose a column for each concept, from the drafted columns with numbers or dates and with codes."""
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


def likeness(column: str, names: Sequence[str]) -> float:
    """Return from 0 to 1 how similar a column's name is to the most similar name of a concept."""
    own = words_of(column)
    return max((_of_two(own, words_of(name)) for name in names), default=0.0)


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case without accents. Words such as "the" or "value" are skipped."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    words = tuple(word.casefold() for word in _WORD.findall(plain))
    return tuple(word for word in words if word not in _EMPTY) or words


def _of_two(own: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Return how similar two names are: the harmonic mean of each name's fraction of letters in matching words."""
    if not own or not other:
        return 0.0
    if "".join(own) == "".join(other):
        return 1.0
    partners = [0.0] * len(other)
    found = 0.0
    for word in own:
        start, length, degree = max(_matches(word, other), key=lambda match: (match[2], match[1]))
        found += len(word) * degree
        for place in range(start, start + length):
            partners[place] = max(partners[place], degree)
    share = found / sum(map(len, own))
    covered = sum(len(word) * degree for word, degree in zip(other, partners, strict=True)) / sum(map(len, other))
    return 0.0 if share + covered == 0.0 else 2.0 * share * covered / (share + covered)


def _matches(word: str, other: tuple[str, ...]) -> Iterator[tuple[int, int, float]]:
    """Yield each match of a word with consecutive words: position of the first word, number of words, similarity."""
    for start in range(len(other)):
        yield start, 1, _of_words(word, other[start])
        for length in range(2, min(_MOST_WORDS, len(other) - start) + 1):
            if _abbreviates(word, other[start : start + length]):
                yield start, length, _ABBREVIATION


def _of_words(one: str, other: str) -> float:
    if one == other:
        return 1.0
    short, long = sorted((one, other), key=len)
    if len(short) >= _SHORTEST_BEGINNING and long.startswith(short):
        return _BEGINNING
    alike = difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
    return alike if alike >= _ALIKE and len(short) > _SHORTEST_BEGINNING else 0.0


def _abbreviates(word: str, words: tuple[str, ...]) -> bool:
    """Whether a word abbreviates several words by the first letters of each, as `bp` does for blood pressure."""
    if not words:
        return not word
    return any(
        word.startswith(words[0][:length]) and _abbreviates(word[length:], words[1:])
        for length in range(1, len(words[0]) + 1)
        if length <= len(word)
    )
