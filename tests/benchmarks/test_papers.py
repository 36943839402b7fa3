"""The command that makes the papers' tables: its arguments, and the state after an interruption."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import papers
from benchmarks.papers import main


def test_a_stopped_run_goes_on_to_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop between two chunks, the second run computes the missing one. The lines equal those of a single
    run."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert CliRunner().invoke(main, ["rehearsal", "--results", str(whole)]).exit_code == 0
    made: list[tuple[Any, ...]] = []
    run_chunk = papers.run_chunk

    def counted(*arguments: Any) -> Any:
        if len(made) == 7:
            raise KeyboardInterrupt
        made.append(arguments)
        return run_chunk(*arguments)

    monkeypatch.setattr(papers, "run_chunk", counted)
    assert CliRunner().invoke(main, ["rehearsal", "--results", str(stopped)]).exit_code != 0
    half = lines_of(stopped)
    made.clear()
    assert CliRunner().invoke(main, ["rehearsal", "--results", str(stopped)]).exit_code == 0

    assert len(made) == 1
    assert half < lines_of(stopped)
    assert lines_of(stopped) == lines_of(whole)
    with (stopped / "rehearsal-cpu.csv").open(newline="") as file:
        assert sum(int(cost["seeds"]) for cost in csv.DictReader(file)) == 8


def lines_of(folder: Path) -> set[tuple[str, ...]]:
    """The lines of a table's results, in no order."""
    with (folder / "rehearsal.csv").open(newline="") as file:
        return {tuple(line) for line in csv.reader(file)}
