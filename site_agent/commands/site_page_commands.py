"""Contains `site-agent report` and `site-agent results`, which show what this site has from its runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from host.command_line import PATH
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital
from site_agent.trainer.isolation import give_up_network


@click.command()
@config_option
@click.option(
    "--run", "run_name", help="Name of the run in the report. Without this option, the report shows the latest run."
)
@click.option("--html", type=PATH, help="Output file for the report as a web page. The page needs no other file.")
def report(path: Path, run_name: str | None, html: Path | None) -> None:
    """Show what this site gained from a run. The command sends nothing.

    Example: site-agent report --config hospital.yaml --html report.html
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.findings.facts import RECEIVING, site_facts
    from site_agent.desk.findings.report_page import received_lines, received_page, report_lines, report_page
    from site_agent.desk.result_files import check_place, write_result

    if html is not None:
        check_place(html, "--html", hospital, [path])
    facts = site_facts(hospital.state_path, run_name)
    is_received = RECEIVING in facts
    for line in received_lines(facts) if is_received else report_lines(facts):
        click.echo(line)
    if html is not None:
        write_result(html, (received_page(facts) if is_received else report_page(facts)).encode())
        click.echo(f"The page is in {html}.")


@click.command()
@config_option
@click.option("--run", "run_name", help="Name of the run. Without this option, the newest statistics plan is shown.")
@click.option("--html", type=PATH, help="Output file for the page, which also has this hospital's own estimates.")
def results(path: Path, run_name: str | None, html: Path | None) -> None:
    """Show the results of a statistics plan. The command sends nothing.

    Example: site-agent results --config hospital.yaml --html results.html
    """
    hospital = read_hospital(path)

    from host.statistics_page import find_results
    from protos.statistics.printed_results import RESULTS_HTML, results_as_lines
    from site_agent.desk.result_files import check_place, write_result
    from site_agent.desk.results.statistics_results import OWN_JSON, STATISTICS

    if html is not None:
        check_place(html, "--html", hospital, [path])
    folder, found = find_results(hospital.state_path / STATISTICS, run_name)
    for line in (*results_as_lines(found["analyses"]), *json.loads((folder / OWN_JSON).read_text()).get("told", ())):
        click.echo(line)
    if html is not None:
        write_result(html, (folder / RESULTS_HTML).read_bytes())
    click.echo(f"The page is in {html or folder / RESULTS_HTML}.")
