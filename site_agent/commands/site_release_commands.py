"""Contains `site-agent release`, which approves a recipient of a run's final parameters or records withdrawn data.

These commands open no connection: a site's approval is a signed file, which people send.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from host.command_line import PATH, by_option
from pki.identity_key import read_identity_key
from pki.store import write_public
from protos.errors import UsageError
from site_agent.commands.site_options import audit_log_of, config_option
from site_agent.hospital import read_hospital
from site_agent.state_folders import gate_folder

_run_option = click.option("--run", required=True, help="Name of the run, as the audit log shows it.")


@click.group()
def release() -> None:
    """Approve that somebody receives the result of a study, or withdraw this site's data from the study."""


@release.command()
@config_option
@_run_option
@by_option
@click.option("--to", "recipient", required=True, help="Recipient of the parameters and the purpose, in one line.")
@click.option("--output", required=True, type=PATH, help="Output file. Send the file to the federation office.")
def approve(path: Path, run: str, by: str, recipient: str, output: Path) -> None:
    """Approve that a recipient receives the final shared parameters of a run. Every site of the run must approve.

    Example: site-agent release approve --config hospital.yaml --run RUN --by "Anna Jones" --to "Ben Lee" --output a.txt
    """
    hospital = read_hospital(path)

    from protos.wire.release_statements import approve_release

    log = audit_log_of(hospital)
    ends = [facts for facts in log.all_records("run_finished") if facts["run"] == run]
    if not ends or "parameters_sha256" not in ends[-1]:
        raise UsageError(
            what=f"This site has not received a result of the run {run}.",
            consequence="The command signed no approval. Nothing was sent.",
            remedy="To list the runs that ended at this site, use `site-agent audit show --event run_finished`.",
        )
    digest, at = ends[-1]["parameters_sha256"], datetime.now(UTC).isoformat(timespec="seconds")
    approval = approve_release(
        read_identity_key(gate_folder(hospital.state_path)),
        run=run,
        parameters_sha256=digest,
        recipient=_line(recipient, "--to"),
        site=hospital.site,
        by=_line(by, "--by"),
        at=at,
    )
    log.write("release_approved", run=run, parameters_sha256=digest, recipient=approval.recipient, by=approval.by)
    write_public(output, (json.dumps(approval.model_dump(), indent=2) + "\n").encode())
    click.echo(f"{approval.by} approved that the parameters {digest[:16]}... of {run} go to {approval.recipient}.")
    click.echo(f"Send {output} to the federation office. The office needs such a file from every site.")


@release.command("withdraw-data")
@config_option
@_run_option
@by_option
@click.option("--reason", required=True, help="Reason for the withdrawal in one line. Do not write a patient's name.")
def withdraw_data(path: Path, run: str, by: str, reason: str) -> None:
    """Record that this site withdraws its data after training. The output shows what can be undone and what not.

    Example: site-agent release withdraw-data --config hospital.yaml --run RUN --by "Anna Jones" --reason "no consent"
    """
    hospital, by, reason = read_hospital(path), _line(by, "--by"), _line(reason, "--reason")
    log = audit_log_of(hospital)
    sent = {facts["round"]: facts for facts in log.all_records("contribution_released") if facts["run"] == run}
    if not sent:
        raise UsageError(
            what=f"This site sent nothing in the run {run}.",
            consequence="Nothing was recorded. There is nothing to undo in this run.",
            remedy="To list the runs of this site, use `site-agent audit show --event run_joined`.",
        )
    log.write("data_withdrawn", run=run, rounds=len(sent), by=by, reason=reason)
    for line in _consequences(run, sent):
        click.echo(line)


def _consequences(run: str, sent: dict[int, dict[str, Any]]) -> list[str]:
    masked = all(facts["masked"] for facts in sent.values())
    how = "only as a part of sums with other sites" if masked else "without masks, as the plan allowed"
    return [
        f"Recorded. {len(sent)} rounds of {run} had contributions of this site. They were sent {how}.",
        "What cannot be undone: nobody can divide a sum again. So no coordinator and no site can remove this site's "
        "part",
        "  from the shared parameters. People who have these parameters keep them, and keep the models made from them.",
        "What you can do now:",
        "  stop the study, if it is still running: site-agent withdraw --config hospital.yaml --by NAME",
        "  prevent that others receive the result: sign no release of this run. Every release needs this site's "
        "signature",
        "  ask the researcher for a new version of the plan. It trains from the start, without this data or without "
        "this site",
        f"  delete what this site stores about the run in its state folder: models/{run}, reports/{run}.json, "
        f"saves/{run}",
        "  remove the patients from the table, so that the next study does not use their data",
        "Inform the federation office and the data protection officer. Show them this record of the audit log.",
    ]


def _line(text: str, option: str) -> str:
    words = " ".join(text.split())
    if not words or not words.isprintable() or len(words) > 200:
        raise UsageError(
            what=f"The text of {option} must be one line of 1 to 200 printable characters.",
            consequence="Nothing was recorded. Nothing was sent.",
            remedy="Shorten the text of this option to one line.",
        )
    return words
