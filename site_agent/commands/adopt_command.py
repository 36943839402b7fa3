"""`site-agent adopt`: a person decides which model of a run is in use at this hospital."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from protos.errors import UsageError
from site_agent.commands.approval_commands import account, audit_log_of, person
from site_agent.commands.site_options import config_option
from site_agent.hospital import Hospital, read_hospital

if TYPE_CHECKING:
    from site_agent.desk.use.adoption import Adoption


@click.command()
@config_option
@click.argument("model", required=False)
@click.option("--by", help="Name of the person who decides, for the audit log.")
@click.option("--run", "run_name", help="Run of the model. Without this option, the latest run.")
def adopt(path: Path, model: str | None, by: str | None, run_name: str | None) -> None:
    """Put MODEL in use for predict, export and monitor. Without MODEL, list the models and the one in use.

    A model stays in use until a person adopts another. A new run changes nothing.

    Example: site-agent adopt logistic_regression --config hospital.yaml --by "A. Jones"
    """
    hospital = read_hospital(path)

    from site_agent.desk.use.adoption import find_adoption
    from site_agent.trainer.saved_model import latest_run

    before = find_adoption(hospital.state_path)
    run = latest_run(hospital.state_path) if run_name is None else run_name
    if model is None:
        for line in _listed(hospital, run, before):
            click.echo(line)
        return
    if by is None:
        raise _refused("--by is missing.", "Add --by with the name of the person who decides.")
    for line in _adopted(hospital, run, model, person(by), before):
        click.echo(line)


def _adopted(hospital: Hospital, run: str, model: str, by: str, before: Adoption | None) -> Iterator[str]:
    """Record the decision, first in the audit log."""
    from site_agent.desk.use.adoption import Adoption, keep_adoption
    from site_agent.trainer.comparison.recommendation import MODEL_TITLES
    from site_agent.trainer.saved_model import load_model, saved_names

    state, name = hospital.state_path, model.strip().lower().replace("-", "_")
    names = saved_names(state, run)
    if names and name not in names:
        known = ", ".join(names)
        raise _refused(f"The run {run} has no model {model}. It has {known}.", "Give one of these names.")
    digest = load_model(state, run, name).digest
    assert digest is not None  # it was read from a file
    now = datetime.now(UTC)
    adoption = Adoption(run=run, model=name, digest=digest, by=by, at=now.isoformat(timespec="seconds"))
    former = {} if before is None else {"former_run": before.run, "former_model": before.model}
    audit_log_of(hospital).write(
        "model_adopted", run=run, model=name, digest=digest, by=by, account=account(), **former
    )
    keep_adoption(state, adoption)
    yield f"{by} adopted {MODEL_TITLES.get(name, name)} of the run {run}."
    yield "predict, export and monitor use it until a person adopts another model."
    if before is not None:
        yield f"Until now {MODEL_TITLES.get(before.model, before.model)} of the run {before.run} was in use."


def _listed(hospital: Hospital, run: str, adoption: Adoption | None) -> Iterator[str]:
    """What can be adopted, what is recommended, and what is in use."""
    from site_agent.desk.findings.facts import saved_facts
    from site_agent.desk.use.model_in_use import NOBODY_ADOPTED, newer_models
    from site_agent.trainer.comparison.recommendation import MODEL_TITLES
    from site_agent.trainer.saved_model import load_model, saved_names

    state = hospital.state_path
    names = saved_names(state, run)
    if not names:
        load_model(state, run)  # reports that there is none
    yield f"Models of the run {run}:"
    for name in names:
        is_used = adoption is not None and (adoption.run, adoption.model) == (run, name)
        yield f"  {name:<24}{MODEL_TITLES.get(name, name)}{' (in use)' if is_used else ''}"
    if (state / "reports" / f"{run}.json").exists() and (found := saved_facts(state, run).get("recommendation")):
        yield cast(Mapping[str, str], found)["sentence"]
    if adoption is None:
        yield NOBODY_ADOPTED
        return
    title = MODEL_TITLES.get(adoption.model, adoption.model)
    yield f"In use: {title} of the run {adoption.run}, adopted by {adoption.by} at {adoption.at}."
    yield from newer_models(state, adoption)


def _refused(what: str, remedy: str) -> UsageError:
    return UsageError(
        what=what, consequence="The model in use did not change, and nothing left this site.", remedy=remedy
    )
