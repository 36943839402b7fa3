"""The real programs as real processes; each is ended by its own id when its block is left."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import structlog

import coordinator.commands.coordinator_cli
import pki.pki_cli
import site_agent.site_cli
from host.command_line import finish

if TYPE_CHECKING:
    from quickstart.federation import Rehearsal

PROGRAMS = Path(sys.executable).parent
END_SECONDS = 20.0
COMMANDS: dict[str, click.Command] = {
    "coordinator": coordinator.commands.coordinator_cli.cli,
    "pki": pki.pki_cli.commands,
    "site-agent": site_agent.site_cli.cli,
}


def own_environment() -> dict[str, str]:
    """What a program inherits: not the TLS settings that the programs' modules have made in this process."""
    return {name: value for name, value in os.environ.items() if name != "GRPC_SSL_CIPHER_SUITES"}


def finished(*words: object, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    program, *arguments = map(str, words)
    return subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, check=False, timeout=seconds
    )


def called(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has loaded it already; a new interpreter costs half a second."""
    program, *arguments = map(str, words)
    out, problems, umask = io.StringIO(), io.StringIO(), os.umask(0o077)
    try:
        with redirect_stdout(out), redirect_stderr(problems), pytest.MonkeyPatch.context() as patch:
            patch.setattr("site_agent.commands.approval_commands.give_up_network", lambda: True)
            status = finish(program, COMMANDS[program], arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os.umask(umask)
        structlog.reset_defaults()
    return subprocess.CompletedProcess(words, status, out.getvalue(), problems.getvalue())


def prepared_here(rehearsal: Rehearsal) -> None:
    """Prepare the quickstart's federation with commands that run in this process."""
    import quickstart.federation

    def command(*words: object) -> str:
        done = called(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart.federation, "command", command)
        quickstart.federation.prepare(rehearsal)


@contextmanager
def running(log: Path, *words: object, folder: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program that goes on, in a folder or here, what it prints in a log."""
    program, *arguments = map(str, words)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [PROGRAMS / program, *arguments],
            cwd=folder,
            env=own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Check repeatedly until a condition is true. Raises TimeoutError: it never became so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def says(log: Path, text: str) -> Callable[[], bool]:
    """Whether a log says something."""
    return lambda: log.exists() and text in log.read_text(errors="replace")


def status(config: Path) -> dict[str, Any]:
    """Return the status of a running coordinator."""
    return dict(json.loads(finished("coordinator", "status", "--config", config, "--json").stdout))


def children(process: int) -> list[int]:
    """The ids of a process's children."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found
