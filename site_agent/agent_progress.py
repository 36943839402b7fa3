"""The display of a running agent at a terminal: one line with a bar, below the log.

Under a service manager nothing is drawn; there `site-agent status` and the journal tell the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_LOOK_SECONDS: Final = 0.5


class Observed(Protocol):
    """What is shown of the agent's standing."""

    @property
    def phase(self) -> str:
        """The phase in a word or two."""

    @property
    def run(self) -> str | None:
        """The run's name."""

    @property
    def round(self) -> int | None:
        """The current round, from 0."""

    @property
    def rounds(self) -> int | None:
        """The number of rounds in the run."""


def bar(console: Console) -> Progress:
    """Return an empty display. Log lines appear above it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def shown(standing: Observed) -> tuple[str, int, int]:
    """Return the text, the started rounds and all rounds, as the bar shows them."""
    begun = 0 if standing.round is None else standing.round + 1
    rounds = standing.rounds or max(begun, 1)
    return f"{standing.run or 'no run'}: {standing.phase}", min(begun, rounds), rounds


def drawn_on(console: Console) -> Callable[[Observed], None]:
    """Return a function that draws the state until the loop ends. Without a terminal it draws nothing."""

    held: list[asyncio.Task[None]] = []  # the loop alone would forget a task that nobody holds

    def watch(standing: Observed) -> None:
        if console.is_terminal:
            held.append(asyncio.get_running_loop().create_task(_draw(standing, bar(console))))

    return watch


async def _draw(standing: Observed, progress: Progress) -> None:
    with progress, suppress(asyncio.CancelledError):
        task = progress.add_task("", total=1)
        while True:
            words, begun, rounds = shown(standing)
            progress.update(task, description=words, completed=begun, total=rounds)
            await asyncio.sleep(_LOOK_SECONDS)
