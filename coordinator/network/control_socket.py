"""Opens the control socket, through which a person reads the status of a coordinator, or ends its run.

A person's command sends one word over a Unix socket in the state directory, which only the coordinator's own user can
open. The reply is one line of JSON. The reply to any word but `stop` is the status. Linux allows at most 107 characters
for a socket's address, so sockets are bound below their folder's descriptor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from coordinator.rounds.engine import Engine
from host.durable import short_path, unusable_state
from host.secret_files import not_answering
from protos.errors import UsageError

_LONGEST: Final = 64
_PATIENCE_SECONDS: Final = 5.0
_REPLY_SECONDS: Final = 8.0


def control_path(state: Path) -> Path:
    """Return the path of the Unix socket on which a running coordinator answers."""
    return state / "control.socket"


async def control_server(engine: Engine, status: Callable[[], dict[str, Any]], state: Path) -> asyncio.Server:
    """Open the Unix socket for status and stop. This replaces the socket of an earlier coordinator process.

    Raises:
        ConfigurationError: the socket cannot be created.
        UnavailableError: the disk is full.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                word = (await reader.read(_LONGEST)).decode("ascii", "replace").strip()
            reply = status()
            if word == "stop":
                reply = {"run": (reply["run"] or {}).get("run"), "changed": engine.end_run()}
            writer.write(json.dumps(reply).encode())
            await writer.drain()
        except (TimeoutError, ConnectionError):
            pass  # the person's command has disconnected
        finally:
            writer.close()

    path = control_path(state)
    try:
        path.unlink(missing_ok=True)
        with short_path(path) as place:
            return await asyncio.start_unix_server(answer, place)
    except OSError as cause:
        what = f"The socket {path} cannot be created: {cause.strerror or cause}."
        stopped = "The coordinator did not start."
        raise unusable_state(cause, what=what, consequence=stopped, file="coordinator.yaml") from cause


async def stop_run(state: Path) -> str:
    """End the run of the coordinator that uses this state directory. Return the name of the run.

    Raises:
        UnavailableError: no coordinator is running.
        UsageError: there is no run.
    """
    answer = json.loads(await ask(state, "stop"))
    if not answer["changed"]:
        raise UsageError(
            what="`coordinator stop` has no effect: every run has ended.",
            consequence="Nothing was changed.",
            remedy="`coordinator status` shows the state of the run.",
        )
    return str(answer["run"])


async def ask(state: Path, word: str = "status") -> bytes:
    """Send a command word to the coordinator that uses this state directory, and return its reply.

    Raises:
        UnavailableError: no coordinator is running, or it does not answer within some seconds.
    """
    try:
        with short_path(control_path(state)) as place:
            reader, writer = await asyncio.open_unix_connection(place)
        writer.write(word.encode())
        writer.write_eof()
        async with asyncio.timeout(_REPLY_SECONDS):
            answer = await reader.read()
        writer.close()
        if not answer:
            raise ConnectionResetError("it is ending")
    except OSError as cause:
        raise not_answering("coordinator", "`coordinator start`") from cause
    return answer
