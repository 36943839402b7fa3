"""Contains `site-agent init` and `data`, which prepare a hospital's files and table. No data leaves the hospital.

A person corrects the contract that `describe` drafts. Each command first gives up access to the network.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from host.command_line import PATH, by_option, person
from protos.errors import DataError, OperatorError, UsageError
from protos.plan.documents import parse_document
from protos.plan.methods import METHOD_NAMES
from site_agent.commands.site_options import config_option, opened_log
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.isolation import give_up_network

if TYPE_CHECKING:
    from site_agent.desk.drafting.describe import Draft
    from site_agent.desk.examination.examine import Examination


@click.group()
def data() -> None:
    """Prepare this hospital's table of patients for training. These commands send nothing."""


sheet_option = click.option(
    "--sheet", help="Name of the sheet in a spreadsheet file. Without this option, use the first sheet."
)
query_option = click.option(
    "--query", type=PATH, help="File with the SQL query that reads the patients, if the table is a database."
)
concepts_option = click.option(
    "--concepts",
    "plan",
    type=PATH,
    help="Path of a plan, also an unfinished one. Columns with the names of its concepts are mapped to them.",
)


def drafted(
    table: Path, sheet: str | None, query: Path | None, plan: Path | None, dictionary: Path | None = None
) -> Draft:
    """Return a draft of a contract, as the options of a command say."""
    from protos.plan.concepts import ListedConcepts
    from protos.plan.documents import read_document
    from site_agent.desk.drafting.describe import describe as draft_of

    nothing = "No draft of a contract was written."
    concepts = () if plan is None else read_document(plan, ListedConcepts, consequence=nothing).concepts
    told = None if query is None else query.read_text()
    return draft_of(table, sheet=sheet, query=told, dictionary=dictionary, concepts=concepts)


@data.command()
@click.argument("table", type=PATH)
@click.option("--output", type=PATH, help="Output file for the draft contract. Without this option, print the draft.")
@sheet_option
@query_option
@concepts_option
@click.option("--dictionary", type=PATH, help="REDCap's data dictionary (CSV), if TABLE is its export of raw data.")
def describe(
    table: Path, output: Path | None, sheet: str | None, query: Path | None, plan: Path | None, dictionary: Path | None
) -> None:
    """Write a draft contract, which describes each column of a table. A person must correct this draft.

    Example: site-agent data describe patients.csv --output contract.yaml
    """
    give_up_network()  # before anything starts a thread

    draft = drafted(table, sheet, query, plan, dictionary)
    if output is None:
        click.echo(draft.text, nl=False)
        return
    try:
        with output.open("xb") as file:
            file.write(draft.text.encode())
    except FileExistsError as cause:
        raise _refused(f"{output.name} exists already.", "Name another file with --output.") from cause
    click.echo(f"Drafted from {'the first ' if draft.has_more else ''}{draft.rows} rows into {output}.")
    click.echo("Every line is a guess: correct it, then run `site-agent data check --config hospital.yaml`.")


@data.command()
@config_option
@click.option(
    "--html",
    type=PATH,
    help="Output file for the page with the findings. Without this option, the page is written to the state folder.",
)
def check(path: Path, html: Path | None) -> None:
    """Compare the table with its data contract, and list every finding. Run this command before the first round.

    The exit status is 78 if an error, or a warning that nobody has accepted, prevents training.

    Example: site-agent data check --config hospital.yaml
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread

    from site_agent.desk.examination.examination_page import examination_page, finding_lines, verdict
    from site_agent.desk.examination.examine import examined
    from site_agent.desk.result_files import check_place, write_result
    from site_agent.trainer.data.run_table import TableCheck, find_check, keep_check

    if html is not None:
        check_place(html, "--html", hospital, [path])
    examination = examined(hospital)
    found = find_check(hospital.state_path, examination.digest)
    by = None if found is None or found.by is None else f"{found.by} at {found.at}"
    stops = hospital.data.unaccepted_warnings == "stop"
    place = html or hospital.state_path / "data" / "check.html"
    page = examination_page(examination, site=hospital.site, accepted_by=by, warnings_stop=stops)
    write_result(place, page.encode())
    if not (examination.errors or examination.warnings):  # before a word that the table is ready
        at = datetime.now(UTC).isoformat(timespec="seconds")
        keep_check(hospital.state_path, TableCheck(digest=examination.digest, warnings=(), by=None, at=at))
    click.echo(f"{hospital.site}: {verdict(examination, by, warnings_stop=stops)}")
    for line in finding_lines(examination):
        click.echo(line)
    click.echo(f"The page is in {place}. The digest of this examination is {examination.digest[:16]}.")
    _stop_as_listed(examination, path, by, warnings_stop=stops)
    if examination.warnings and by is None:
        click.echo(
            "Nobody has accepted these warnings. The table is used anyway, because "
            f"{path.name} has `unaccepted_warnings: tell`."
        )


def _stop_as_listed(examination: Examination, path: Path, by: str | None, *, warnings_stop: bool) -> None:
    """Raise DataError if the table has errors or unaccepted warnings, which the caller has already listed."""
    from site_agent.desk.examination.finding import counted
    from site_agent.trainer.data.mistakes import CORRECT_TABLE

    unused = "The table is not used. Nothing was sent."
    if examination.errors:
        what = f"The table has {counted(len(examination.errors), 'error')}, which this command listed above."
        raise DataError(what=what, consequence=unused, remedy=CORRECT_TABLE)
    if examination.warnings and by is None and warnings_stop:
        warnings = counted(len(examination.warnings), "warning")
        accept = f"site-agent data accept --config {path} --by NAME --digest {examination.digest[:16]}"
        raise DataError(
            what=f"No person has accepted the {warnings} that this command listed above.",
            consequence=unused,
            remedy=f"Correct the table. If the table is right, accept the warnings: `{accept}`.",
        )


@data.command()
@config_option
@by_option
@click.option(
    "--digest", required=True, help="Digest that `data check` printed for the findings that the person has read."
)
def accept(path: Path, by: str, digest: str) -> None:
    """Record that a person has read all warnings about this hospital's table and accepts these warnings.

    Example: site-agent data accept --config hospital.yaml --by "Anna Jones" --digest 0123456789abcdef
    """
    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread
    by = person(by)

    from site_agent.desk.examination.examine import examined
    from site_agent.desk.examination.finding import counted
    from site_agent.trainer.data.mistakes import as_sentences, refuse, where
    from site_agent.trainer.data.run_table import TableCheck, keep_check, put_aside_in_words

    examination = examined(hospital)
    if examination.errors:
        refuse([as_sentences(error.words, where(error.rows, error.count)) for error in examination.errors])
    if len(digest) < 16 or not examination.digest.startswith(digest):
        raise _refused(
            "This is not the digest of the present table, contract and split. One of them may have changed.",
            "Run `site-agent data check`, read its findings, and accept with the digest that it prints.",
        )
    now = datetime.now(UTC)
    warnings = tuple(warning.key for warning in examination.warnings)
    told, at = put_aside_in_words(examination.table), now.isoformat(timespec="seconds")
    facts = {"put_aside": told} if told else {}
    opened_log(hospital).write("data_accepted", digest=examination.digest, warnings=len(warnings), by=by, **facts)
    kept = TableCheck(digest=examination.digest, warnings=warnings, by=by, at=at, put_aside=told)
    keep_check(hospital.state_path, kept)
    told = counted(len(warnings), "warning")
    click.echo(f"{by} accepted {told} about the table with the digest {examination.digest[:16]}.")


def _refused(what: str, remedy: str) -> OperatorError:
    return UsageError(what=what, consequence="The command recorded and wrote nothing. Nothing was sent.", remedy=remedy)


# For each policy's name: the purpose of the policy and its keys.
POLICIES: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "strict": (
        "Masked sums over five hospitals or more, one method, two persons approve each plan.",
        {"methods": ["global-layers"], "secure_aggregation": "required", "smallest_sites": 5, "largest_rounds": 200,
         "largest_megabytes": 200.0, "largest_clipping_range": 8.0, "smallest_training_rows": 100, "approvers": 2},
    ),
    "usual": (
        "Masked sums over three hospitals or more, one person approves each plan.",
        {"methods": ["global-layers", "fedavg", "federated-prior", "local"], "secure_aggregation": "required",
         "smallest_sites": 3, "largest_rounds": 1000, "largest_megabytes": 2000.0, "largest_clipping_range": 8.0},
    ),
    "open": (
        "For rehearsals without real patients: every method, masked or not, three hospitals or more.",
        {"methods": list(METHOD_NAMES), "secure_aggregation": "not-required", "smallest_sites": 3,
         "largest_rounds": 20000, "largest_megabytes": 20000.0, "largest_clipping_range": 64.0},
    ),
}  # fmt: skip


@click.command()
@click.option("--site", prompt="Name of this hospital", help="Name of this hospital, exactly as in the invitation.")
@click.option("--table", prompt="Path of the table", type=PATH, help="Path of the table with this hospital's patients.")
@click.option(
    "--policy",
    prompt="Policy (strict, usual, open)",
    default="usual",
    type=click.Choice(list(POLICIES)),
    help=" ".join(f"{name}: {words}" for name, (words, _) in POLICIES.items()),
)
@click.option("--invitation", type=PATH, help="Path of the invitation file, if the file is already on this computer.")
@sheet_option
@query_option
@concepts_option
def init(
    site: str,
    table: Path,
    policy: str,
    invitation: Path | None,
    sheet: str | None,
    query: Path | None,
    plan: Path | None,
) -> None:
    """Write hospital.yaml and a draft of contract.yaml for a new hospital into this folder.

    The command asks for each option that you omit. The command never replaces an existing file.

    Example: site-agent init --site st-mary --table patients.csv --policy usual
    """
    give_up_network()  # before anything starts a thread

    files = (Path("hospital.yaml"), Path("contract.yaml"))
    for file in files:
        if file.exists():
            raise UsageError(
                what=f"The file {file} already exists.",
                consequence="No file was written, and nothing was sent.",
                remedy=f"Move {file} away, or run this command in another folder.",
            )
    draft = drafted(table, sheet, query, plan)
    text = hospital_text(site, table, policy, invitation)
    parse_document(text.encode(), Hospital, source="hospital.yaml", consequence="No file was written.")
    files[0].write_text(text)
    files[1].write_text(draft.text)
    click.echo(f"Wrote hospital.yaml with the policy {policy}: {POLICIES[policy][0]}")
    click.echo(f"Wrote contract.yaml, drafted from {draft.rows} rows. Every line is a guess: correct this file.")
    click.echo("Then run `site-agent data check --config hospital.yaml`.")


def hospital_text(site: str, table: Path, policy: str, invitation: Path | None) -> str:
    """Return the text of a new file hospital.yaml with one of the prepared policies."""
    words, keys = POLICIES[policy]
    invited = [] if invitation is None else [f"invitation: {json.dumps(str(invitation))}"]
    lines = [
        "# Written by `site-agent init`. All keys are explained in deploy/examples/hospital.yaml.",
        f"site: {json.dumps(site)}",
        *invited,
        "state: state",
        f"# {policy}: {words} Whatever a plan says, this wins.",
        "policy:",
        *(f"  {key}: {json.dumps(value)}" for key, value in keys.items()),
        "data:",
        f"  table: {json.dumps(str(table))}",
        "  contract: contract.yaml",
        "  split: {seed: 0}",
    ]
    return "\n".join(lines) + "\n"
