"""Implements `coordinator release`: writes the final parameters of a run for a recipient that all sites approved."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click
from safetensors import SafetensorError
from safetensors.numpy import load

from audit.own_log import AuditLog
from coordinator.commands.operator_commands import config_option
from coordinator.configuration import CoordinatorConfiguration, read_configuration
from coordinator.operations.coordinator_log import log_path
from host.command_line import PATH
from host.durable import give_to_owner, opened_folder, replace_file
from pki.authority import Authority
from protos.errors import ConfigurationError, UsageError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.release_statements import check_release, read_release_approval

_PARTS = ("parameters.safetensors", "plan.json", "record.json")


@click.command()
@config_option
@click.option("--run", "name", required=True, help="Name of the run, as `coordinator runs` shows it.")
@click.option(
    "--approval",
    "files",
    required=True,
    multiple=True,
    type=PATH,
    help="Approval file of a site, written by `site-agent release approve`. Repeat the option for each site.",
)
@click.option("--output", required=True, type=PATH, help="New folder to which the command writes its files.")
def release(path: Path, name: str, files: tuple[Path, ...], output: Path) -> None:
    """Write the final parameters of a run to a folder, for a recipient that every site of the run approved.

    Example: coordinator release --config coordinator.yaml --run RUN --approval st-mary.release --output release
    """
    configuration = read_configuration(path)
    folder = Path(configuration.state) / "runs" / name
    if "/" in name or not (folder / "record.json").is_file():
        raise UsageError(
            what=f"This coordinator has no finished run with the name {name}.",
            consequence="Nothing was written or sent.",
            remedy="The command `coordinator runs` lists the names of all runs.",
        )
    parts = {part: (folder / part).read_bytes() for part in _PARTS}  # the checked bytes are written
    record, plan = json.loads(parts["record.json"]), plan_from_wire(parts["plan.json"])
    approvals = [read_release_approval(file) for file in files]
    recipient = check_release(plan, plan.site_names, record["shared_parameters_sha256"], approvals)
    if not record["is_complete"]:
        raise ConfigurationError(
            what=f"The run {name} ended before it was complete.",
            consequence="Nothing was written or sent.",
            remedy="Start the study again with a new version of its plan.",
        )
    _check_parameters(parts["parameters.safetensors"], plan, record["shared_parameters_sha256"])
    facts = {
        "run": name,
        "recipient": recipient,
        "parameters_sha256": record["shared_parameters_sha256"],
        "approvals": [approval.model_dump() for approval in sorted(approvals, key=lambda given: given.site)],
    }
    output.mkdir(mode=0o700, parents=True, exist_ok=False)
    _record(configuration, {key: facts[key] for key in ("run", "recipient", "parameters_sha256")})
    for part, content in parts.items():
        replace_file(output / part, content, mode=0o644)
    replace_file(output / "release.json", (json.dumps(facts, indent=2) + "\n").encode(), mode=0o644)
    _keep(folder, facts)
    click.echo(f"Released to {recipient}: {output}, approved by {', '.join(plan.site_names)}.")


def _keep(run: Path, facts: dict[str, object]) -> None:
    """Append a record of the release to the file `releases.jsonl` of the run."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened_folder(run) as folder, os.fdopen(os.open("releases.jsonl", flags, 0o600, dir_fd=folder), "a") as kept:
        give_to_owner(kept.fileno(), folder)
        kept.write(json.dumps(facts) + "\n")


def _check_parameters(content: bytes, plan: Plan, sha256: str) -> None:
    """Check that the tensors in a file, in the manifest's order, have the digest that all sites signed."""
    tensors = manifest_of(plan).tensors
    try:
        found = load(content)
    except (SafetensorError, ValueError) as cause:
        raise _other_parameters() from cause
    there = [tensor for tensor in tensors if tensor.name in found]  # some methods do not share all layers at the end
    is_known = len(there) == len(found) and all(
        found[tensor.name].dtype == "float32" and found[tensor.name].shape == tensor.shape for tensor in there
    )
    digest = hashlib.sha256(b"".join(found[tensor.name].tobytes() for tensor in there)).hexdigest()
    if not is_known or digest != sha256:
        raise _other_parameters()


def _other_parameters() -> ConfigurationError:
    return ConfigurationError(
        what="The run's parameter file differs from the parameters for which the sites signed their approvals.",
        consequence="Nothing was written or sent.",
        remedy="Give a copy of the parameter file to the security officer. Then restore the folder of the run from a "
        "backup.",
    )


def _record(configuration: CoordinatorConfiguration, facts: dict[str, object]) -> None:
    """Write the release into the coordinator's audit log. A running coordinator may also be writing to this log."""
    key = Authority.load(Path(configuration.authority)).identity_key()
    limits, place = configuration.audit.limits, log_path(Path(configuration.state))
    log = AuditLog(place, site=None, now=lambda: datetime.now(UTC), identity_key=key, limits=limits)
    with closing(log):
        log.write("parameters_released", **facts)
