"""Checks the trainer's table, device and network access for `site-agent doctor`, in a separate process.

The process gives up the network before it reads the table, as the trainer does. It prints explanations of the table
on standard error, for the person. Its JSON result has only fixed words and its own numbers, and quotes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.diagnosis import Finding, failure, fine, warning
from host.log_lines import set_up_log
from protos.errors import OperatorError, explained
from site_agent.trainer.isolation import give_up_network

if TYPE_CHECKING:
    from site_agent.hospital import Hospital


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml.")
def main(path: Path) -> None:
    """Check the table and the device of training. The command trains nothing.

    Example: python -m site_agent.desk.trainer_doctor --config hospital.yaml
    """
    os.umask(0o077)
    set_up_log("site-trainer")
    found = [_isolation(has_network=not give_up_network())]

    from site_agent.hospital import read_hospital

    try:
        found.append(_table(read_hospital(path), path))
    except OperatorError:
        sys.exit(78)  # the main process of `site-agent doctor` has already reported this error
    print(json.dumps([finding.facts() for finding in found]))


def _isolation(*, has_network: bool) -> Finding:
    if has_network:
        remedy = (
            "Run the trainer with its systemd unit, which sets PrivateNetwork=yes. Or allow user namespaces with the "
            "kernel setting user.max_user_namespaces."
        )
        return warning(
            "D414",
            "On this computer, the process that reads the patients' data cannot remove its own network access.",
            remedy,
        )
    return fine("D414", "The process that reads the patients' data has no network access.")


def _table(hospital: Hospital, path: Path) -> Finding:
    from site_agent.trainer.before_rounds import check_table

    try:
        check_table(hospital)
    except PermissionError:
        return _closed(path)
    except Exception as error:
        told = explained(error)
        if isinstance(error.__cause__, PermissionError):
            return _closed(path)
        print(told.lines("site-trainer"), file=sys.stderr, flush=True)
        says = "Training could not begin now. The terminal (standard error) shows the reason."
        return failure("D412", says, "Follow the message on the terminal.")
    return fine("D412", f"The table may be used, and training has its device ({hospital.training.device}).")


def _closed(path: Path) -> Finding:
    command = f"sudo -u site-trainer site-agent doctor --side trainer --config {path.absolute()}"
    remedy = f"Run the command under the trainer's user account: `{command}`."
    return failure("D412", "Your user account may not read the table or its contract.", remedy)


if __name__ == "__main__":
    main()
