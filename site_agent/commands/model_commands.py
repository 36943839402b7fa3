"""Contains `site-agent predict` and `export`, which use a model on this computer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from host.command_line import PATH, account, person
from protos.errors import DataError, UsageError
from site_agent.commands.site_options import config_option, opened_log
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.isolation import give_up_network

run_option: Final = click.option(
    "--run", "run_name", help="Name of the run whose model is used. Without this option, use the latest run."
)
model_option: Final = click.option(
    "--model",
    type=click.Choice(("federated", "siloed")),
    default="federated",
    show_default=True,
    help="The model: the federated one, or the one that was trained alone.",
)


@click.command()
@config_option
@click.option("--input", "table", required=True, type=PATH, help="Table with the new rows that the model predicts.")
@click.option("--output", required=True, type=PATH, help="File to which the command writes the predictions.")
@run_option
@model_option
def predict(path: Path, table: Path, output: Path, run_name: str | None, model: str) -> None:
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
    predicted = predict_table(hospital, table, output, run_name, model)
    done = predicted.rows - predicted.abstained
    click.echo(f"{done} of {predicted.rows} rows predicted into {output} by {predicted.model}.")
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
@model_option
@click.option(
    "--to", "recipient", help="Recipient and purpose, if you will give the folder to others. This option requires --by."
)
@click.option("--by", help="Name of the person who gives the folder to the recipient. The audit log records this name.")
def export(
    path: Path,
    output: Path,
    run_name: str | None,
    model: str,
    recipient: str | None,
    by: str | None,
) -> None:
    """Write a model to a folder in the format ONNX, with a description of its inputs.

    First, the command checks that model.onnx predicts the same as the model. This needs the optional packages
    `onnx`. With --to, the audit log records who gives the folder to whom. The command sends nothing: a person must
    deliver the folder.

    Example: site-agent export --config hospital.yaml --output model
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.export.export_folder import export_model

    record = _record_of(hospital, recipient, by)
    made = export_model(hospital, output, run_name, name=model, record=record)
    click.echo(f"{', '.join(made.files)} are in {output}: {made.model}.")
    click.echo(f"On made-up rows the export differs from the model by at most {made.difference:.1e}.")
    click.echo("The files contain numbers from this site's rows. Ask before you send them to others.")
    if recipient is not None:
        click.echo("The audit log records that you hand them over. Neither masking nor differential privacy protects")
        click.echo("an exported model. It may reveal something about this site's patients.")


def _record_of(hospital: Hospital, recipient: str | None, by: str | None) -> Callable[[str, str, str], None] | None:
    """Return a function that writes the audit record of an export for a recipient. Return None without a recipient."""
    if recipient is None and by is None:
        return None
    if recipient is None or by is None:
        raise UsageError(
            what="The options --to and --by must be used together, but only one was used.",
            consequence="Nothing was written, and nothing was sent.",
            remedy="Use both options to give a model to others, or neither for an export that stays at this site.",
        )
    whom, who, log = person(recipient, "--to"), person(by), opened_log(hospital)

    def record(run: str, model: str, digest: str) -> None:
        facts = {"run": run, "model": model, "digest": digest, "recipient": whom, "by": who}
        log.write("model_handed_over", **facts, account=account())

    return record
