"""Masked vectors: each step has one, places only increase, and masks computed ahead are used for their set alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from host.record_store import Store
from protos.masking.answered_sets import Answer
from protos.masking.masking_refusals import MaskingRefused, Reason
from site_agent.gate.masked_steps import MaskedSteps

SITES = frozenset("abc")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A gate's store."""
    with closing(Store(tmp_path / "gate.sqlite")) as opened:
        yield opened


def _steps_of(store: Store, run: str = "run") -> MaskedSteps:
    return MaskedSteps(store, Answer(run, SITES, "rule"))


def _hash(of: object) -> bytes:
    return sha256(str(of).encode()).digest()


def _add(steps: MaskedSteps, step: int, attempt: int, vector: object = None, position: object = None) -> None:
    given = _hash(step if position is None else position)
    steps.add(step, attempt, given, _hash(("vector", step if vector is None else vector)))


REFUSED: dict[str, tuple[Callable[[MaskedSteps], object], Reason]] = {
    "an earlier step": (lambda steps: _add(steps, 2, 5), Reason.NOT_INCREASING),
    "the same attempt": (lambda steps: _add(steps, 4, 1), Reason.NOT_INCREASING),
    "an earlier attempt": (lambda steps: _add(steps, 4, 0), Reason.NOT_INCREASING),
    "another vector": (lambda steps: _add(steps, 4, 2, vector="other"), Reason.OTHER_VECTOR),
    "other received bytes": (lambda steps: _add(steps, 4, 2, position="other"), Reason.OTHER_POSITION),
    "another vector for an earlier step": (lambda steps: _add(steps, 3, 1, vector="other"), Reason.OTHER_VECTOR),
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_never_masked(what: str, store: Store, *, is_restarted: bool) -> None:
    """The same before and after a restart, and nothing is written."""
    ask, reason = REFUSED[what]
    steps = _steps_of(store)
    for step, attempt in ((3, 0), (4, 0), (4, 1)):
        _add(steps, step, attempt)
    before = store.read("SELECT * FROM masked")

    with pytest.raises(MaskingRefused) as caught:
        ask(_steps_of(store) if is_restarted else steps)

    assert caught.value.reason is reason
    assert store.read("SELECT * FROM masked") == before


def test_a_step_is_repeated_with_the_same_vector(store: Store) -> None:
    """A repeated attempt, an earlier step, and the next step. Another run has its own steps."""
    steps = _steps_of(store)
    for step, attempt in ((3, 0), (4, 1), (4, 2), (3, 1), (5, 0)):
        _add(steps, step, attempt)
    _add(_steps_of(store, "another"), 3, 0, vector="other")

    assert len(store.read("SELECT * FROM masked")) == 6


def test_only_runs_that_were_masked_and_are_counted_are_compared(store: Store) -> None:
    """A run that began and masked nothing has answered nothing. Persons exclude a run by its name."""
    for run in ("first", "second"):
        _add(_steps_of(store, run), 0, 0)
    _steps_of(store, "third")

    assert _steps_of(store, "fourth").answered_beside(["second"]) == [Answer("first", SITES, "rule")]
    assert _steps_of(store, "first").answered_beside(()) == [Answer("second", SITES, "rule")]


@pytest.mark.parametrize("table", ["masked", "answered"])
@pytest.mark.parametrize("act", ["DELETE FROM {}", "UPDATE {} SET run = 'another'"])
def test_no_row_is_changed_or_deleted(tmp_path: Path, store: Store, table: str, act: str) -> None:
    """The store itself refuses it."""
    _add(_steps_of(store), 0, 0)

    with closing(sqlite3.connect(tmp_path / "gate.sqlite")) as other, pytest.raises(sqlite3.IntegrityError):
        other.execute(act.format(table))
