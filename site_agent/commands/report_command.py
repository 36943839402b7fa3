"""`site-agent report`: what a run came to at this site, as lines, as one page, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command()
@config_option
@click.option("--run", "run_name", help="Run to report. Without this option, the latest run.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="Column that divides the results into groups. Repeat the option for more columns.",
)
@click.option(
    "--html", type=click.Path(path_type=Path), help="Output file for the page, one file without links to others."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Output file for all figures and curves, as JSON."
)
def report(
    path: Path, run_name: str | None, groups: tuple[str, ...], html: Path | None, json_path: Path | None
) -> None:
    """Show what this site gained from a run. Nothing leaves this computer.

    Example: site-agent report --config hospital.yaml --html report.html
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.desk.findings.facts import site_facts
    from site_agent.desk.findings.finding_lines import report_lines
    from site_agent.desk.findings.report_page import report_page
    from site_agent.desk.result_files import check_places, write_result

    check_places((("--html", html), ("--json", json_path)), hospital, [path])
    facts = site_facts(hospital, run_name, groups)
    for line in report_lines(facts):
        click.echo(line)
    if html is not None:
        write_result(html, report_page(facts).encode())
        click.echo(f"The page is in {html}.")
    if json_path is not None:
        write_result(json_path, json.dumps(facts, indent=2, allow_nan=False).encode())
        click.echo(f"The figures are in {json_path}.")
