"""`coordinator release`: hand out the final parameters of a run that every site has approved for one recipient."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from coordinator.commands.options import config_option
from protos.errors import ConfigurationError, UsageError


@click.command()
@config_option
@click.option("--run", "name", required=True, help="The run, as `coordinator runs` names it.")
@click.option(
    "--approval",
    "files",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file that a site made with `site-agent release approve`; once for each site.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="A new folder for the recipient.")
def release(path: Path, name: str, files: tuple[Path, ...], output: Path) -> None:
    """Write the final parameters for the recipient whom every site of the run has approved.

    Example: coordinator release --config coordinator.yaml --run RUN --approval st-mary.release --output release
    """
    from coordinator.config import read_configuration
    from protos.plan import plan_from_wire
    from protos.release import check_release, read_release_approval

    folder = Path(read_configuration(path).state) / "runs" / name
    if "/" in name or not (folder / "record.json").is_file():
        raise UsageError(
            what=f"There is no finished run {name} here.",
            consequence="Nothing was written and nobody was given anything.",
            remedy="Look at their names with `coordinator runs`.",
        )
    record = json.loads((folder / "record.json").read_bytes())
    plan = plan_from_wire((folder / "plan.json").read_bytes())
    approvals = [read_release_approval(file) for file in files]
    recipient = check_release(plan, plan.site_names, record["shared_parameters_sha256"], approvals)
    if not record["is_complete"]:
        raise ConfigurationError(
            what=f"The run {name} did not reach its end.",
            consequence="Nothing was written and nobody was given anything.",
            remedy="Make the study again under a new version of its plan.",
        )
    output.mkdir(mode=0o700, parents=True, exist_ok=False)
    for part in ("parameters.safetensors", "plan.json", "record.json"):
        shutil.copyfile(folder / part, output / part)
    facts = {
        "run": name,
        "recipient": recipient,
        "parameters_sha256": record["shared_parameters_sha256"],
        "approvals": [approval.model_dump() for approval in sorted(approvals, key=lambda given: given.site)],
    }
    (output / "release.json").write_text(json.dumps(facts, indent=2) + "\n")
    with (folder / "releases.jsonl").open("a") as kept:
        kept.write(json.dumps(facts) + "\n")
    click.echo(f"Released to {recipient}: {output}, approved by {', '.join(plan.site_names)}.")
