"""`site-agent export` and `site-agent card`: the model for use elsewhere, and what it is."""

from __future__ import annotations

import json
from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command()
@config_option
@click.option("--output", required=True, type=click.Path(path_type=Path), help="New folder for the output.")
@click.option("--onnx", "has_onnx", is_flag=True, help="Also write model.onnx. This needs the extra `onnx`.")
@click.option("--run", "run_name", help="Run of the model. An adopted model must be of this run.")
def export(path: Path, output: Path, has_onnx: bool, run_name: str | None) -> None:
    """Write the model in use with a loader that needs only PyTorch.

    The loader's predictions are compared with the model's first.

    Example: site-agent export --config hospital.yaml --output model --onnx
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.desk.export.export_folder import export_model

    made = export_model(hospital, output, run_name, has_onnx=has_onnx)
    click.echo(f"{', '.join(made.files)} are in {output}: {made.model}.")
    click.echo(f"On made-up rows the loader differs from the model by at most {made.loader_difference:.1e}.")
    if made.onnx_difference is not None:
        click.echo(f"On made-up rows ONNX differs from the model by at most {made.onnx_difference:.1e}.")
    click.echo("The files hold what was learnt of this site's rows; see card.md before giving them away.")
    for notice in made.notices:
        click.echo(notice)


@click.command()
@config_option
@click.option("--run", "run_name", help="Run of the model. An adopted model must be of this run.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Output file for the card as text.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Output file for the card as JSON.")
def card(path: Path, run_name: str | None, markdown: Path | None, json_path: Path | None) -> None:
    """Write a model card of the model in use. Counts below 10 are not shown.

    Example: site-agent card --config hospital.yaml --markdown card.md
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()

    from site_agent.desk.model_card import card_facts, card_markdown
    from site_agent.desk.result_files import check_places, write_result
    from site_agent.desk.use.model_in_use import model_in_use

    check_places((("--markdown", markdown), ("--json", json_path)), hospital, [path])
    facts = card_facts(hospital, model_in_use(hospital.state_path, run_name))
    if json_path is not None:
        write_result(json_path, json.dumps(facts, indent=2, allow_nan=False).encode())
    if markdown is not None:
        write_result(markdown, card_markdown(facts).encode())
    if markdown is None and json_path is None:
        click.echo(card_markdown(facts), nl=False)
