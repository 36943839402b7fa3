"""Codes, names and markers: their written form, their compared form, and codes that two systems wrote in two ways.

Two spellings, such as 0 and 1 beside F and M, would become two categories although they mean the same patients. Nothing
is decided here: a person looks at the rows. The rules:

* codes that differ only in capitals, blanks or marks are two spellings;
* words of one meaning are two spellings, such as M and male;
* words of a known meaning beside two or more numbers are two spellings, and so are as many words as numbers.

Only codes are looked at, which a contract declares or a draft lists. No other cell is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from site_agent.trainer.data.cell_rules import canonical_code

__all__ = ["UNKNOWN", "Code", "Name", "Words", "canonical_code", "check_codes", "check_distinct", "check_labels"]

UNKNOWN: Final = "unknown"


def _as_text(value: object) -> object:
    # YAML reads an unquoted 3 as a number and an unquoted true as a truth value. The number's text is clear; of
    # the truth value nobody can tell any more how the table spells it.
    if isinstance(value, bool):
        raise ValueError("put this code in quotes, as it stands in the table; YAML reads it as true or false")
    return str(value) if isinstance(value, int | float) else value


def _name(value: str) -> str:
    if not value or value != value.strip() or not value.isprintable():
        raise ValueError("a column's name is printable text without blanks at its ends")
    return value


Code = Annotated[str, BeforeValidator(_as_text), AfterValidator(canonical_code)]
Name = Annotated[str, AfterValidator(_name)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


def check_codes(codes: Sequence[str], *, fewest: int) -> None:
    """Raise ValueError if codes are too few, empty or declared twice."""
    if len(codes) < fewest:
        raise ValueError(f"at least {fewest} code{'s are' if fewest > 1 else ' is'} needed")
    if "" in codes:
        raise ValueError("a code cannot be empty; an empty cell is a missing value")
    check_distinct(codes, "these codes are the same (numbers compare by value)")


def check_labels(labels: Sequence[str] | None, codes: Sequence[str]) -> None:
    """Raise ValueError if the number of labels differs from the number of codes."""
    if labels is not None and len(labels) != len(codes):
        raise ValueError(f"labels name each code once, in the order of codes: {len(codes)}, not {len(labels)}")


def check_distinct(names: Sequence[str], words: str) -> None:
    """Raise ValueError with the first names that occur more than once."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{words}: {', '.join(twice[:5])}")


# By meaning, in the languages whose exports were met; small letters and digits only.
_MEANINGS: Final = (
    frozenset({"m", "male", "man", "mann", "männlich", "maennlich", "masculin", "homme", "hombre", "maschio"}),
    frozenset({"f", "w", "female", "woman", "frau", "weiblich", "féminin", "feminin", "femme", "mujer", "femmina"}),
    frozenset({"y", "j", "yes", "ja", "oui", "si", "sí", "true", "t", "wahr"}),
    frozenset({"n", "no", "nein", "non", "false", "falsch"}),
    frozenset({"pos", "positive", "positiv"}),
    frozenset({"neg", "negative", "negativ"}),
    frozenset({"present", "vorhanden"}),
    frozenset({"absent", "nichtvorhanden"}),
)
_KNOWN: Final = frozenset().union(*_MEANINGS)
_NO_VALUE: Final = frozenset({"other", "others", "andere", "autre", "unspecified", "refused", "divers", "d", "x"})


@dataclass(frozen=True, kw_only=True)
class TwoSpellings:
    """Codes written in one way, and codes of the same meaning that are written in another."""

    one: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def words(self) -> str:
        """The finding as a text for people, without a full stop."""
        return f"codes are written in two ways: {_listed(self.one)} beside {_listed(self.other)}"


def two_spellings(codes: Sequence[str]) -> TwoSpellings | None:
    """Return the codes of one column that seem to have two spellings, or None."""
    by_letters: dict[str, list[str]] = {}
    for code in codes:
        # A sign or a comparison is a meaning: -1 and 1, < 5 and > 5.
        has_sign = any(letter in "+-<>=.,/" for letter in code)
        by_letters.setdefault(code if has_sign else _letters(code), []).append(code)
    twice = [alike for alike in by_letters.values() if len(alike) > 1]
    if not twice:
        found = [[code for code in codes if _letters(code) in meaning] for meaning in _MEANINGS]
        twice = [alike for alike in found if len(alike) > 1]
    if twice:
        return TwoSpellings(one=tuple(alike[0] for alike in twice), other=tuple(alike[1] for alike in twice))
    numbers = [code for code in codes if _is_number(code)]
    words = [code for code in codes if not any(letter.isdigit() for letter in code)]
    words = [code for code in words if _letters(code) not in _NO_VALUE]
    is_known = any(_letters(code) in _KNOWN for code in words)
    if len(numbers) < 2 or not (is_known or len(words) == len(numbers)):
        return None
    return TwoSpellings(one=tuple(numbers), other=tuple(words))


def _letters(code: str) -> str:
    return "".join(letter for letter in code.casefold() if letter.isalnum()) or code


def _is_number(code: str) -> bool:
    return code.removeprefix("-").replace(".", "", 1).isdecimal()


def _listed(codes: Sequence[str]) -> str:
    return " and ".join(codes) if len(codes) < 3 else f"{', '.join(codes[:-1])} and {codes[-1]}"
