"""The nearest known name to one that nobody knows, in the words with which every program tells it; pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Half of the letters at their places: a slip is found, and an unlike name is answered with all that are known.
_LIKENESS: Final = 0.5


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that is most like this one, whatever its capitals; None where none is like it."""
    by_small_letters = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=_LIKENESS)
    return by_small_letters[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean fedprox?`, or `known are fedavg, fedprox` where no known name is like it."""
    names = list(known)
    near = nearest_name(name, names)
    return f"did you mean {near}?" if near is not None else f"known are {', '.join(sorted(names))}"
