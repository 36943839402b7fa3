"""Starts the processes of a rehearsal, watches these processes, and ends all of them together."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, TaskID

from coordinator.commands.configuration import read_configuration
from coordinator.network.control_socket import ask
from protos.errors import OperatorError, UnavailableError
from quickstart.federation import PROGRAMS, Rehearsal

_LOOK_SECONDS: Final = 0.2
_FAREWELL_SECONDS: Final = 60.0
_LAST_LINES: Final = 8


def run_to_the_end(rehearsal: Rehearsal, console: Console) -> None:
    """Start the coordinator and the agents, and show progress until all have ended.

    Raises:
        OperatorError: a program ended with a failure; the end of its log is shown.
    """
    programs = _start(rehearsal)
    try:
        with Progress(console=console) as progress:
            tasks = {study.name: progress.add_task(study.label, total=rehearsal.rounds) for study in rehearsal.studies}
            while programs["coordinator"].poll() is None:
                _show(_status(rehearsal), tasks, progress)
                _raise_for_failed(rehearsal, programs)
                time.sleep(_LOOK_SECONDS)
            _wait_for_all(rehearsal, programs)
            _raise_for_failed(rehearsal, programs)
            for task in tasks.values():
                progress.update(task, completed=rehearsal.rounds)
    finally:
        for program in programs.values():
            if program.poll() is None:
                program.terminate()
        for program in programs.values():
            program.wait()


def _start(rehearsal: Rehearsal) -> dict[str, subprocess.Popen[bytes]]:
    """Start the coordinator and one agent per hospital. Each writes a log beside its configuration."""
    started = {}
    for name, log in _logs(rehearsal).items():
        words = ("coordinator", "start") if name == "coordinator" else ("site-agent", "join")
        file_name = "coordinator.yaml" if name == "coordinator" else "hospital.yaml"
        command = [PROGRAMS / words[0], words[1], "--config", log.with_name(file_name)]
        with log.open("wb") as file:
            started[name] = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    return started


def _logs(rehearsal: Rehearsal) -> dict[str, Path]:
    agents = {hospital.name: rehearsal.folder / hospital.name / "agent.log" for hospital in rehearsal.hospitals}
    return {"coordinator": rehearsal.folder / "coordinator.log"} | agents


def _status(rehearsal: Rehearsal) -> dict[str, Any] | None:
    """Return the output of `coordinator status --json`, or None while the coordinator does not answer."""
    configuration = read_configuration(rehearsal.folder / "coordinator.yaml")
    try:
        answer = asyncio.run(ask(Path(configuration.state)))
    except UnavailableError:
        return None
    return json.loads(answer) if answer else None


def _show(status: dict[str, Any] | None, tasks: dict[str, TaskID], progress: Progress) -> None:
    run = status["run"] if status else None
    if run:
        for study, task in tasks.items():
            if study == run["study"]:
                progress.update(task, completed=run["rounds_made"])
                break
            progress.update(task, completed=run["rounds"])


def _wait_for_all(rehearsal: Rehearsal, programs: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _FAREWELL_SECONDS
    while running := [name for name, program in programs.items() if program.poll() is None]:
        _raise_for_failed(rehearsal, programs)
        if time.monotonic() > deadline:
            raise OperatorError(
                what=f"{running[0]} was still running {_FAREWELL_SECONDS:g} seconds after the coordinator ended.",
                consequence="The rehearsal was ended. No data left this computer.",
                remedy="Report this to the project, with the logs in the rehearsal's folder.",
            )
        time.sleep(_LOOK_SECONDS)


def _raise_for_failed(rehearsal: Rehearsal, programs: dict[str, subprocess.Popen[bytes]]) -> None:
    logs = _logs(rehearsal)
    failed = {name: program.returncode for name, program in programs.items() if program.poll() not in (None, 0)}
    if failed:
        ends = "\n".join(
            f"    {name} ended with status {status}; the last lines of {logs[name]}:\n{_end_of(logs[name])}"
            for name, status in failed.items()
        )
        raise OperatorError(
            what=f"The federation did not finish.\n{ends}",
            consequence="The other programs were ended. No data left this computer.",
            remedy="Correct the problems in the lines above, and start again.",
        )


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join(f"      {line[:300]}" for line in lines) or "      (nothing)"
