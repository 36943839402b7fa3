"""Measures how similar the name of a column is to the name of a concept. Only the name of a column is read.

A name is split into words at capitals, digits and signs. Two words are similar if they are equal, if one begins with
the other, or if they differ by a letter. One word can abbreviate several: `bp` is blood pressure, and `exang` is
exercise angina.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
_EMPTY: Final = frozenset({"at", "of", "the", "in", "on", "value", "values", "baseline", "admission", "column", "col"})
_ABBREVIATION: Final = 0.8  # similarity of a word and several words that it abbreviates by their first letters
_BEGINNING: Final = 0.85
_ALIKE: Final = 0.8  # if at least this fraction of letters is equal, two words are treated as one misspelt word
_SHORTEST_BEGINNING: Final = 3
_MOST_WORDS: Final = 4  # words that one word abbreviates


def likeness(column: str, names: Sequence[str]) -> float:
    """Return how similar a column's name is to the nearest name of a concept, from 0 to 1.

    Args:
        column: the column's name in the table.
        names: of one concept, including its synonyms.
    """
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
    """Yield each match of a word with consecutive words: place of the first word, number of words, similarity."""
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
