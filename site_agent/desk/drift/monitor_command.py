"""Runs `site-agent monitor`, which compares new rows with the training rows. All results stay on this computer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from site_agent.hospital import read_hospital


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml.")
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--run", "run_name", help="Name of the run whose model is used. If a model was adopted, it must be from this run."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Output file for all numbers, as JSON.")
def monitor(path: Path, table: Path, run_name: str | None, json_path: Path | None) -> None:
    """Compare the new patients in TABLE with the training rows of the model.

    If TABLE has the outcome, also compare the model's metrics with those on the test rows.

    Example: site-agent monitor --config hospital.yaml new.csv --json drift.json
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.desk.drift.monitoring import monitor_table
    from site_agent.desk.result_files import check_places, write_result

    check_places((("--json", json_path),), hospital, [table, path])
    facts = monitor_table(hospital, table, run_name)
    for line in monitor_lines(facts):
        click.echo(line)
    if json_path is not None:
        write_result(json_path, json.dumps(facts, indent=2, allow_nan=False).encode())


def monitor_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the results of monitoring as lines for the terminal."""
    yield f"{facts['site']}: {facts['model']} on {facts['rows']} new rows"
    not_allowed = f"{facts['off_contract']} of them with a value that the contract does not allow"
    yield f"{facts['abstained']} row{'' if facts['abstained'] == 1 else 's'} without a prediction, {not_allowed}"
    yield from facts["notices"]
    for warning in facts["warnings"]:
        yield f"Warning: {warning}"
    for one in facts["columns"]:
        index = "not defined" if one["stability_index"] is None else f"{one['stability_index']:.3f}"
        chance = "" if one["by_chance"] is None else f"(by chance up to {one['by_chance']:.3f})"
        shares = ", ".join(
            f"{words} {100 * one[key]:.1f}%"
            for words, key in (("missing", "missing"), ("outside", "outside"), ("not allowed", "outside_contract"))
        )
        yield f"  {one['name']:<28} stability index {index:<11} {chance:<24} {shares}"
    if facts["first_score"]:
        score = facts["first_score"]
        for metric, value in score["metrics"].items():
            yield f"{metric} {_figure(value, score['intervals'][metric])} on {score['rows']} rows with a known outcome"
        yield "This model from other hospitals was not tested here before."
    elif facts["quality"]:
        yield from _quality_lines(facts["quality"])
    else:
        yield f"{_why_no_quality(facts)} Therefore the quality of the model on these rows was not computed."


def _quality_lines(quality: dict[str, Any]) -> Iterator[str]:
    for metric, value in quality["metrics"].items():
        then = quality["at_the_test"][metric]
        now = _figure(value, quality["intervals"][metric])
        yield f"{metric} {now} on {quality['rows']} rows, at the test {_figure(then, None)}"
    for name, (predicted, observed) in quality["means"].items():
        before, happened = quality["means_at_the_test"][name]
        yield (
            f"mean of {name}: predicted {predicted:.3g}, observed {observed:.3g} (at the test {before:.3g} and "
            f"{happened:.3g})"
        )


def _why_no_quality(facts: dict[str, Any]) -> str:
    if facts["abstained"] == facts["rows"]:
        return "The model predicted no row of this table."
    if facts["known_rows"]:
        return "All rows with a prediction are in the hospital's own table."
    return "The outcome is not known for all rows."


def _figure(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f} (95% interval {interval[0]:.3f} to {interval[1]:.3f})"
