"""Runs a program's command line. A failure prints three sentences and ends with a documented exit status."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from host.diagnosis import Finding, exit_status
from protos.errors import UsageError, explained

Command = TypeVar("Command", bound=Callable[..., Any])
PATH: Final = click.Path(path_type=Path)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
metrics_option: Final = click.option("--metrics", "as_metrics", is_flag=True, help="Print metrics for Prometheus.")
by_option: Final = click.option("--by", required=True, help="Name of the person who decides, for the audit log.")


def configuration_option(file: str) -> Callable[[Command], Command]:
    """Return the option for the path of a program's configuration, such as `hospital.yaml`."""
    return click.option("--config", "path", required=True, type=PATH, help=f"The file {file}.")


def person(by: str, option: str = "--by") -> str:
    """Return the text that a person typed for an option, with single blanks. Raises UsageError: it is not one line."""
    if not by.strip() or not by.isprintable():
        raise UsageError(
            what=f"{option} is empty, or has a line break or another character that cannot be seen.",
            consequence="Nothing was changed. Nothing was sent.",
            remedy="Enter it in a few words, in one line. The audit log records it.",
        )
    return " ".join(by.split())


def account() -> str:
    """Return the name of the user account that runs the command. Environment variables cannot change this name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def report_findings(found: Sequence[Finding], *, as_json: bool) -> NoReturn:
    """Print the findings of `doctor`, and exit with their status."""
    if as_json:
        click.echo(json.dumps([finding.facts() for finding in found], indent=2))
    else:
        for finding in found:
            click.echo(finding.line)
    sys.exit(exit_status(found))


def finish(program: str, commands: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process. Return its exit status. Do not catch `sys.exit`."""
    try:
        status = commands.main(args=arguments, prog_name=program, standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        print(f"{program}: interrupted. Files that were finished are kept. Run the command again.", file=sys.stderr)
        return 130
    except click.ClickException as error:
        told = usage(program, error)
    except Exception as error:
        wanted = explained(error)
        print(wanted.lines(program), file=sys.stderr)
        return wanted.exit_status
    else:
        return status if isinstance(status, int) else 0
    print(told.lines(program), file=sys.stderr)
    return told.exit_status


@contextmanager
def extra(package: str) -> Iterator[None]:
    """Skip the block if the package of this optional part is not installed. Any other missing module is an error."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != package:
            raise


def usage(program: str, error: click.ClickException) -> UsageError:
    """Convert an error of the library click about a command line to a UsageError that names the help command."""
    context = getattr(error, "ctx", None)
    command = context.command_path if isinstance(context, click.Context) else program
    is_bare = isinstance(error, click.exceptions.NoArgsIsHelpError)
    said = "A command is missing" if is_bare else " ".join(error.format_message().split()).rstrip(".")
    return UsageError(
        what=said if said.endswith("?") else f"{said}.",  # click asks if another option was meant
        consequence=f"Nothing was done. The exit status is {UsageError.exit_status}.",
        remedy=f"Run `{command} --help`.",
    )
