"""Defines a column whose cells have several terms: codes of a list, such as diagnoses or drugs, or words of a note.

A rule that reads no other row gives each term its place: the position among the declared codes, or a bucket of a hash.
So the columns of a list follow from the declaration alone, as for every feature. No site's codes or words are in a name
that leaves the site. cell_rules.py counts the terms, terms.py computes their weights.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from protos.plan.documents import Document
from protos.plan.networks.transformer_networks import LONGEST_NOTE, NoteSize
from site_agent.trainer.data.cell_rules import TermsRule, folded
from site_agent.trainer.data.codes import UNKNOWN, Code, Name, Words, check_codes, check_distinct


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
        """The names of the encoded columns that are computed from the terms."""
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
        """The limits of a note that a neural network reads in word order; None for any other column."""
        if self.buckets is None or self.longest is None:
            return None
        return NoteSize(buckets=self.buckets, longest=self.longest)

    def rule(self, markers: tuple[str, ...]) -> TermsRule:
        """Return the rule for one cell of this column. `markers` mean a missing value in the whole table."""
        return TermsRule(
            {"", *markers, *self.missing_markers},
            refuses_missing=self.missing == "refuse",
            separator=self.separator if self.type == "codes" else None,
            codes=self.codes,
            buckets=self.buckets,
            longest=self.longest,
        )
