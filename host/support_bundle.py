"""Writes a support bundle: facts for remote help, without any text that a person of this site has written.

Only identifiers, severities, numbers of this computer and the catalogue's own words are included. So no path, name,
address, key or value can be in the bundle.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from host.command_line import PATH, Command, json_option
from host.diagnosis import AILMENTS, Finding, exit_status
from host.durable import new_file
from protos.errors import ConfigurationError

_HELP: Final = {entry.identifier: entry for entry in AILMENTS}
_bundle_option: Final = click.option(
    "--bundle",
    "place",
    type=PATH,
    help="Also write a file for a person who helps you. The file contains no names, paths or values.",
)


def report_options(command: Command) -> Command:
    """Add the options `--json` and `--bundle` to the command `doctor` of the site or the coordinator."""
    return json_option(_bundle_option(command))


def report_findings(program: str, found: Sequence[Finding], *, as_json: bool, place: Path | None = None) -> NoReturn:
    """Print the findings of `doctor`, write the support bundle if requested, and exit with the findings' status."""
    if place is not None:
        write_bundle(place, _bundle_of(program, found))
    if as_json:
        click.echo(json.dumps([finding.facts() for finding in found], indent=2))
    else:
        for finding in found:
            click.echo(finding.line)
    sys.exit(exit_status(found))


def _bundle_of(program: str, findings: Sequence[Finding]) -> dict[str, Any]:  # Any: every type that JSON has
    """Return a support bundle without the results and remedies of findings, because these texts may contain names."""
    return {
        "format": "global-layers support bundle 1",
        "program": program,
        "version": version("global-layers"),
        "system": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
        },
        "findings": [
            {
                "identifier": finding.identifier,
                "severity": finding.severity.name.lower(),
                "meaning": _HELP[finding.identifier].meaning,
                "remedy": _HELP[finding.identifier].remedy,
            }
            for finding in findings
        ],
        "counts": {},
    }


def write_bundle(place: Path, content: Mapping[str, Any]) -> None:
    """Write a support bundle with mode 0600. Raises ConfigurationError if the file exists or cannot be written."""
    try:
        descriptor = new_file(place)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The support bundle {place} cannot be written: {cause.strerror}.",
            consequence="Nothing was written.",
            remedy="Use a path that does not exist yet, in a folder in which this user has permission to write.",
        ) from cause
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
