"""Contains the commands after a run: `site-agent predict` and `export`, `report` and `results`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from host.command_line import PATH
from protos.errors import DataError, OperatorError
from site_agent.commands.site_options import config_option, opened_log
from site_agent.hospital import read_hospital
from site_agent.trainer.isolation import give_up_network

run_option: Final = click.option(
    "--run", "run_name", help="Name of the run whose model is used. Without this option, use the latest run."
)


@click.command()
@config_option
@click.option("--input", "table", required=True, type=PATH, help="Table with the new rows that the model predicts.")
@click.option("--output", required=True, type=PATH, help="File to which the command writes the predictions.")
@run_option
def predict(path: Path, table: Path, output: Path, run_name: str | None) -> None:
    """Predict the outcome for new rows of a table with a model of a run. The command sends nothing.

    The input file is CSV, Parquet or the format of the contract. The output is a new CSV file. The exit
    status is 78 if no row was predicted.

    Example: site-agent predict --config hospital.yaml --input new.csv --output predictions.csv
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.prediction import predict_table
    from site_agent.desk.result_files import check_place

    check_place(output, "--output", hospital, [path, table])
    predicted = predict_table(hospital, table, output, run_name)
    done = predicted.rows - predicted.abstained
    click.echo(f"{done} of {predicted.rows} rows predicted into {output} by the model of the run {predicted.run}.")
    if done and predicted.meaning:
        click.echo(predicted.meaning)
    if predicted.abstained:
        none = "1 row has" if predicted.abstained == 1 else f"{predicted.abstained} rows have"
        click.echo(f"{none} no prediction. The column abstained_because names the reason:")
        for line in predicted.why:
            click.echo(f"  {line}")
    if not done:
        raise DataError(
            what=f"The model could not predict any of the {predicted.rows} rows.",
            consequence=f"The file {output} lists these rows and the reason for each row. Nothing was sent.",
            remedy="Compare the codes, units and ranges of the columns above with the contract. Correct the table.",
        )


@click.command()
@config_option
@click.option("--output", required=True, type=PATH, help="New folder to which the command writes the model.")
@run_option
def export(path: Path, output: Path, run_name: str | None) -> None:
    """Write a model to a folder in the format ONNX, with a description of its inputs.

    First, the command checks that model.onnx predicts the same as the model. This needs the optional packages
    `onnx`. The command sends nothing.

    Example: site-agent export --config hospital.yaml --output model
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.export.export_folder import export_model

    made = export_model(hospital, output, run_name)
    click.echo(f"{', '.join(made.files)} are in {output}: the model of the run {made.run}.")
    click.echo(f"On made-up rows the export differs from the model by at most {made.difference:.1e}.")
    click.echo("The files contain numbers from this site's rows. Ask before you send them to others.")


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
    lacking = list[str]()
    with suppress(OperatorError):  # the log is the gate's, and this user may be unable to read it
        lacking = [str(one["run"]) for one in opened_log(hospital, exists=True).records("run_voided")]
    for line in (*results_as_lines(found, lacking), *json.loads((folder / OWN_JSON).read_text()).get("told", ())):
        click.echo(line)
    if html is not None:
        write_result(html, (folder / RESULTS_HTML).read_bytes())
    click.echo(f"The page is in {html or folder / RESULTS_HTML}.")
