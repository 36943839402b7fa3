"""Checks the trainer's table, network access and processors for `site-agent doctor`, in a separate process.

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
from protos.errors import ConfigurationError, OperatorError, UnavailableError, explained
from site_agent.trainer.isolation import give_up_network

if TYPE_CHECKING:
    from site_agent.hospital import Hospital, Training


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml.")
def main(path: Path) -> None:
    """Check the table and this computer's processors. The command trains nothing and writes nothing.

    Example: python -m site_agent.desk.trainer_doctor --config hospital.yaml
    """
    os.umask(0o077)
    found = [_isolation(has_network=not give_up_network())]

    from site_agent.hospital import read_hospital

    try:
        hospital = read_hospital(path)
        training = hospital.training
        found += [_table(hospital), _threads(training.threads, len(os.sched_getaffinity(0))), _device(training)]
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


def _table(hospital: Hospital) -> Finding:
    from site_agent.trainer.data.contract import read_contract
    from site_agent.trainer.data.dataset import prepare_rows, split_rows
    from site_agent.trainer.data.image_folder import temporary_folder
    from site_agent.trainer.data.tables import read_table

    try:
        contract = read_contract(Path(hospital.data.contract))
        table = read_table(Path(hospital.data.table), contract, scratch=temporary_folder())
        prepare_rows(table, split_rows(table, hospital.data.split))
    except PermissionError:
        return _closed()
    except Exception as error:
        told = explained(error)
        if isinstance(error.__cause__, PermissionError):
            return _closed()
        print(told.lines("site-trainer"), file=sys.stderr, flush=True)
        remedy = "Follow the message on the terminal, or run `site-agent check` under the trainer's user account."
        is_away = isinstance(told, UnavailableError)
        says = "The table could not be read now." if is_away else "The table does not satisfy its contract."
        return failure("D412", f"{says} The terminal (standard error) shows the reason.", remedy)
    return fine("D412", "The table satisfies its contract.")


def _closed() -> Finding:
    command = "sudo -u site-trainer site-agent doctor --side trainer --config hospital.yaml"
    remedy = f"Run the command under the trainer's user account: {command}"
    return failure("D412", "Your user account may not read the table or its contract.", remedy)


def _threads(wanted: int, there: int) -> Finding:
    says = f"hospital.yaml sets {wanted} threads for training. This process may use {there} processors."
    if wanted > there:
        return warning("D413", says, "Lower `threads` in hospital.yaml, or give the service more processors.")
    return fine("D413", says)


def _device(training: Training) -> Finding:
    if training.device == "cpu":
        is_there = any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128"))
        unused = " This computer has a graphics card, which is not used." if is_there else ""
        return fine("D423", f"Networks are trained on the processor (device: cpu).{unused}")

    from site_agent.trainer.arithmetic import prepare_arithmetic

    try:
        prepare_arithmetic(training.threads, training.device)
    except ConfigurationError as refused:
        return failure("D423", refused.what, refused.remedy)
    import torch

    return fine("D423", f"Networks are trained on the graphics card {torch.cuda.get_device_name()} (device: cuda).")


if __name__ == "__main__":
    main()
