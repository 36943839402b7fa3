"""Results on disk: appended lines can be read, and no line is ever incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments import store
from benchmarks.experiments.store import add_rows
from benchmarks.experiments.variants import Row


def rows_of(variant: str, *seeds: int) -> list[Row]:
    """One row for each seed."""
    return [
        Row(variant=variant, seed=seed, site="a, b", chosen_round=2, metrics={"auroc": 0.5, "tiny": 1.25e-9})
        for seed in seeds
    ]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is stopped before the new file replaces the old one, the whole chunk is missing."""
    path = tmp_path / "table.csv"
    add_rows(path, rows_of("a", 1))
    before = path.read_bytes()

    def stop(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        add_rows(path, rows_of("a", 2))

    assert path.read_bytes() == before
