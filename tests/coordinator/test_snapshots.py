"""Snapshots are complete or absent, the last two are kept, and a changed one is never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.rounds.course import Course
from coordinator.storage.snapshots import RoundState, Snapshot, forget_after, read_snapshot, rounds_in, write_snapshot
from tests.for_each import for_each


def a_snapshot(number: int) -> Snapshot:
    """A small one, whose values follow from its round."""
    generator = np.random.default_rng(number)
    state = RoundState(
        round=number,
        course=Course(curve=((1, 0.5), (2, 0.25)), best=(2, 0.25)),
        values=generator.normal(size=20).astype(np.float32),
        rule_state={"first moment": generator.normal(size=20), "second moment": generator.normal(size=20)},
    )
    return Snapshot(state, journal_lines=7)


def test_a_snapshot_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Parameters, the rule's memory in float64, the course and who contributed."""
    snapshot = a_snapshot(3)
    write_snapshot(tmp_path, snapshot)

    found = read_snapshot(tmp_path, 3)

    assert found is not None
    assert found.state.course == snapshot.state.course
    assert (found.state.round, found.journal_lines) == (3, 7)
    assert found.state.values.tobytes() == snapshot.state.values.tobytes()
    assert {name: array.tobytes() for name, array in found.state.rule_state.items()} == {
        name: array.tobytes() for name, array in snapshot.state.rule_state.items()
    }


def test_the_last_two_are_kept_and_later_ones_forgotten_on_the_way_back(tmp_path: Path) -> None:
    """A third snapshot removes the first; whoever goes back removes what comes after."""
    for number in (1, 4, 9):
        write_snapshot(tmp_path, a_snapshot(number))

    assert rounds_in(tmp_path) == [4, 9]
    forget_after(tmp_path, 4)
    assert rounds_in(tmp_path) == [4]


@for_each("seed", range(20))
def test_a_damaged_snapshot_is_not_believed(tmp_path: Path, seed: int) -> None:
    """After a flipped bit or a cut anywhere it counts as absent, so the run returns to the previous one."""
    write_snapshot(tmp_path, a_snapshot(3))
    (path,) = tmp_path.iterdir()
    content, luck = path.read_bytes(), np.random.default_rng(seed)
    changed = bytearray(content)
    changed[int(luck.integers(len(content)))] ^= 1 << int(luck.integers(8))

    for damaged in (bytes(changed), content[: int(luck.integers(len(content)))], b""):
        path.write_bytes(damaged)
        assert read_snapshot(tmp_path, 3) is None
    assert read_snapshot(tmp_path, 4) is None
