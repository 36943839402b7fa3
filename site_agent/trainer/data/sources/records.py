"""The records that every source returns: rows of text with their numbers."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import TypeAlias

Record: TypeAlias = tuple[int, list[str]]


def text_of(value: object) -> str | None:
    """Return a value as text, as in a text file; None for bytes, lists and the like.

    Missing values are empty; floats have all their digits; dates are written 2020-01-31, with the time only where
    there is one.
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case float():
            return "" if math.isnan(value) else repr(value)
        case int():
            return str(value)
        case Decimal():
            return "" if value.is_nan() else f"{value:f}"
        case datetime():
            plain = value.replace(tzinfo=None)
            return plain.date().isoformat() if plain.time() == time() else plain.isoformat(sep=" ", timespec="seconds")
        case date():
            return value.isoformat()
        case _:
            return None
