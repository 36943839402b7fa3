"""Writes manual pages and completions of the programs, from their commands' help."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

from host.message_catalogue import EXIT_CODES

SHELLS = ("bash", "fish", "zsh")


def pages_of(program: str, command: click.Command, version: str) -> Iterator[tuple[str, str]]:
    """Yield file name and text of each manual page in section 1: for the program, and for each command."""
    context = click.Context(command, info_name=program)
    yield f"{program}.1", _page(program, command, context, version)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _below(f"{program} {name}", inner, context, version)


def _below(words: str, command: click.Command, parent: click.Context, version: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    yield f"{words.replace(' ', '-')}.1", _page(words, command, context, version)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _below(f"{words} {name}", inner, context, version)


def _page(words: str, command: click.Command, context: click.Context, version: str) -> str:
    name = words.replace(" ", "-")
    help_text = (command.help or "").strip()
    first, *rest = re.split(r"\n\s*\n", help_text)
    lines = [
        f'.TH "{_plain(name.upper())}" "1" "" "global-layers {version}" "global-layers"',
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(first)}",
        ".SH SYNOPSIS",
        f".B {_plain(words)}",
        _plain(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        _plain(first),
    ]
    for paragraph in (*rest, *([command.epilog] if command.epilog else [])):
        lines += [".PP", _plain(paragraph)]
    options = [record for item in command.get_params(context) if (record := item.get_help_record(context))]
    if options:
        lines.append(".SH OPTIONS")
        for usage, meaning in options:
            lines += [".TP", f".B {_plain(usage)}", _plain(meaning) or "No further words."]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            lines += [".TP", f".B {_plain(f'{words} {inner}')}", _plain(found.get_short_help_str(200))]
    lines.append(".SH EXIT STATUS")
    for status in EXIT_CODES:
        lines += [".TP", f".B {status.number}", _plain(status.meaning)]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Quote words so that the reader of the manual page finds no command in them."""
    joined = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{joined}" if joined.startswith((".", "'")) else joined


def completion_of(program: str, command: click.Command, shell: str) -> str:
    """Return a shell's completion script. The script requests the completions from the program."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE").source()
