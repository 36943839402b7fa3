"""Shows the records of an audit log on one line each.

A record counts rounds from 0, as the protocol does. Everything that people read here counts them from 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Facts: TypeAlias = Mapping[str, Any]

_SHOWN_APART: Final = ("event", "time", "software")


def in_words(facts: Facts) -> str:
    """Return a record as one sentence: the event, and its facts by name."""
    name, shown = str(facts.get("event", "record")).replace("_", " "), from_one(facts)
    rest = ", ".join(f"{key.replace('_', ' ')} {_shown(shown[key])}" for key in shown if key not in _SHOWN_APART)
    return f"{name[:1].upper()}{name[1:]}{': ' if rest else ''}{rest}."


def from_one(facts: Facts) -> Facts:
    """Return the facts of a record for people, with rounds counted from 1. The log counts rounds from 0."""
    number = facts.get("round")
    return {**facts, "round": number + 1} if isinstance(number, int) else facts


def line(number: int, facts: Facts) -> str:
    """Return one line about a record for a terminal. Replace control characters in texts from other programs."""
    text = f"{number:>7}  {facts.get('time', ''):<29}  {in_words(facts)}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return json.dumps(value, sort_keys=True)
        case _:
            return str(value)
