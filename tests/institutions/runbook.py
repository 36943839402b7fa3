"""The runbook as steps that can be followed: files that are written and commands with what they answer."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs/office.md"
_BLOCK: Final = re.compile(r"^```(console|yaml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class File:
    """A file that somebody writes at an institution."""

    path: str
    where: str
    content: str


@dataclass(frozen=True)
class Commands:
    """Lines that a person types at an institution, and their output; `...` stands for any text. `how` says what else
    there is to say of it, as `on a new computer`, or `refused` for a failure that is meant."""

    where: str
    how: str
    lines: tuple[str, ...]
    answer: str


def steps(heading: str, page: Path = PAGE) -> tuple[File | Commands, ...]:
    """The steps of one section of the runbook or of a page like it, in their order."""
    section = re.split(rf"^## {re.escape(heading)}\n", page.read_text(), flags=re.MULTILINE)[1]
    return tuple(_steps(re.split(r"^## ", section, flags=re.MULTILINE)[0]))


def is_answered(answer: str, said: str) -> bool:
    """Whether the output is the one that the runbook shows."""
    checker = doctest.OutputChecker()
    return checker.check_output(
        f"{answer.strip()}\n", f"{said.strip()}\n", doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )


def _steps(section: str) -> Iterator[File | Commands]:
    blocks = _BLOCK.findall(section)
    for place, (kind, text) in enumerate(blocks):
        first, _, rest = text.partition("\n")
        if kind == "yaml":
            path, _, where = first.removeprefix("# ").partition(" at ")
            yield File(path, where, rest)
        elif kind == "console":
            where, _, how = first.removeprefix("# at ").partition(", ")
            answer = blocks[place + 1][1] if place + 1 < len(blocks) and blocks[place + 1][0] == "text" else ""
            yield Commands(where, how, tuple(rest.splitlines()), answer)
