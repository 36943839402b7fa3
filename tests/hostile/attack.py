"""An attack on the real programs: the attempt, and whether it succeeded. An attack is a plain function
`attack(weakened) -> bool`. It plays the attacker against the real code and returns whether the attacker got what it
wanted. With `weakened` true, it runs against a copy that lacks one real check. The copy is made by a context manager
that replaces that check and puts it back (`masking_weakened.py` has examples). If an attack is refused for the wrong
reason, an assertion fails. Each file of attacks has a tuple ATTACKS. `wall.py` collects these tuples, and
`test_wall.py` runs each attack."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.made_up_time import play

Weakened = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Attack:
    """An attack of the wall. `name` is unique and has no spaces. `tries` is one sentence without a full stop; by
    default the first one of what `run` says of itself. `without` names what the weakened copy lacks: "the plan's list
    of identity keys". An attack that `needs_root` becomes other users."""

    name: str
    without: str
    run: Callable[[bool], bool]
    tries: str = ""
    needs_root: bool = False

    @property
    def sentence(self) -> str:
        """Return what the attack tries."""
        return self.tries or " ".join((self.run.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def in_copy(is_weak: bool, weakened: Weakened) -> AbstractContextManager[Any]:
    """Return a context with our program, or with the copy that lacks a protection."""
    return weakened() if is_weak else nullcontext()


@contextmanager
def patched(owner: Any, **changes: Any) -> Iterator[None]:
    """Replace checks of a module or a class, and put them back."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty folder and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        yield Path(folder)


def played(scene: Callable[[Path], Coroutine[Any, Any, bool]], is_weak: bool, weakened: Weakened) -> bool:
    """Play a scene in simulated time, in our program or in its weakened copy. Return the scene's result."""
    with scratch() as folder, in_copy(is_weak, weakened):
        return play(scene(folder))


def as_attack(weakened: Weakened) -> Callable[[Callable[..., Coroutine[Any, Any, bool]]], Callable[..., bool]]:
    """Make an attack of a scene in a folder, which is played in our program or in a copy that is weakened."""
    return lambda scene: wraps(scene)(lambda is_weak, **more: played(partial(scene, **more), is_weak, weakened))
