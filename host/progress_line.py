"""Draws the progress of a running program at a terminal: one line with a bar, below the log.

Under a service manager nothing is drawn. There the command `status` shows the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Shown: TypeAlias = Callable[[], tuple[str, int, int]]  # words with rich's markup, the completed number, and the total
_LOOK_SECONDS: Final = 0.5


def drawn_on(console: Console) -> Callable[[Shown], None]:
    """Return a function that draws a progress bar until the loop ends. Without a terminal it draws nothing."""
    held: list[asyncio.Task[None]] = []  # without this reference the loop would delete the task

    def watch(shown: Shown) -> None:
        if console.is_terminal:
            held.append(asyncio.get_running_loop().create_task(_draw(shown, console)))

    return watch


async def _draw(shown: Shown, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    with progress, suppress(asyncio.CancelledError):
        task = progress.add_task("", total=1)
        while True:
            words, done, total = shown()
            progress.update(task, description=words, completed=done, total=total)
            await asyncio.sleep(_LOOK_SECONDS)
