"""Runs `site-agent monitor`, which compares new rows with the training rows. All results stay on this computer."""

from __future__ import annotations

import json
from pathlib import Path

import click

from site_agent.hospital import read_hospital


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml.")
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--run", "run_name", help="Name of the run whose model is used. If a model was adopted, it must be from this run."
)
@click.option("--html", type=click.Path(path_type=Path), help="Output file for the page.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Output file for all numbers, as JSON.")
@click.option("--metrics", type=click.Path(path_type=Path), help="Output file for Prometheus, such as drift.prom.")
def monitor(
    path: Path, table: Path, run_name: str | None, html: Path | None, json_path: Path | None, metrics: Path | None
) -> None:
    """Compare the new patients in TABLE with the training rows of the model.

    If TABLE has the outcome, also compare the model's metrics with those on the test rows.

    Example: site-agent monitor --config hospital.yaml new.csv --html drift.html
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.desk.drift.monitor_views import monitor_lines, monitor_metrics, monitor_page
    from site_agent.desk.drift.monitoring import monitor_table
    from site_agent.desk.result_files import check_places, write_result

    check_places((("--html", html), ("--json", json_path), ("--metrics", metrics)), hospital, [table, path])
    facts = monitor_table(hospital, table, run_name)
    for line in monitor_lines(facts):
        click.echo(line)
    if html is not None:
        write_result(html, monitor_page(facts).encode())
    if json_path is not None:
        write_result(json_path, json.dumps(facts, indent=2, allow_nan=False).encode())
    if metrics is not None:
        # The node exporter runs as another user. The file contains only column names and numbers.
        write_result(metrics, monitor_metrics(facts).encode(), mode=0o644)
