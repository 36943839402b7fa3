"""Trainers by forking: `python -m tests.chaos.nursery` reads JSON lines and prints process ids.

A line is [configuration, log].

Each is the deployed trainer as a service: a process of its own, which gives up the network, listens on the socket of
its configuration, and can be killed. Only the libraries are loaded beforehand, once for all of them. When the lines
end, so do the trainers.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch  # noqa: F401 — loaded for the forks

import site_agent.desk.results.run_report
import site_agent.trainer.study
import site_agent.trainer.worker  # noqa: F401
from site_agent.trainer.isolation import end_with_parent
from site_agent.trainer_process import main


def _become_trainer(config: str, log: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_with_parent()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, source in ((0, null), (1, descriptor), (2, descriptor)):
        os.dup2(source, number)
    main(["--config", config])


def serve() -> None:
    """Fork a trainer for every line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel removes ended processes at once
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            status = 70
            try:
                _become_trainer(*json.loads(line))
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 0
            finally:
                os._exit(status)
        print(child, flush=True)


if __name__ == "__main__":
    serve()
