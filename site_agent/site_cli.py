"""Contains `site-agent join` and `identity`. All other commands of `site-agent` are in the folder `commands`.

Only `join` opens a connection, and `doctor` tests some. All other commands read and write only on this
computer. No traceback reaches an operator: every failure is three sentences and a documented exit status.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

# If numpy had started a thread, `predict` could not give up its network access. This process multiplies no matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

from host.command_line import extra, finish
from host.log_lines import set_up_log
from site_agent.commands.approval_commands import approve, review, withdraw
from site_agent.commands.data_commands import data, init
from site_agent.commands.model_commands import export, predict, report, results
from site_agent.commands.site_options import config_option
from site_agent.commands.state_commands import audit, doctor, privacy, restored, status
from site_agent.hospital import read_hospital


@click.group()
@click.version_option(version("global-layers"), prog_name="site-agent")
def cli() -> None:
    """Take part in a federation of hospitals. Patient data, private parameters and predictions never leave this site.

    Example: site-agent join --config hospital.yaml
    """


@cli.command()
@config_option
def join(path: Path) -> None:
    """Join the federation and train until its studies are complete.

    This command runs the gate process, which has the keys. The gate process starts the agent (with network access)
    and the trainer (with the patients' data). If hospital.yaml names gate_socket, the agent is a service, and this
    command does not start the agent. If hospital.yaml names trainer_socket, the trainer is a service, and this command
    does not start the trainer.

    Example: site-agent join --config hospital.yaml
    """
    set_up_log("site-agent")
    hospital = read_hospital(path)

    from site_agent.gate.mishaps import TrainerFailed
    from site_agent.service.joining import join as run_gate

    try:
        asyncio.run(run_gate(hospital, path.resolve()))
    except TrainerFailed as failed:
        if hospital.trainer_socket is not None:
            raise
        sys.exit(failed.exit_status)  # the trainer has already printed the reason
    except asyncio.CancelledError:  # asked to stop by a signal
        kept = "Keys, approvals, saved models and the audit log are kept in the state folder."
        click.echo(f"site-agent: stopped. {kept} `site-agent join` continues the run.", err=True)
        sys.exit(0)


@cli.command()
@config_option
def identity(path: Path) -> None:
    """Show the fingerprint of this site's identity key. If this site has no identity key, create the key.

    Read the fingerprint to the federation office over the telephone. The federation office adds the fingerprint to the
    plan. Run this command under the gate's user account or as root.

    Example: site-agent identity --config hospital.yaml
    """
    hospital = read_hospital(path)

    from pki.identity_key import identity_fingerprint
    from site_agent.service.enrolling import site_identity_key
    from site_agent.state_folders import gate_folder

    click.echo(identity_fingerprint(site_identity_key(gate_folder(hospital.state_path))))


for command in (
    audit, restored, predict, report, results, export,
    data, doctor, init, privacy, status, review, approve,
    withdraw,
):  # fmt: skip
    cli.add_command(command)
with extra("site_agent.console"):
    from site_agent.console.console_command import console

    cli.add_command(console)


def main() -> NoReturn:
    """Run the command of `site-agent` that a person typed. Errors are shown as sentences, without program code."""
    os.umask(0o077)
    sys.exit(finish("site-agent", cli))
