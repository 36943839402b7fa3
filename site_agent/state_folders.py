"""Defines in which folder of the state directory each process of a site stores its files.

`agent` has the TLS key, certificates and addresses. `gate` has the identity key, the audit log, announced plans and
the memory of masking and limits. Only a person's command writes to `approvals`. The other folders are the trainer's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from protos.errors import UsageError

FEDERATED_FILE: Final = "model"
_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def agent_folder(state: Path) -> Path:
    """Return the path of the folder for the agent, which is the process with network access."""
    return state / "agent"


def gate_folder(state: Path) -> Path:
    """Return the path of the folder for the gate process, which has the keys."""
    return state / "gate"


def approvals_folder(state: Path) -> Path:
    """Return the path of the folder with persons' decisions about plans. No service can write to this folder."""
    return state / "approvals"


def gate_store_path(state: Path) -> Path:
    """Return the path of the gate's store (host/record_store.py), which has this site's audit log."""
    return gate_folder(state) / "gate.sqlite"


def live_curves_path(state: Path, run: str) -> Path:
    """Return the path of the file with the losses and the metric of each round of a run, which the trainer writes."""
    return state / "reports" / "live" / f"{run}.json"


def is_run_name(run: str) -> bool:
    """Return whether a run's name is safe as a folder name, because the coordinator chooses the name."""
    return _RUN.fullmatch(run) is not None


def require_run_name(run: str) -> None:
    """Raise UsageError if a run's name is not safe as a folder name."""
    if not is_run_name(run):
        raise UsageError(
            what="A run's name has only letters, digits, dots, underscores and hyphens.",
            consequence="No file was read or changed, and nothing was sent.",
            remedy="Use the name of a folder in the folder `models` of the state directory, or omit the option --run.",
        )


def saved_runs(state: Path) -> list[str]:
    """Return the names of all runs whose federated model is saved at this site, the latest first."""
    models = (state / "models").glob(f"*/{FEDERATED_FILE}.safetensors")
    # If two models have the same time, the run's name decides, so that the order is always the same.
    times = {path.parent.name: path.stat().st_mtime_ns for path in models if is_run_name(path.parent.name)}
    return sorted(times, key=lambda run: (times[run], run), reverse=True)
