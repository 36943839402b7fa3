"""Send mutated inputs to a decoder, with bounds of memory and time, guided by new behaviour. An input that ends in a
new way, or (every sixteenth is traced) runs a line of this project that none ran before, joins the examples from which
further inputs are made. The seed decides everything, if the decoder is deterministic."""

from __future__ import annotations

import random
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.mutator import mutated
from tests.fuzz.targets import Target

PROJECT = str(Path(__file__).parents[2])
LONGEST_SECONDS = 5.0  # for one input; a thousand times what a right one needs
MEMORY_BYTES = 1 << 30  # beyond what the process has at the start
MOST_KEPT = 2000
_TRACED_EVERY = 16
_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9]+|'[^']*'|\"[^\"]*\"")


class TooSlow(BaseException):  # as a signal is: no handler of the decoder sees it
    """One input took longer than the limit."""


@dataclass(frozen=True)
class Finding:
    """An input that a decoder did not handle, and the result."""

    raw: bytes = field(repr=False)
    what: str


@dataclass
class Feeding:
    """How far a target has been fed."""

    inputs: int = 0
    accepted: int = 0
    kept: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def feed(target: Target, *, seed: int, inputs: int, seconds: float = float("inf")) -> Feeding:
    """Feed the target this number of inputs, or for this time. Everything is drawn from the seed."""
    luck, pool, done = random.Random(seed), list(target.examples), Feeding()
    known: set[str] = set()
    lines: set[tuple[str, int]] = set()
    began = time.monotonic()
    while done.inputs < inputs and done.seconds < seconds:
        raw = mutated(luck, pool, is_text=target.is_text)
        before = len(lines)
        at = time.perf_counter()
        ending = _ending(target, raw, lines if done.inputs % _TRACED_EVERY == 0 else None, done)
        done.slowest_seconds = max(done.slowest_seconds, time.perf_counter() - at)
        done.inputs += 1
        if (ending not in known or len(lines) > before) and len(pool) < MOST_KEPT:
            pool.append(raw)
            done.kept += 1
        known.add(ending)
        done.seconds = time.monotonic() - began
    return done


def _ending(target: Target, raw: bytes, lines: set[tuple[str, int]] | None, done: Feeding) -> str:
    """Return in one word how a decoder ended. A forbidden end becomes a finding."""
    try:
        with _timed(), _traced(lines):
            word = target.decode(raw)
    except target.errors as error:
        return f"{type(error).__name__}: {_VARIABLE.sub('', str(error))[:200]}"
    except (Exception, TooSlow) as unexpected:
        what = f"{type(unexpected).__name__}: {str(unexpected)[:300]}"
        done.findings.append(Finding(raw, what))
        return what
    done.accepted += 1
    return word


@contextmanager
def _timed() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, earlier)


@contextmanager
def _traced(lines: set[tuple[str, int]] | None) -> Iterator[None]:
    """Record which lines of this project run; with None nothing is recorded."""
    if lines is None:
        yield
        return

    def local(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def entered(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return local if frame.f_code.co_filename.startswith(PROJECT) else None

    earlier = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(earlier)


@contextmanager
def bounded_memory(more_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Limit this process to this much more address space than now. A larger request fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
