"""`coordinator doctor`: what would keep the coordinator from running, one line each with the remedy."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import click

from coordinator.commands.coordinator_options import config_option
from coordinator.configuration import read_configuration
from host.diagnosis import Finding, exit_status, failure, fine
from host.support_bundle import bundle_of, write_bundle
from protos.errors import OperatorError


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--bundle",
    "place",
    type=click.Path(path_type=Path),
    help="Also write a support file. It contains no names, paths or values.",
)
def doctor(path: Path, as_json: bool, place: Path | None) -> None:
    """Check everything that the coordinator needs. This is safe at any time: it changes and sends nothing.

    The exit status is 0 without findings, 3 with warnings, and 1 with a failure.

    Example: coordinator doctor --config coordinator.yaml
    """
    found = _examine(path)
    if place is not None:
        write_bundle(place, bundle_of("coordinator", version("global-layers"), found))
    if as_json:
        click.echo(json.dumps([finding.facts() for finding in found], indent=2))
    else:
        for finding in found:
            click.echo(finding.line)
    sys.exit(exit_status(found))


def _examine(path: Path) -> list[Finding]:
    try:
        configuration = read_configuration(path)
    except OperatorError as wrong:
        return [failure("D401", wrong.what, wrong.remedy)]

    from coordinator.operations.coordinator_doctor import examine

    return [fine("D401", f"{path.name} is in order."), *examine(configuration, os.environ)]
