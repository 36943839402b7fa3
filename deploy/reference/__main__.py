"""Generates pages from the programs: `python deploy/reference --docs docs`, or `--manuals FOLDER`.

Pages of the documentation are in the repository, and a test fails when they are not current. Manual pages and
completions are made when a package is built.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import click

from coordinator.configuration import CoordinatorConfiguration
from coordinator.coordinator_cli import cli as coordinator
from coordinator.operations.coordinator_events import EVENTS as COORDINATOR_EVENTS
from host.diagnosis import AILMENTS
from host.message_catalogue import ERRORS, EXIT_CODES, Entry
from pki.pki_cli import commands as pki
from reference.configuration import keys_of, table_of
from reference.manual import SHELLS, completion_of, pages_of
from site_agent.hospital import Hospital
from site_agent.site_cli import cli as site_agent
from site_agent.site_events import EVENTS as SITE_EVENTS

HOUSE: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final[dict[str, click.Command]] = {"coordinator": coordinator, "pki": pki, "site-agent": site_agent}
_MADE: Final = (
    "<!-- Made by `python deploy/reference --docs docs`; change the records, examples or catalogues instead. -->"
)
_SECRETS: Final = """## Places of secrets, from the environment

An environment variable can set each of these paths, because each computer can store its secrets in another folder.
The programs read no other environment variable for the path of a secret. A path in an environment variable replaces
the path in the configuration file.

| variable | program | replaces |
|---|---|---|
| `GLOBAL_LAYERS_INVITATION` | `site-agent` | `invitation` in hospital.yaml |
| `GLOBAL_LAYERS_AUTHORITY` | `coordinator` | `authority` in coordinator.yaml |
| `GLOBAL_LAYERS_PASSPHRASE_FILE` | `pki` | `--passphrase-file` |
| `https_proxy`, `no_proxy` | `site-agent` | nothing; gRPC reads these variables, also in capital letters |
"""


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    examples = HOUSE / "deploy/examples"
    parts = [_MADE, "# Every key of the configurations"]
    for name, model, program in (
        ("coordinator.yaml", CoordinatorConfiguration, "coordinator"),
        ("hospital.yaml", Hospital, "site-agent"),
    ):
        keys = keys_of(model, examples / name)
        parts += [
            f"## {name}",
            f"`{program} check` checks this file. The example is [{name}](../deploy/examples/{name}).",
            table_of(keys),
        ]
    parts += [
        _SECRETS.rstrip(),
        "The examples [plan.yaml](../deploy/examples/plan.yaml) and",
    ]
    parts[-1] += (
        "\n[contract.yaml](../deploy/examples/contract.yaml) explain each key of a plan and of a data contract."
    )
    return "\n\n".join(parts) + "\n"


def messages_page() -> str:
    """Return the text of docs/messages.md."""
    parts = [_MADE, "# Every message", "## Exit codes", _exit_table()]
    parts += ["Each message has an identifier. The command `site-agent explain W251` prints the same help."]
    for title, entries in (
        ("Errors of every program", ERRORS),
        ("Events of the coordinator", COORDINATOR_EVENTS),
        ("Events of a site", SITE_EVENTS),
        ("Findings of doctor", AILMENTS),
    ):
        parts += [f"## {title}", _table(entries)]
    return "\n\n".join(parts) + "\n"


def _exit_table() -> str:
    rows = (
        f"| {code.number} | {code.meaning} | {code.who} | {'yes' if code.is_restarted else 'no'} |"
        for code in EXIT_CODES
    )
    return "\n".join(
        ("| status | meaning | who can correct it | a service is started again |", "|---|---|---|---|", *rows)
    )


def _table(entries: tuple[Entry, ...]) -> str:
    rows = (f"| {entry.identifier} | {entry.name} | {entry.meaning} | {entry.remedy} |" for entry in entries)
    return "\n".join(("| | name | meaning | what to do |", "|---|---|---|---|", *rows))


PAGES: Final = {"configuration.md": configuration_page, "messages.md": messages_page}


@click.command(epilog="Example: python deploy/reference --docs docs")
@click.option("--docs", type=click.Path(path_type=Path), help="Folder for configuration.md and messages.md.")
@click.option("--manuals", type=click.Path(path_type=Path), help="Folder for the manual pages of section 1.")
@click.option(
    "--completions",
    type=click.Path(path_type=Path),
    help=("Folder for the files that complete typed commands, with one folder for each shell."),
)
def write(docs: Path | None, manuals: Path | None, completions: Path | None) -> None:
    """Generate the pages that come from the programs' records, catalogues and help."""
    if docs is not None:
        for name, page in PAGES.items():
            (docs / name).write_text(page())
    if manuals is not None:
        manuals.mkdir(parents=True, exist_ok=True)
        for program, command in PROGRAMS.items():
            for name, text in pages_of(program, command, version("global-layers")):
                (manuals / name).write_text(text)
    if completions is not None:
        for shell in SHELLS:
            folder = completions / shell
            folder.mkdir(parents=True, exist_ok=True)
            for program, command in PROGRAMS.items():
                (folder / program).write_text(completion_of(program, command, shell))


if __name__ == "__main__":
    write()
