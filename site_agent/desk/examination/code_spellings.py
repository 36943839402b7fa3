"""Finds codes with the same meaning but two spellings in one column, such as M and male.

Two spellings would become two categories of the same patients. A person looks at the rows and decides. The rules:

* codes that differ only in capitals, blanks or marks are two spellings;
* words of one meaning are two spellings, such as M and male;
* words of a known meaning together with two or more numbers are two spellings, such as F and M with 0 and 1. Other
  words are, if there are as many words as numbers.

Only codes that a contract declares or a draft lists are compared. No other cell is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Words of the same meaning, in the languages of known exports, in lower case and with letters and digits only.
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
    """Codes that are spelt in one way, and codes of the same meaning that are spelt in another way."""

    one: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def words(self) -> str:
        """The finding about two spellings as a text for people, without a full stop."""
        return f"codes with the same meaning have two spellings: {_listed(self.one)}, but also {_listed(self.other)}"


def two_spellings(codes: Sequence[str]) -> TwoSpellings | None:
    """Return codes of one column that seem to be two spellings of the same codes. Return None if there are none."""
    by_letters: dict[str, list[str]] = {}
    for code in codes:
        # Signs and comparisons are kept, because they have a meaning: -1 and 1, < 5 and > 5.
        has_sign = any(letter in "+-<>=.,/" for letter in code)
        by_letters.setdefault(code if has_sign else _letters(code), []).append(code)
    twice = [alike for alike in by_letters.values() if len(alike) > 1]
    if not twice:
        found = [[code for code in codes if _letters(code) in meaning] for meaning in _MEANINGS]
        twice = [alike for alike in found if len(alike) > 1]
    if twice:
        return TwoSpellings(one=tuple(alike[0] for alike in twice), other=tuple(alike[1] for alike in twice))
    numbers = [code for code in codes if is_plain_number(code)]
    words = [code for code in codes if not any(letter.isdigit() for letter in code)]
    words = [code for code in words if _letters(code) not in _NO_VALUE]
    is_known = any(_letters(code) in _KNOWN for code in words)
    if len(numbers) < 2 or not (is_known or len(words) == len(numbers)):
        return None
    return TwoSpellings(one=tuple(numbers), other=tuple(words))


def _letters(code: str) -> str:
    return "".join(letter for letter in code.casefold() if letter.isalnum()) or code


def is_plain_number(code: str) -> bool:
    """Return whether a code is a plain number, such as -1. A spreadsheet does not treat such a code as a formula."""
    return code.removeprefix("-").replace(".", "", 1).isdecimal()


def _listed(codes: Sequence[str]) -> str:
    return " and ".join(codes) if len(codes) < 3 else f"{', '.join(codes[:-1])} and {codes[-1]}"
