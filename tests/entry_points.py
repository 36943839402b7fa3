"""Commands as a shell would call them, in this process, and the form of their errors."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass
class Terminal:
    """The real entry point of a program, as a shell would call it."""

    program: str
    main: Callable[[], object]
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    out: str = ""
    err: str = ""

    def __call__(self, *words: object) -> int:
        """Run a command; its exit status."""
        self.monkeypatch.setattr(sys, "argv", [self.program, *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            self.main()
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.out + self.err
        code = ended.value.code
        return code if isinstance(code, int) else 0

    def collects(self, place: str, *words: object) -> bool:
        """Return whether Python's collector is on when a command calls the coroutine at this place."""
        found = []

        async def run(*_: object) -> bool:
            found.append(gc.isenabled())
            return True

        self.monkeypatch.setattr(place, run)
        assert self(*words) == 0
        gc.unfreeze()  # the other tests' objects
        return found == [True]


def assert_three_sentences(text: str, program: str = "site-agent") -> None:
    """Three sentences: the event, its meaning for the data, and the action to take."""
    assert text.startswith(f"{program}: ")
    *_, consequence, remedy = text.rstrip("\n").splitlines()
    assert re.fullmatch(r"  [A-Z`].*\.", consequence), text
    assert re.fullmatch(r"  [A-Z`].*\.", remedy), text
