"""The command that makes the papers' tables: its arguments, and the state after an interruption."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import papers
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.papers import main, seeds_of


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-3", [0, 1, 2, 3]), ("3,5,8", [3, 5, 8]), ("7", [7]), ("2-3, 3-4", [2, 3, 4]), ("5-5", [5])],
)
def test_seeds_are_ranges_and_lists(text: str, seeds: list[int]) -> None:
    """Both ends of a range count, and a seed that is named twice runs once."""
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1--2", "1,", "1.5", ""])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    """A list that makes no sense starts nothing."""
    with pytest.raises(click.UsageError, match="are no seeds"):
        seeds_of(text)


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    """The error names the existing variants, and nothing is written."""
    result = CliRunner().invoke(main, ["rehearsal", "--results", str(tmp_path), "--variant", "none"])

    assert result.exit_code == 2
    assert "'global-layers'" in result.output
    assert not list(tmp_path.iterdir())


def test_tables_that_are_missing_are_said_in_three_sentences(tmp_path: Path) -> None:
    """A folder without the public tables ends the command, with the remedy."""
    arguments = ["heart", "--data", str(tmp_path), "--results", str(tmp_path), "--seeds", "0"]

    result = CliRunner().invoke(main, [*arguments, "--variant", "local, authors"])

    assert result.exit_code == 1
    assert "Give the folder that holds heart/" in result.output


def test_a_stopped_run_goes_on_to_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop between two chunks, the second run computes the missing one.

    The lines equal those of a single run.
    """
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert CliRunner().invoke(main, ["rehearsal", "--results", str(whole)]).exit_code == 0
    made: list[tuple[Any, ...]] = []
    run_chunk = papers.run_chunk

    def counted(*arguments: Any) -> Any:
        if len(made) == 3:
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
    assert sum(cost.seeds for cost in read_costs(costs_beside(stopped / "rehearsal.csv"))) == 8


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    """A second run changes no byte of the results, and neither does printing the figures."""
    arguments = ["rehearsal", "--results", str(tmp_path), "--seeds", "0-1"]
    CliRunner().invoke(main, arguments)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    again = CliRunner().invoke(main, arguments)
    CliRunner().invoke(main, [*arguments, "--figures"])

    assert again.exit_code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"rehearsal.csv", "rehearsal-cpu.csv"}


def lines_of(folder: Path) -> set[tuple[str, ...]]:
    """The lines of a table's results, in no order."""
    with (folder / "rehearsal.csv").open(newline="") as file:
        return {tuple(line) for line in csv.reader(file)}
