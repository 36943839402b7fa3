"""Contains `site-agent predict`, `adopt` and `export`, which use a model on this computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from host.command_line import PATH, account, person
from protos.errors import DataError, UsageError
from site_agent.commands.site_options import config_option, opened_log, run_option
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.isolation import give_up_network

if TYPE_CHECKING:
    from site_agent.desk.use.adoption import Adoption

_MOST_RUNS: Final = 5  # listed in one sentence


@click.command()
@config_option
@click.option("--input", "table", required=True, type=PATH, help="Table with the new rows that the model predicts.")
@click.option("--output", required=True, type=PATH, help="File to which the command writes the predictions.")
@run_option
def predict(path: Path, table: Path, output: Path, run_name: str | None) -> None:
    """Predict the outcome for new rows of a table with the model in use. The command sends nothing.

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
    click.echo(f"{done} of {predicted.rows} rows predicted into {output} by {predicted.model}.")
    if done and predicted.meaning:
        click.echo(predicted.meaning)
    if predicted.abstained:
        none = "1 row has" if predicted.abstained == 1 else f"{predicted.abstained} rows have"
        click.echo(f"{none} no prediction. The column abstained_because names the reason:")
        for line in predicted.why:
            click.echo(f"  {line}")
    for notice in predicted.notices:
        click.echo(notice)
    if not done:
        raise DataError(
            what=f"The model could not predict any of the {predicted.rows} rows.",
            consequence=f"The file {output} lists these rows and the reason for each row. Nothing was sent.",
            remedy="Compare the codes, units and ranges of the columns above with the contract. Correct the table.",
        )


@click.command()
@config_option
@click.argument("model", required=False)
@click.option("--by", help="Name of the person who decides. The audit log records this name.")
@click.option("--run", "run_name", help="Name of the run whose model is used. Without this option, use the latest run.")
def adopt(path: Path, model: str | None, by: str | None, run_name: str | None) -> None:
    """Use MODEL from now on for predict and export. Without MODEL, list all models and the model in use.

    A model stays in use until a person adopts another model. A new run does not change the model in use.

    Example: site-agent adopt siloed --config hospital.yaml --by "Anna Jones"
    """
    hospital = read_hospital(path)

    from site_agent.desk.results.saved_model import latest_run
    from site_agent.desk.use.adoption import find_adoption

    before = find_adoption(hospital.state_path)
    run = latest_run(hospital.state_path) if run_name is None else run_name
    if model is None:
        for line in _listed(hospital, run, before):
            click.echo(line)
        return
    if by is None:
        raise _refused("--by is missing.", "Add --by with the name of the person who decides.")
    for line in _adopted(hospital, run, model, person(by), before):
        click.echo(line)


def _adopted(hospital: Hospital, run: str, model: str, by: str, before: Adoption | None) -> Iterator[str]:
    """Record in the audit log that a person adopts a model. Then put the model in use."""
    from site_agent.desk.results.saved_model import load_model
    from site_agent.desk.use.adoption import Adoption, keep_adoption
    from site_agent.desk.use.model_in_use import title_of_model

    state, name = hospital.state_path, _name_of(hospital.state_path, run, model)
    digest = load_model(state, run, name).digest
    assert digest is not None  # it was read from a file
    now = datetime.now(UTC)
    adoption = Adoption(run=run, model=name, digest=digest, by=by, at=now.isoformat(timespec="seconds"))
    former = {} if before is None else {"former_run": before.run, "former_model": before.model}
    opened_log(hospital).write("model_adopted", run=run, model=name, digest=digest, by=by, account=account(), **former)
    keep_adoption(state, adoption)
    yield f"{by} adopted {title_of_model(name, run)}."
    yield "Predictions and exports use it until a person adopts another model."
    if before is not None:
        yield f"Until now {title_of_model(before.model, before.run)} was in use."


def _name_of(state: Path, run: str, model: str) -> str:
    """Return the name that the report uses for the model that a person named."""
    name, names = model.strip().lower().replace("-", "_"), _names_of(state, run)
    if name not in names:
        known = ", ".join(names)
        raise _refused(f"The run {run} has no model {model}. It has {known}.", "Give one of these names.")
    return name


def _names_of(state: Path, run: str) -> tuple[str, ...]:
    """Return the names of a run's models. Raises UsageError if the run has no model here."""
    from site_agent.desk.results.saved_model import saved_names
    from site_agent.state_folders import saved_runs

    if names := saved_names(state, run):
        return names
    known = saved_runs(state)
    more = f" and {len(known) - _MOST_RUNS} older ones" if len(known) > _MOST_RUNS else ""
    if not known:
        raise _refused(f"There is no model of the run {run} here, nor of another run.", "Repeat this after a run.")
    listed = f"The latest runs with a model are {', '.join(known[:_MOST_RUNS])}{more}"
    raise _refused(
        f"There is no model of the run {run} here. {listed}.", "Give --run one of these names, or leave it out."
    )


def _listed(hospital: Hospital, run: str, adoption: Adoption | None) -> Iterator[str]:
    """Yield lines with the models that can be adopted, and the model in use."""
    from site_agent.desk.comparison.gain import MODEL_TITLES
    from site_agent.desk.use.model_in_use import NOBODY_ADOPTED, in_words, newer_models

    names = _names_of(hospital.state_path, run)
    used = None if adoption is None or adoption.run != run else adoption.model
    yield f"Models of the run {run}:"
    for name in names:
        yield f"  {name:<24}{MODEL_TITLES.get(name, name)}{' (in use)' if name == used else ''}"
    if adoption is None:
        yield NOBODY_ADOPTED
        return
    yield in_words(adoption)
    yield from newer_models(hospital.state_path, adoption)


def _refused(what: str, remedy: str) -> UsageError:
    return UsageError(what=what, consequence="The model in use did not change, and nothing was sent.", remedy=remedy)


@click.command()
@config_option
@click.option("--output", required=True, type=PATH, help="New folder to which the command writes the model.")
@run_option
@click.option(
    "--model",
    help="Name of the model as `adopt` lists it, such as siloed. Without this option, export the model in use.",
)
@click.option(
    "--to", "recipient", help="Recipient and purpose, if you will give the folder to others. This option requires --by."
)
@click.option("--by", help="Name of the person who gives the folder to the recipient. The audit log records this name.")
def export(
    path: Path,
    output: Path,
    run_name: str | None,
    model: str | None,
    recipient: str | None,
    by: str | None,
) -> None:
    """Write a model to a folder in the format ONNX, with a small program (loader) that needs only onnxruntime.

    First, the command checks that model.onnx predicts the same as the model. This needs the optional packages
    `onnx`. With --to, the audit log records who gives the folder to whom. The command sends nothing: a person must
    deliver the folder.

    Example: site-agent export --config hospital.yaml --output model
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.export.export_folder import export_model
    from site_agent.desk.results.saved_model import latest_run

    name = None
    if model is not None:
        run_name = latest_run(hospital.state_path) if run_name is None else run_name
        name = _name_of(hospital.state_path, run_name, model)
    record = _record_of(hospital, recipient, by)
    made = export_model(hospital, output, run_name, name=name, record=record)
    click.echo(f"{', '.join(made.files)} are in {output}: {made.model}.")
    click.echo(f"On made-up rows the export differs from the model by at most {made.difference:.1e}.")
    click.echo("The files contain numbers from this site's rows. Ask before you send them to others.")
    if recipient is not None:
        click.echo("The audit log records that you hand them over. Neither masking nor differential privacy protects")
        click.echo("an exported model. It may reveal something about this site's patients.")
    for notice in made.notices:
        click.echo(notice)


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
