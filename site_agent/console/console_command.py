"""Contains `site-agent console`, which shows web pages on this computer for the persons who decide at a hospital."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from host.command_line import account, person
from host.local_server import browser_host, check_local, listen_option, plain_address, serve_page
from protos.errors import UsageError
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital

_ROLES = ("data-manager", "officer", "clinician")


@click.command()
@config_option
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(_ROLES),
    help="Print a link to pages for only this role. Repeat the option for more roles. Without this option, one link "
    "is for all roles.",
)
@click.option(
    "--by",
    help="Name of the person who decides, for the audit log. Without this option, people type their name on the page.",
)
@listen_option(8483, has_socket=False)
@click.option(
    "--idle-minutes",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0.01, 480),
    help="End a session after this many minutes without a request.",
)
def console(path: Path, roles: tuple[str, ...], by: str | None, listen: str, idle_minutes: float) -> None:
    """Show web pages about this site: the table, the plans, the audit log, the report and the models.

    People at the hospital read these pages and decide with buttons. Open the printed link in a browser on this
    computer. Each printed link works only once. Every button on a page runs a command of site-agent under the user
    account that started the console. Ctrl-C ends the command. The command also ends by itself when all sessions have
    ended.

    Example: site-agent console --config hospital.yaml --role officer
    """
    read_hospital(path)
    check_local(listen, "Nothing was started and nothing was sent.")
    if listen.startswith("unix:"):
        raise UsageError(
            what="A browser cannot open the Unix socket in the option --listen.",
            consequence="Nothing was started. Nothing was sent.",
            remedy="Use --listen with an address of this computer, such as 127.0.0.1:8483.",
        )
    name = "" if by is None else person(by)
    signals: list[signal.Signals] = []
    serving = _serve(path.resolve(), roles, name, (plain_address(listen), idle_minutes * 60), signals)
    try:
        reason = asyncio.run(serving)
    except (KeyboardInterrupt, asyncio.CancelledError):
        reason = f"It received {signals[0].name}." if signals else "You stopped it."
    _print(f"The console ended. {reason} Decisions that were made are kept, and the audit log has them.")


def _print(line: str) -> None:
    with suppress(OSError):  # the terminal was closed
        click.echo(line, err=True)


def _seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _end_in_order(signals: list[signal.Signals]) -> None:
    """On SIGTERM or SIGHUP, cancel the running task, so that its files are removed."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def end(number: signal.Signals) -> None:
        signals.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, partial(end, number))


async def _serve(
    config: Path, roles: tuple[str, ...], by: str, place: tuple[str, float], signals: list[signal.Signals]
) -> str:
    """Print the links and serve pages until the console ends. Return the reason why the console ended."""
    from site_agent.console.console_links import LINK_SECONDS, Links, Role
    from site_agent.console.console_server import Console, Setting

    address, idle_seconds = place
    host = browser_host(address)
    wanted = [frozenset({Role(role)}) for role in dict.fromkeys(roles)] or [frozenset(Role)]
    setting = Setting(
        config=config, host=host, by=by, account=account(), idle_seconds=idle_seconds, clock=_seconds, say=_print
    )
    links = Links(wanted, _seconds(), idle_seconds)
    started = Console(setting, links)
    _end_in_order(signals)
    server = await serve_page(address, started.respond, "study", started.body_bytes)
    for link, for_roles in links.unused():
        whose = " and ".join(role for role in Role if role in for_roles)
        click.echo(f"{whose}: http://{host}/enter/{link}")
    setting.say(f"Each link works once, for {LINK_SECONDS / 60:g} minutes. Give it to nobody else. Ctrl-C ends.")
    try:
        async with server:
            return await started.until_over()
    finally:
        await started.close()
