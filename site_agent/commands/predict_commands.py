"""`site-agent predict` and `site-agent recalibrate`: the model in use on new rows; everything stays here."""

from __future__ import annotations

from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command()
@config_option
@click.option("--input", "table", required=True, type=click.Path(path_type=Path), help="Table with the new rows.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Output file for the predictions.")
@click.option("--run", "run_name", help="Run of the model. An adopted model must be of this run.")
def predict(path: Path, table: Path, output: Path, run_name: str | None) -> None:
    """Apply the model in use to new rows. Nothing leaves this computer.

    The input is CSV, Parquet or the format of the contract. The output is CSV, or Parquet if its name ends with
    .parquet.

    Example: site-agent predict --config hospital.yaml --input new.csv --output predictions.csv
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.desk.prediction import predict_table
    from site_agent.desk.result_files import check_place

    check_place(output, "--output", hospital, [path, table])
    predicted = predict_table(hospital, table, output, run_name)
    done = predicted.rows - predicted.abstained
    click.echo(f"{done} of {predicted.rows} rows predicted into {output} by {predicted.model}.")
    if predicted.abstained:
        click.echo(f"{predicted.abstained} rows have no prediction. The column abstained_because names the reason:")
        for line in predicted.why:
            click.echo(f"  {line}")
    for notice in predicted.notices:
        click.echo(notice)


@click.command()
@config_option
@click.option(
    "--kind",
    required=True,
    type=click.Choice(["platt", "isotonic", "none"]),
    help="Kind of correction: `platt` or `isotonic`. `none` removes a saved correction.",
)
@click.option("--run", "run_name", help="Run of the model. An adopted model must be of this run.")
def recalibrate(path: Path, kind: str, run_name: str | None) -> None:
    """Fit the model's probabilities to this site's validation rows. The model itself does not change.

    Example: site-agent recalibrate --config hospital.yaml --kind platt
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()

    from site_agent.desk.use.recalibrating import recalibrate_run

    for line in recalibrate_run(hospital, run_name, kind):
        click.echo(line)
