"""The display of a running coordinator at a terminal: one line with a bar, below the log.

Under a service manager nothing is drawn; there `coordinator status`, the page and the journal tell the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from coordinator.operations.status_lines import span

Status: TypeAlias = Callable[[], dict[str, Any]]  # Any: whatever JSON holds
_LOOK_SECONDS: Final = 0.5
_MOST_NAMES: Final = 3


def shown(status: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the text, the completed rounds and all rounds, as the bar shows them.

    Args:
        status: as Engine.status gives it.
    """
    run = status["run"]
    if run is None:
        unaware = status["yet_to_hear_of_the_end"]
        return (f"all is over; yet to hear so: {_few(unaware)}" if unaware else "no run"), 0, 1
    phase = "[yellow]paused[/yellow]" if status["paused"] else run["phase"]
    waits = f", waits for {_few(status['waits_for'])}" if status["waits_for"] else ""
    if concluding := status.get("concluding"):
        have, sites = concluding["have_result"], concluding["sites"]
        return f"[bold]{escape(run['run'])}[/bold]: sites take in the result{waits}", have, max(1, sites)
    pace = status["pace"]
    left = f", {span(pace['seconds_left'])} left" if pace and pace["seconds_left"] is not None else ""
    return f"[bold]{escape(run['run'])}[/bold]: {phase}{waits}{left}", run["rounds_made"], max(1, run["rounds"])


def drawn_on(console: Console) -> Callable[[Status], None]:
    """Return a function that draws a status until the loop ends. Without a terminal it draws nothing."""
    held: list[asyncio.Task[None]] = []  # the loop alone would forget a task that nobody holds

    def watch(status: Status) -> None:
        if console.is_terminal:
            held.append(asyncio.get_running_loop().create_task(_draw(status, console)))

    return watch


async def _draw(status: Status, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    with progress, suppress(asyncio.CancelledError):
        task = progress.add_task("", total=1)
        while True:
            words, made, rounds = shown(status())
            progress.update(task, description=words, completed=made, total=rounds)
            await asyncio.sleep(_LOOK_SECONDS)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return escape(", ".join(names[:_MOST_NAMES])) + more
