"""An event loop whose clock jumps: an hour's deadline passes at once, and deadlines keep their order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """Nothing waits: where the loop would sleep, the clock moves instead."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """What is ready now."""
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self.seconds += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.seconds

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do the work of a thread at once, because time would jump while another thread works."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def play(scene: Coroutine[Any, Any, Result]) -> Result:
    """Run a scene to its end in made-up time; what it returns."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(scene)
