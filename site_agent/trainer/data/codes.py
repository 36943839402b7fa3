"""Checks the codes, names and markers of a contract, and defines the form in which codes are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from site_agent.trainer.data.cell_rules import canonical_code

UNKNOWN: Final = "unknown"


def _as_text(value: object) -> object:
    # YAML reads an unquoted 3 as a number and an unquoted true as a truth value. The number can be written as text
    # again. From a truth value, the spelling of the code in the table cannot be restored.
    if isinstance(value, bool):
        raise ValueError("write this code in quotes, as in the table, because YAML reads it as true or false")
    return str(value) if isinstance(value, int | float) else value


def _name(value: str) -> str:
    if not value or value != value.strip() or not value.isprintable():
        raise ValueError("a column's name is printable text without blanks at its ends")
    return value


Code = Annotated[str, BeforeValidator(_as_text), AfterValidator(canonical_code)]
Name = Annotated[str, AfterValidator(_name)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


def check_codes(codes: Sequence[str], *, fewest: int) -> None:
    """Raise ValueError if a column declares too few codes, an empty code, or the same code twice."""
    if len(codes) < fewest:
        raise ValueError(f"at least {fewest} code{'s are' if fewest > 1 else ' is'} needed")
    if "" in codes:
        raise ValueError("a code cannot be empty; an empty cell is a missing value")
    check_distinct(codes, "these codes are the same (numbers compare by value)")


def check_labels(labels: Sequence[str] | None, codes: Sequence[str]) -> None:
    """Raise ValueError if a column does not have exactly one label for each code."""
    if labels is not None and len(labels) != len(codes):
        raise ValueError(f"labels name each code once, in the order of codes: {len(codes)}, not {len(labels)}")


def check_distinct(names: Sequence[str], words: str) -> None:
    """If a name occurs more than once, raise a ValueError that lists the first of these names."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{words}: {', '.join(twice[:5])}")
