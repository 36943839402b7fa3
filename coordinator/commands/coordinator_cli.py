"""Implements the commands of the program `coordinator`.

An operator never sees a traceback: every failure is three sentences on standard error and a documented exit status.
`check`, `doctor` and `status` start nothing and change nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from coordinator.commands.configuration import CoordinatorConfiguration, read_configuration, read_plans
from coordinator.network.control_socket import ask, stop_run
from coordinator.storage.history import known_runs, store_path
from host.audit_log import AuditLog
from host.command_line import (
    account,
    by_option,
    configuration_option,
    finish,
    json_option,
    metrics_option,
    person,
    report_findings,
)
from host.diagnosis import Finding, failure, fine, judge_disk, judge_log, warning
from host.log_commands import LogProgram, LogSource
from host.log_lines import set_up_log
from host.metrics_text import metrics_text
from host.secret_files import hold_directory
from pki import key_checks
from pki.authority import Authority
from pki.register import Register, SiteState
from protos.errors import ConfigurationError, OperatorError, UnavailableError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.privacy_in_words import how_private, price_in_words

_config_option: Final = configuration_option("coordinator.yaml")


@click.group()
@click.version_option(version("global-layers"), prog_name="coordinator")
def cli() -> None:
    """Run the coordinator, which sums the contributions of the sites in each round.

    Example: coordinator start --config coordinator.yaml
    """


@cli.command()
@_config_option
def start(path: Path) -> None:
    """Run all plans that coordinator.yaml names, and stop when all plans are complete.

    Example: coordinator start --config coordinator.yaml
    """
    set_up_log()
    configuration = read_configuration(path)
    plans = read_plans(configuration)

    from coordinator.commands.serve import serve  # gRPC is loaded only if it is needed

    sys.exit(0 if asyncio.run(serve(configuration, plans)) else 1)


@cli.command()
@_config_option
def check(path: Path) -> None:
    """Check coordinator.yaml and every plan, and show the digest of each plan. This command starts no run.

    The command compares the fingerprint of each site in a plan with the register of sites.

    Example: coordinator check --config coordinator.yaml
    """
    from coordinator.commands.status_lines import line_of_a_round

    configuration = read_configuration(path)
    if not (plans := read_plans(configuration)):
        click.echo(f"The keys of {path.name} are right. It names no plan under `plans`, so no plan was checked.")
    for plan in plans:
        manifest = manifest_of(plan)
        click.echo(f"{plan.study} version {plan.version}: {plan.method_name}, {plan.rounds} rounds")
        click.echo(f"  plan      {plan.digest.hex()}")
        if plan.privacy is not None:
            click.echo(f"  privacy   {price_in_words(plan.privacy, plan.private_sums)}")
            for sentence in how_private(plan):
                click.echo(f"            {sentence}")
        size = f" ({len(manifest.tensors)} tensors, {manifest.parameters} numbers)" if manifest.tensors else ""
        click.echo(f"  manifest  {manifest.digest.hex()}{size}")
        click.echo(f"  line      {line_of_a_round(plan, manifest)}")
        click.echo(f"  sites     {_registered(Path(configuration.authority), plan)}")


def _registered(authority: Path, plan: Plan) -> str:
    """Describe how many sites of a plan are in the register. Raise an error if a site's key differs in the register."""
    if not authority.exists():
        return "There is no register here, so fingerprints were not compared."
    with Register(Authority.load(authority).register_path) as register:
        sites = {str(site.name): site for site in register.sites()}
    known = {name: site.identity_fingerprint for name, site in sites.items()}
    for site in plan.sites:
        if (found := known.get(site.name)) not in (None, site.identity):
            raise ConfigurationError(
                what=f"The plan {plan.study} lists the site {site.name} with the fingerprint {site.identity}. The "
                f"register of sites has the fingerprint {found}.",
                consequence=f"Nothing was started. The site {site.name} could not take part in this run.",
                remedy="Call the hospital and compare the fingerprint. Then correct the list of sites in the plan: "
                "`pki list --plan` prints this list from the register of sites.",
            )
    removed = [site.name for site in plan.sites if site.name in sites and sites[site.name].state is SiteState.REVOKED]
    missing = [site.name for site in plan.sites if known.get(site.name) is None]
    if len(missing) == len(plan.sites):
        return "No site of this plan has requested enrolment yet, so fingerprints were not compared."
    told = [f"Cannot take part because of `pki revoke`: {', '.join(removed)}."] if removed else []
    told += [f"No request for enrolment yet: {', '.join(missing)}."] if missing else []
    return " ".join([*told, f"All {'other ' if told else ''}fingerprints are those of the register."])


@cli.command()
@_config_option
@json_option
@metrics_option
def status(path: Path, as_json: bool, as_metrics: bool) -> None:
    """Show the state of a running coordinator.

    Example: coordinator status --config coordinator.yaml --json
    """
    state = Path(read_configuration(path).state)
    answer: dict[str, Any] = json.loads(asyncio.run(ask(state)))
    if as_metrics:
        click.echo(coordinator_metrics(answer, state), nl=False)
    elif as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        from rich.console import Console

        from coordinator.commands.status_lines import print_status

        print_status(answer, Console())


@cli.command()
@_config_option
@json_option
def runs(path: Path, as_json: bool) -> None:
    """List every run in this coordinator's state directory. This command also works while no coordinator is running.

    Example: coordinator runs --config coordinator.yaml
    """
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "standing": history.standing,
            "rounds_made": history.rounds_made,
            "void_attempts": history.counts["round_void"],
            "returns": history.counts["run_back"],
            "restarts": history.counts["run_taken_up"],
            "began": history.began,
        }
        for name, history in known_runs(Path(read_configuration(path).state)).items()
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return

    from rich.console import Console
    from rich.table import Column, Table

    from coordinator.commands.status_lines import print_wide

    # Other commands need the whole name, so it is never cut off.
    widest = max((len(run["name"]) for run in found), default=0)
    name, began = Column("run", no_wrap=True, min_width=widest), Column("began (UTC)", no_wrap=True, min_width=16)
    table = Table(name, "standing", "rounds made", "void attempts", "returns", "restarts", began)
    for run in found:
        table.add_row(*map(str, (run | {"began": run["began"][:16].replace("T", " ")}).values()))
    print_wide(table, widest, Console())


@cli.command()
@_config_option
@click.option("--run", "name", help="Name of the run. Without this option, the newest statistics plan is shown.")
def results(path: Path, name: str | None) -> None:
    """Show the results of a statistics plan, and the folder with its page and its files.

    Example: coordinator results --config coordinator.yaml
    """
    from host.statistics_page import find_results
    from protos.statistics.printed_results import RESULTS_JSON, results_as_lines

    folder, found = find_results(Path(read_configuration(path).state) / "runs", name)
    ended = [run for run, history in known_runs(folder.parents[1]).items() if history.is_over]
    for line in results_as_lines(found, [run for run in ended if not (folder.parent / run / RESULTS_JSON).exists()]):
        click.echo(line)
    click.echo(f"The files are in {folder}.")


@cli.command()
@_config_option
@click.confirmation_option(prompt="A run that is stopped is never taken up again. Stop it?")
def stop(path: Path) -> None:
    """End the run permanently and keep its results. To interrupt a run only for a time, stop
    the program `coordinator start` instead.

    Example: coordinator stop --config coordinator.yaml --yes
    """
    click.echo(f"{asyncio.run(stop_run(Path(read_configuration(path).state)))} has ended.")


_log = LogProgram(
    command="coordinator",
    file="coordinator.yaml",
    source_of=lambda path: LogSource(store_path(Path(read_configuration(path).state)), None),
)
cli.add_command(_log.group("Check, read and export the log of all that the coordinator decided and sent."))


@cli.command()
@_config_option
@by_option
@click.option("--because", required=True, help="Reason in a few words, written to the audit log.")
def restored(path: Path, by: str, because: str) -> None:
    """Declare that an older copy of the coordinator's state folder is in use. All sites see this declaration, and
    accept the older log.

    Example: coordinator restored --config coordinator.yaml --by "Anna Jones" --because "disk failed"
    """
    state, by, because = Path(read_configuration(path).state), person(by), person(because, "--because")
    hold_directory(state, "coordinator")
    with closing(AuditLog(store_path(state), site=None, now=lambda: datetime.now(UTC))) as log:
        log.declare_restored(by=by, because=because, account=account())
    click.echo("Recorded. Unfinished runs continue with much higher numbers of attempts and key sessions.")


@cli.command()
@_config_option
@json_option
def doctor(path: Path, as_json: bool) -> None:
    """Check whether the coordinator has everything that it needs to run.

    You can run this command at any time. The command changes nothing.

    The exit status is 0 if no problem was found, 3 if there are only warnings, and 1 if a check failed.

    Example: coordinator doctor --config coordinator.yaml
    """
    report_findings(_examine(path), as_json=as_json)


def _examine(path: Path) -> list[Finding]:
    """Return the findings of all checks, in the order in which the coordinator needs the checked parts at its start."""
    try:
        configuration = read_configuration(path)
    except OperatorError as wrong:
        return [failure("D401", wrong.what, wrong.remedy)]
    state = Path(configuration.state)
    return [
        fine("D401", f"{path.name} has no mistakes."),
        judge_disk(state),
        *key_checks.judge_authority(Path(configuration.authority), datetime.now(UTC)),
        _plans(configuration),
        judge_log(store_path(state), None),
        _program(state),
    ]


def _program(state: Path) -> Finding:
    """Check whether a coordinator answers. Its socket remains after a crash, so a connection is necessary."""
    try:
        asyncio.run(ask(state))
    except UnavailableError as silent:
        return warning("D418", silent.what, silent.remedy)
    return fine("D418", "The coordinator is running.")


def _plans(configuration: CoordinatorConfiguration) -> Finding:
    try:
        plans = read_plans(configuration)
    except OperatorError as wrong:
        return failure("D421", wrong.what, wrong.remedy)
    return fine("D421", f"{len(plans)} plans were checked and have no mistakes.")


def main() -> NoReturn:
    """Run the command that a person typed, and end this program with the exit status of the command."""
    os.umask(0o077)
    sys.exit(finish("coordinator", cli))


def coordinator_metrics(status: Mapping[str, Any], state: Path) -> str:  # Any: every type that JSON has
    """Return the metrics as text. Free space is measured on the disk with the folder `state`."""
    run, sites, disk = status["run"] or {}, status["sites"].values(), os.statvfs(state)
    figures = {
        "certificate_days": status["coordinator_certificate_days"],
        "sites_listed": len(sites),
        "sites_connected": sum(site["connected"] for site in sites),
        "sites_joined": sum(site["joined"] for site in sites),
        "cannot_write": status.get("trouble") is not None,
        "runs_over": status["runs_over"],
        "runs_waiting": status["runs_waiting"],
        "rounds_made": run.get("rounds_made"),
        "rounds_planned": run.get("rounds"),
        "median_round_seconds": run.get("median_round_seconds"),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }
    return metrics_text("global_layers_coordinator", {name: run.get(name, "") for name in ("run", "phase")}, figures)
