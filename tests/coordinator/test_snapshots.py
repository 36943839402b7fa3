"""Snapshots are complete or absent, and a changed one is never used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.rounds.course import Course
from coordinator.storage.snapshots import Snapshot, delete_others, read_snapshot, write_snapshot
from tests.for_each import for_each


def _a_snapshot(number: int) -> Snapshot:
    generator = np.random.default_rng(number)
    return Snapshot(
        round=number,
        course=Course(curve=((1, 0.5), (2, 0.25)), best=(2, 0.25)),
        values=generator.normal(size=20).astype(np.float32),
        rule_state={"first moment": generator.normal(size=20), "second moment": generator.normal(size=20)},
    )


def test_a_snapshot_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Parameters, the rule's memory in float64, and the course."""
    snapshot = _a_snapshot(3)
    row = write_snapshot(tmp_path, snapshot)

    found = read_snapshot(tmp_path, row)

    assert found is not None
    assert (found.round, found.course) == (3, snapshot.course)
    assert {name: array.tobytes() for name, array in found.arrays.items()} == {
        name: array.tobytes() for name, array in snapshot.arrays.items()
    }


def test_files_that_no_row_names_are_deleted(tmp_path: Path) -> None:
    """A killed program leaves a part of a file, or a whole file before its row."""
    rows = [write_snapshot(tmp_path, _a_snapshot(number)) for number in (1, 4, 9)]
    (tmp_path / "before-0000000011.partial").write_bytes(b"part")

    delete_others(tmp_path, [4, 9])

    assert [row.round for row in rows if read_snapshot(tmp_path, row) is not None] == [4, 9]
    assert len(list(tmp_path.iterdir())) == 2


@for_each("seed", range(20))
def test_a_damaged_snapshot_is_not_believed(tmp_path: Path, seed: int) -> None:
    """After a flipped bit or a cut anywhere it counts as absent, so the run returns to the previous one."""
    row = write_snapshot(tmp_path, _a_snapshot(3))
    (path,) = tmp_path.iterdir()
    content, luck = path.read_bytes(), np.random.default_rng(seed)
    changed = bytearray(content)
    changed[int(luck.integers(len(content)))] ^= 1 << int(luck.integers(8))

    for damaged in (bytes(changed), content[: int(luck.integers(len(content)))], b""):
        path.write_bytes(damaged)
        assert read_snapshot(tmp_path, row) is None
    path.write_bytes(content)
    assert read_snapshot(tmp_path, replace(row, round=4)) is None
    assert read_snapshot(tmp_path, replace(row, course=row.course.replace("0.25", "0.75"))) is None
