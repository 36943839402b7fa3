"""The command `site-agent`: join, identity, check, review, approve, predict, audit.

Only `join` opens a connection; what the other commands read and write stays on this computer. No
traceback reaches an operator: every failure is three sentences and a documented exit status.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

# Nothing here multiplies matrices, and a thread that numpy starts would keep `predict` from giving up the network.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

from protos.documents import read_document
from protos.errors import UsageError, explained
from protos.manifest import manifest_of
from protos.plan import Plan, plan_from_wire
from site_agent.approval import approve as record_approval
from site_agent.approval import find_approval
from site_agent.commands.options import config_option, plan_option
from site_agent.config import Hospital, read_hospital
from site_agent.logs import set_up_log
from site_agent.review import review_lines


@click.group()
@click.version_option(version("global-layers"), prog_name="site-agent")
def cli() -> None:
    """Take part in a federation; data, private layers and predictions stay here.

    Example: site-agent join --config hospital.yaml
    """


@cli.command()
@config_option
def join(path: Path) -> None:
    """Join the federation and train until its studies are over.

    Example: site-agent join --config hospital.yaml
    """
    set_up_log("site-agent")
    hospital = read_hospital(path)

    from site_agent.boundary.join import join as run_agent  # gRPC is loaded only where it is needed

    try:
        asyncio.run(run_agent(hospital, path.resolve()))
    except asyncio.CancelledError:
        sys.exit(0)  # asked to stop by a signal


@cli.command()
@config_option
def identity(path: Path) -> None:
    """Show the fingerprint of this site's identity key, making the keys where there are none.

    The federation office writes it into the plan; read it to them over the telephone.

    Example: site-agent identity --config hospital.yaml
    """
    hospital = read_hospital(path)

    from pki.site_keys import SiteKeys

    directory = hospital.state_path / "keys"
    keys = SiteKeys.load(directory) if SiteKeys.exists(directory) else SiteKeys.create(directory)
    click.echo(keys.identity_fingerprint())


@cli.command()
@config_option
def check(path: Path) -> None:
    """Read the configuration and check the table against its contract; nothing is sent.

    Example: site-agent check --config hospital.yaml
    """
    hospital = read_hospital(path)

    from site_agent.trainer.data.contract import read_contract
    from site_agent.trainer.data.dataset import prepare

    contract = read_contract(Path(hospital.data.contract))
    dataset, _ = prepare(Path(hospital.data.table), contract, hospital.data.split)
    parts = (len(dataset.training), len(dataset.validation), len(dataset.test))
    click.echo(f"{hospital.site}: {sum(parts)} rows ({parts[0]} training, {parts[1]} validation, {parts[2]} test)")
    click.echo(f"{len(dataset.columns)} columns after encoding: {', '.join(dataset.columns)}")


@cli.command()
@config_option
@plan_option
def review(path: Path, plan_path: Path | None) -> None:
    """Show what a plan would make this site send.

    Example: site-agent review --config hospital.yaml --plan plan.yaml
    """
    hospital = read_hospital(path)
    plan = _read_plan(hospital, plan_path)
    for line in review_lines(plan, manifest_of(plan)):
        click.echo(line)
    found = find_approval(hospital.state_path, plan)
    click.echo(f"Approved by {found.by} at {found.at}." if found else "Not approved at this site.")


@cli.command()
@config_option
@plan_option
@click.option("--by", required=True, help="The name of the person who approves.")
def approve(path: Path, plan_path: Path | None, by: str) -> None:
    """Record that a person agrees to a plan; without this nothing trains.

    Example: site-agent approve --config hospital.yaml --plan plan.yaml --by "A. Jones"
    """
    hospital = read_hospital(path)
    plan = _read_plan(hospital, plan_path)
    if not by.strip() or not by.isprintable():
        raise UsageError(
            what="--by names nobody.",
            consequence="Nothing was approved; nothing left this site.",
            remedy="Give the name of the person who approves, as it shall stand in the audit log.",
        )

    from site_agent.boundary.audit import AuditLog

    log = AuditLog(hospital.state_path / "audit.log", site=hospital.site, now=lambda: datetime.now(UTC))
    log.write("plan_approved", plan=plan.digest.hex(), manifest=manifest_of(plan).digest.hex(), by=by)
    record_approval(hospital.state_path, plan, by=by, at=datetime.now(UTC))
    click.echo(f"{by} approved {plan.study} version {plan.version}, plan digest {plan.digest.hex()}.")


@cli.command()
@config_option
@click.option("--input", "table", required=True, type=click.Path(path_type=Path), help="A table with new rows.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Where the predictions go.")
@click.option("--run", "run_name", help="The run whose model is used; without it, the latest.")
def predict(path: Path, table: Path, output: Path, run_name: str | None) -> None:
    """Apply the chosen model to new rows; everything stays here.

    Example: site-agent predict --config hospital.yaml --input new.csv --output predictions.csv
    """
    hospital = read_hospital(path)

    from site_agent.trainer.isolation import give_up_network

    give_up_network()  # before anything starts a thread: this command needs no network

    from site_agent.trainer.prediction import predict_table

    rows = predict_table(hospital, table, output, run_name)
    click.echo(f"{rows} rows predicted into {output}.")


@cli.group()
def audit() -> None:
    """Read the audit log."""


@audit.command()
@config_option
def verify(path: Path) -> None:
    """Check every record of the audit log.

    Example: site-agent audit verify --config hospital.yaml
    """
    hospital = read_hospital(path)

    from site_agent.boundary.audit import verify_log

    head = verify_log(hospital.state_path / "audit.log")
    click.echo(f"{head.sequence} records, unbroken, head {head.hash}.")


def _read_plan(hospital: Hospital, path: Path | None) -> Plan:
    if path is not None:
        return read_document(path, Plan, consequence="Nothing was approved; nothing left this site.")
    announced = sorted((hospital.state_path / "plans").glob("*.json"), key=lambda plan: plan.stat().st_mtime)
    if not announced:
        raise UsageError(
            what="No plan was announced to this site yet, and none was named.",
            consequence="Nothing was approved; nothing left this site.",
            remedy="Name the plan's file with --plan, or let `site-agent join` fetch it first.",
        )
    return plan_from_wire(announced[-1].read_bytes())


def main() -> NoReturn:
    """The entry point; an operator never sees a traceback."""
    os.umask(0o077)
    try:
        cli(standalone_mode=False)
        sys.exit(0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(UsageError.exit_status)
    except Exception as error:
        told = explained(error)
        print(told.lines("site-agent"), file=sys.stderr)
        sys.exit(told.exit_status)
