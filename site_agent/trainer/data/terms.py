"""Defines columns with lists of codes and notes, counts their terms (codes or words), and weights the counts.

A cell has several terms: codes of a list, such as diagnoses or drugs, or words of a note. A rule that reads no other
row gives each term its place: the position among the declared codes, or a bucket of a hash (cell_rules.py). So the
columns follow from the declaration alone, and no site's codes or words are in a name that leaves the site. No cell of
such a column is stored, shown or logged, because a note may name its patient.

The weights are TF-IDF, then MaxAbs, as in FENDA-FL's GEMINI tasks (Tavakoli et al. 2024, appendix E), with the formulas
of scikit-learn's TfidfTransformer and MaxAbsScaler. They are fitted to the training rows and stay at the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, model_validator

from protos.plan.documents import Document
from protos.plan.networks.transformer_networks import LONGEST_NOTE, NoteSize
from site_agent.trainer.data.cell_rules import Flaw, TermsRule, folded
from site_agent.trainer.data.codes import UNKNOWN, Code, Name, Words, check_codes, check_distinct
from site_agent.trainer.data.mistakes import Mistakes, unusable


def _quoted(value: object) -> object:
    # YAML reads 250.00 as a number. Then the spelling of the code in the table is lost.
    if not isinstance(value, str):
        raise ValueError("put this code in quotes, as it is in the table")
    return value.strip()


Term = Annotated[str, BeforeValidator(_quoted)]


class TermsFeature(Document):
    """A column with a list of codes in each cell, or with a note.

    Attributes:
        type: `codes` is a list with a separator; `text` is read as words of two or more letters and digits.
        separator: the character between two codes of a list.
        codes: the declared codes of a list. Each has a column, and one column counts all others.
        buckets: the number of columns of hashed terms. A list has either codes or buckets. A note has buckets.
        longest: how many words of a note are also read in their order. Without this key words are only counted.
        missing: `empty` counts a missing value as a list without a code; `refuse` makes it an error.
    """

    name: Name
    role: Literal["feature"]
    type: Literal["codes", "text"]
    separator: Literal[";", "|", ",", " "] = ";"
    codes: tuple[Term, ...] | None = None
    buckets: int | None = Field(default=None, ge=2, le=2048)
    longest: int | None = Field(default=None, ge=2, le=LONGEST_NOTE)
    missing: Literal["empty", "refuse"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    required: bool = True
    note: Words | None = None

    @model_validator(mode="after")
    def _usable(self) -> TermsFeature:
        if (self.codes is None) == (self.buckets is None):
            raise ValueError("a list has either codes or buckets, and a note has buckets")
        if self.type == "text" and (self.codes is not None or self.separator != ";"):
            raise ValueError("a note has words: codes and separator are for a list, with type: codes")
        if self.type == "codes" and self.longest is not None:
            raise ValueError("the codes of a list have no order: longest is for a note, with type: text")
        if self.codes is not None:
            check_codes(self.codes, fewest=1)
            check_distinct([folded(code) for code in self.codes], "these codes differ only in capital letters")
            if any(self.separator in code for code in self.codes):
                raise ValueError("a code contains the separator")
            if UNKNOWN in map(folded, self.codes):
                raise ValueError(f'the code "{UNKNOWN}" is reserved; declare it as one of missing_markers instead')
            if len(self.codes) >= 2048:
                raise ValueError("at most 2,047 codes can be declared; use buckets")
        if not self.required and self.missing == "refuse":
            raise ValueError("a column that may be absent cannot refuse missing values")
        return self

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns into which this list or note is encoded for a network."""
        name = self.name.lower()
        if self.codes is not None:
            return tuple(f"{name}={code}" for code in (*self.codes, UNKNOWN))
        return (
            *(f"{name} in bucket {place} of {self.buckets}" for place in range(1, (self.buckets or 0) + 1)),
            *(f"{name} at place {place} of {self.longest}" for place in range(1, (self.longest or 0) + 1)),
        )

    @property
    def counted(self) -> int:
        """The number of columns that count terms. Columns for words in order come after these columns."""
        return len(self.encoded_columns) - (self.longest or 0)

    @property
    def note_size(self) -> NoteSize | None:
        """The size limits of this note if a neural network reads it in word order. Otherwise None."""
        if self.buckets is None or self.longest is None:
            return None
        return NoteSize(buckets=self.buckets, longest=self.longest)

    def rule(self, markers: tuple[str, ...]) -> TermsRule:
        """Return the rule for reading a cell of this column. `markers` are texts that mean a missing value."""
        return TermsRule(
            {"", *markers, *self.missing_markers},
            refuses_missing=self.missing == "refuse",
            separator=self.separator if self.type == "codes" else None,
            codes=self.codes,
            buckets=self.buckets,
            longest=self.longest,
        )


# The limit is the same as for images. After encoding, this number of values needs 1 GiB.
LARGEST_TABLE_COUNTS: Final = 1 << 28

Counts: TypeAlias = npt.NDArray[np.uint16]


class TermsReader:
    """Reads the lists and notes of a table, block by block."""

    def __init__(self, columns: Sequence[TermsFeature], markers: tuple[str, ...]) -> None:
        self._rules = {column.name: column.rule(markers) for column in columns}
        self._width = sum(rule.width for rule in self._rules.values())
        self._blocks: dict[str, list[Counts]] = {name: [] for name in self._rules}

    def reserve(self, rows: int) -> None:
        """Raise DataError if a table with so many rows needs more memory than this program reserves."""
        if rows * self._width > LARGEST_TABLE_COUNTS:
            raise unusable(
                what=f"The lists and notes become {self._width} columns, and the table has at least {rows} rows. With "
                f"this number of columns, this program reads at most {LARGEST_TABLE_COUNTS // self._width} rows.",
                remedy="Declare fewer buckets or codes in the contract, or use fewer rows.",
            )

    def take(self, name: str, cells: Sequence[str], rows: npt.NDArray[np.int64], mistakes: Mistakes) -> None:
        """Count the terms in cells of a column, and record mistakes. `rows` has the row number of each cell."""
        rule = self._rules[name]
        counts = np.zeros((len(cells), rule.width), dtype=np.uint16)  # a cell has fewer terms than uint16 can count
        flaws: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            found = rule.read(cell)
            if isinstance(found, Flaw):
                flaws.setdefault(found.words, []).append(int(rows[place]))
            else:
                counts[place, list(found)] = list(found.values())
        self._blocks[name].append(counts)
        for words, numbers in flaws.items():
            mistakes.add(words, numbers, column=name)

    def counts(self, rows: int) -> dict[str, Counts]:
        """Return the counts of each column, uint16 of shape (rows, columns). A missing column has zeros."""
        found = {}
        for name, blocks in self._blocks.items():
            width = self._rules[name].width
            found[name] = np.concatenate(blocks) if blocks else np.zeros((rows, width), dtype=np.uint16)
            found[name].flags.writeable = False
        return found


class TermWeights(Document):
    """The rarity of each term in the training rows: ln((1 + rows) / (1 + rows with the term)) + 1, for each column.

    `largest` is the largest weight of a training row in each column, 1 if no training row has the term.
    """

    rarity: tuple[Annotated[float, Field(ge=1)], ...]
    largest: tuple[Annotated[float, Field(gt=0)], ...]


def fit_terms(counts: Counts) -> TermWeights:
    """Compute the weights of terms from `counts` of at least one training row: uint16 of shape (rows, columns)."""
    rows, has_term = len(counts), np.count_nonzero(counts, axis=0)
    rarity = np.log((1 + rows) / (1 + has_term)) + 1
    ones = np.ones(counts.shape[1])
    largest = weighted(counts, TermWeights(rarity=tuple(rarity.tolist()), largest=tuple(ones.tolist()))).max(axis=0)
    largest = np.where(largest > 0, largest, ones)
    return TermWeights(rarity=tuple(rarity.tolist()), largest=tuple(largest.astype(np.float64).tolist()))


def weighted(counts: Counts, weights: TermWeights) -> npt.NDArray[np.float32]:
    """Return the weights of counted terms, TF-IDF and then MaxAbs: float32 of the counts' shape.

    A weight is count times rarity, scaled so that each row has length one, then divided by the column's largest weight.
    """
    found = counts.astype(np.float32)
    found *= np.array(weights.rarity, dtype=np.float32)
    # Every rarity is at least 1. So only an empty row has a length below 1, and this row stays zero.
    found /= np.maximum(np.sqrt(np.einsum("ij,ij->i", found, found)), np.float32(1))[:, None]
    found /= np.array(weights.largest, dtype=np.float32)
    return found


def in_order(codes: Counts, buckets: int) -> npt.NDArray[np.float32]:
    """Return the hash buckets of a note's words as fractions, 0 to 1, in word order: float32 of the shape of `codes`.

    As shares they are no larger than other columns, for models that read them as numbers. 0 means no word.
    """
    return codes.astype(np.float32) / np.float32(buckets)
