"""Contains the commands with which people decide about a plan: `site-agent review`, `approve`, `withdraw` and others.

These commands open no connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Final

import click

from host.audit_log import AuditLog
from host.command_line import PATH, account, by_option, person
from host.record_store import StoreError
from host.secret_files import write_public
from pki.identity_key import has_identity_key, identity_fingerprint, read_identity_key
from protos.errors import ConfigurationError, OperatorError, RefusedError, UsageError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire, read_plan
from protos.plan.statistics_plan import StatisticsPlan
from site_agent import approvals, approving
from site_agent.commands.site_options import config_option, opened_log, plan_option
from site_agent.desk.analyses_in_words import analysis_section
from site_agent.desk.plan_in_words import in_words
from site_agent.desk.plan_review import Section, Table, as_lines, review_page, review_sections
from site_agent.desk.sets_of_plans import compared_with_others, plan_differences, row_sections, unlike_plans
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder
from site_agent.trainer.isolation import give_up_network

_NOTHING_APPROVED: Final = "Nothing was approved. Nothing was sent."


@click.command()
@config_option
@plan_option
@click.option("--html", "page", type=PATH, help="Also write the review to this file, as a page to print and to sign.")
def review(path: Path, plan_path: Path | None, page: Path | None) -> None:
    """Show what this site would send under a plan, and whether this hospital's policy allows the plan.

    The exit status is 77 if the policy refuses the plan, and 78 if this site's contract or table does not fit the plan.

    Example: site-agent review --config hospital.yaml --plan plan.yaml --html review.html
    """
    from site_agent.gate.permission import decide_plan

    hospital = read_hospital(path)
    give_up_network()  # before anything starts a thread, as these do
    from site_agent.desk.mapped_concepts import concept_sections
    from site_agent.trainer.data.contract import find_contract

    plan = plan_named(hospital, plan_path)
    manifest, own_key, log, is_checked = manifest_of(plan), own_fingerprint(hospital), None, True
    try:
        with suppress(ConfigurationError):  # before the first start there is none
            log = opened_log(hospital, exists=True)
    except StoreError:
        is_checked = False
    refused = decide_plan(hospital, plan, manifest, identity=own_key, audit=log)
    title_section, *exact = review_sections(plan, manifest)
    contract = find_contract(Path(hospital.data.contract))  # None if this user may not read it
    meanings = concept_sections(plan, contract, hospital.site)
    here = _here(hospital, plan, refused, is_checked=is_checked and own_key is not None)
    sections = [title_section, *_in_short(hospital, plan), *exact, *meanings, *here]
    _print(sections)
    title = f"{plan.study}, version {plan.version}: what {hospital.site} would send"
    if page is not None:
        write_public(page, review_page(title, sections, signatures=hospital.policy.approvers).encode())
        click.echo(f"Written to {page}.")
    if refused:
        sys.exit(RefusedError.exit_status)
    for error in filter(None, (section.error for section in sections)):
        raise error


@click.command()
@config_option
@click.option(
    "--plan",
    "plan_path",
    type=PATH,
    help="File of the plan, or a folder: all its .yaml files are plans to approve together. Without this option, use "
    "the plan that was last announced or approved at this site.",
)
@by_option
@click.option("--yes", is_flag=True, help="Approve the plan without asking for y or n. A script needs this option.")
@click.option(
    "--until",
    help="Last day of this approval, or the date and time at which it ends. A time without a time zone is in UTC.",
)
@click.option(
    "--beside",
    multiple=True,
    help="Name of another run whose sums may be compared with those of this plan. For several runs, repeat the option "
    'or use commas. Or all: every run that `site-agent review` names under "This table and other studies".',
)
def approve(path: Path, plan_path: Path | None, by: str, until: str | None, beside: tuple[str, ...], yes: bool) -> None:
    """Record that a person approves a plan, or all plans of a folder. No training starts without an approval.

    In a terminal, this command first shows a summary of the plan and asks for y or n. Without a terminal (in a script),
    the command requires the option --yes.

    Example: site-agent approve --config hospital.yaml --plan plan.yaml --by "Anna Jones" --until 2027-06-30
    """
    hospital, by, now = read_hospital(path), person(by), datetime.now(UTC)
    give_up_network()  # before anything starts a thread
    files = _files_of(plan_path) if plan_path is not None and plan_path.is_dir() else [plan_path]
    plans = [plan_named(hospital, each) for each in files]
    ends, log = None if until is None else _end_of(until, now), opened_log(hospital)
    own_rows = [_permitted_rows(hospital, plan, by, log) for plan in plans]
    allowed = {plan.digest: _allowed(hospital, plan, plans[:place], beside) for place, plan in enumerate(plans)}
    for plan, rows in zip(plans, own_rows, strict=True):
        _print(rows) if yes else _ask(hospital, plan, by, ends, rows)
    for plan in plans:
        _approve(hospital, plan, by, ends, log, allowed[plan.digest])


def _allowed(hospital: Hospital, plan: Plan, together: Sequence[Plan], beside: Sequence[str]) -> tuple[str, ...]:
    """Return the runs whose sums a person allows to be compared with a plan's. Raises RefusedError if one is missing.

    `together` are plans that are approved by the same command.
    """
    unlike = [other.run_name for other in unlike_plans(plan, [*_others(hospital, plan), *together])]
    given = {run.strip() for run in ",".join(beside).split(",")}
    named = {*unlike} if "all" in given else given
    before = approvals.allowed_beside(hospital.state_path, plan, hospital.policy.approvers)
    if missing := [run for run in unlike if run not in {*named, *before}]:
        _print(_beside_others(hospital, plan, together))
        raise RefusedError(
            what=f"The sums of the plan {plan.study} version {plan.version} can be subtracted from those of "
            f"{', '.join(missing[:5])}.",
            consequence=_NOTHING_APPROVED,
            remedy="Read above what the sums of both show together. To allow it, add `--beside` with these names. "
            "Otherwise ask for another plan.",
        )
    return tuple(run for run in unlike if run in named)


def _files_of(folder: Path) -> list[Path | None]:
    files: list[Path | None] = [*sorted(folder.glob("*.yaml"))]
    if not files:
        raise UsageError(
            what=f"The folder {folder} has no plan: no file in it ends with .yaml.",
            consequence=_NOTHING_APPROVED,
            remedy="Name a plan, or a folder with plans, with --plan.",
        )
    return files


def _permitted_rows(hospital: Hospital, plan: Plan, by: str, log: AuditLog) -> list[Section]:
    """Return the review of this site's rows. Print it and raise OperatorError if this site must not join."""
    from site_agent.desk.mapped_concepts import require_fitting
    from site_agent.gate.mishaps import OTHER_PLAN
    from site_agent.gate.permission import decide_plan
    from site_agent.trainer.data.contract import find_contract

    if refused := decide_plan(hospital, plan, manifest_of(plan), identity=own_fingerprint(hospital), audit=log):
        reason = "; ".join(refused)
        log.write("approval_refused", reason=reason, **_facts(plan, by))
        raise RefusedError(
            what=f"The plan {plan.study} version {plan.version} cannot be approved at this site: {reason}.",
            consequence=_NOTHING_APPROVED,
            remedy=OTHER_PLAN,
        )
    rows = [*row_sections(hospital, plan)]
    try:
        require_fitting(plan, find_contract(Path(hospital.data.contract)), hospital.site)
        for error in filter(None, (section.error for section in rows)):
            raise error
    except OperatorError:
        _print(rows)
        raise
    return rows


def _approve(
    hospital: Hospital, plan: Plan, by: str, ends: datetime | None, log: AuditLog, beside: tuple[str, ...]
) -> None:
    now = datetime.now(UTC)
    earlier = approvals.last_approved(hospital.state_path, plan)
    older = approvals.newest_version(hospital.state_path, plan.study)
    until = None if ends is None else ends.isoformat(timespec="seconds")
    log.write("plan_approved", until=until, beside=list(beside), **_facts(plan, by))
    approval = approving.approve(hospital.state_path, plan, by=by, at=now, until=ends, beside=beside)
    _print([*([_since(plan, earlier)] if earlier else []), *_beside_others(hospital, plan)])
    if 0 < older < plan.version:
        click.echo(f"Version {older} of this study no longer trains here.")
    click.echo(f"{by} approved {plan.study} version {plan.version}, plan digest {plan.digest.hex()}.")
    if ends is not None:
        click.echo(f"This approval is valid until {_moment(ends)}. Nothing trains under it after that.")
    if (missing := approvals.why_not(approval, approvers=hospital.policy.approvers, now=now)) is not None:
        click.echo(f"Nothing trains yet: {missing}.")


def _ask(hospital: Hospital, plan: Plan, by: str, ends: datetime | None, rows: Sequence[Section]) -> None:
    """Show a summary of the plan, then this site's rows. Raises UsageError unless a person at a terminal says `y`."""
    if not sys.stdin.isatty():
        raise UsageError(
            what="The command asks for y or n, but there is no terminal at which a person can answer.",
            consequence=_NOTHING_APPROVED,
            remedy="Run the command at a terminal. In a script, add --yes after a person has read `site-agent review`.",
        )
    _print([*_in_short(hospital, plan), *rows])
    until = "" if ends is None else f" until {_moment(ends)}"
    if not click.confirm(f"Does {by} approve {plan.study} version {plan.version}{until}?", default=False):
        raise UsageError(
            what="The question was not answered with `y`.",
            consequence=_NOTHING_APPROVED,
            remedy="Read the whole plan with `site-agent review`. If you agree with the plan, run `site-agent "
            "approve` again.",
        )


@click.command()
@config_option
@plan_option
@by_option
def withdraw(path: Path, plan_path: Path | None, by: str) -> None:
    """End this site's part in a plan at once, even during training. The other sites wait.

    Example: site-agent withdraw --config hospital.yaml --plan plan.yaml --by "Anna Jones"
    """
    hospital = read_hospital(path)
    plan, by = _plan_to_withdraw(hospital, plan_path), person(by)
    # First stop, then record the withdrawal: a full disk or a broken log must not keep a site in a study.
    if approving.withdraw(hospital.state_path, plan, by=by, at=datetime.now(UTC)) is None:
        raise UsageError(
            what=f"Nobody has approved {plan.study} version {plan.version} at this site, so it cannot be withdrawn.",
            consequence="Nothing was changed. This site sends nothing for this plan.",
            remedy="Name the file of the approved plan with the option --plan.",
        )
    log = opened_log(hospital)
    log.write("plan_withdrawn", **_facts(plan, by))
    click.echo(f"{by} withdrew {hospital.site} from {plan.study} version {plan.version}. Nothing more is sent.")
    click.echo("Earlier contributions stay in the sums. Nobody can remove them from the shared parameters.")


def _plan_to_withdraw(hospital: Hospital, path: Path | None) -> Plan:
    """Return the plan of `plan_named`. If nobody approved this plan, return that of the only study approved here."""
    plan = plan_named(hospital, path)
    if path is not None or approvals.find_approval(hospital.state_path, plan) is not None:
        return plan
    valid = [
        (one.signatures[-1].at, each) for each, one in approvals.all_approvals(hospital.state_path) if not one.withdrawn
    ]
    approved = [each for _, each in sorted(valid, key=lambda entry: entry[0]) if each is not None]
    return approved[-1] if len({each.study for each in approved}) == 1 else plan


def plan_named(hospital: Hospital, path: Path | None) -> Plan:
    """Return the plan that --plan names, or this site's latest plan. Raises OperatorError: it is wrong or missing."""
    if path is not None:
        return read_plan(path, consequence=_NOTHING_APPROVED)
    if not (announced := approvals.announced_plans(hospital.state_path)):
        raise UsageError(
            what="The coordinator has not announced a plan to this site yet, and the command names no plan.",
            consequence=_NOTHING_APPROVED,
            remedy="Name the file of the plan with --plan, or run `site-agent join` once to receive the plan from the "
            "coordinator.",
        )
    return plan_from_wire(announced[-1].read_bytes())


def _print(sections: Sequence[Section]) -> None:
    for line in as_lines(sections):
        click.echo(line)


def _here(hospital: Hospital, plan: Plan, refused: tuple[str, ...], *, is_checked: bool) -> list[Section]:
    earlier = approvals.last_approved(hospital.state_path, plan)
    approval = approvals.find_approval(hospital.state_path, plan)
    sentences = [f"The policy refuses this plan: {reason}." for reason in refused] or ["The policy allows this plan."]
    if not is_checked:
        sentences.append(
            "This command could not read this site's identity key or audit log. So it did not check whether the plan "
            "lists the key, or how much epsilon is spent."
        )
    said = _said(hospital, approval, is_refused=bool(refused))
    none = Section("Changes since the last approval", ("No other plan of this study was ever approved here.",))
    compared = [_since(plan, earlier) if earlier else none, *row_sections(hospital, plan)]
    compared += _beside_others(hospital, plan)
    return [*compared, Section("This hospital's own policy", tuple(sentences)), Section("Who decided", tuple(said))]


def _said(hospital: Hospital, approval: approvals.Approval | None, *, is_refused: bool) -> Iterator[str]:
    """Yield sentences on the decisions of persons at this hospital, and on whether training is permitted."""
    from site_agent.trainer.data.run_table import accepted_rows

    for given in approval.signatures if approval else ():
        yield f"Approved by {given.by} at {given.at}{f', until {given.until}' if given.until else ''}."
    if told := accepted_rows(hospital.state_path):
        yield told
    missing = approvals.why_not(approval, approvers=hospital.policy.approvers, now=datetime.now(UTC))
    if missing is not None:
        yield f"This plan is not permitted here: {missing}."
    elif is_refused:
        yield "The plan is approved, but this hospital's own policy refuses it."
    else:
        yield "This plan is permitted here."


def _since(plan: Plan, earlier: tuple[Plan, object]) -> Section:
    before = earlier[0]
    heading = f"Changes since version {before.version}, which was approved here last"
    if not (found := plan_differences(before, plan)):
        return Section(heading, ("Nothing has changed.",))
    return Section(heading, (), Table(("key", "was", "is now"), found))


def _beside_others(hospital: Hospital, plan: Plan, together: Sequence[Plan] = ()) -> list[Section]:
    allowed = approvals.allowed_beside(hospital.state_path, plan, hospital.policy.approvers)
    found = compared_with_others(plan, [*_others(hospital, plan), *together], allowed)
    return [] if found is None else [found]


def _others(hospital: Hospital, plan: Plan) -> list[Plan]:
    return [other for other, _ in approvals.others_approved(hospital.state_path, plan)]


def _in_short(hospital: Hospital, plan: Plan) -> Iterator[Section]:
    """Yield what a person reads before a decision, also that a site that only receives sends no data."""
    if plan.tier_of(hospital.site) == "receiving":
        yield Section(
            "This site only receives",
            (
                "This site sends no number, and no row of its table takes part.",
                "The contributing sites send everything that this page lists as sent.",
                "At the end this site receives the sums of the contributing sites and computes its model from them.",
            ),
        )
    yield in_words(plan, manifest_of(plan))
    if isinstance(plan, StatisticsPlan):
        yield analysis_section(plan)


def own_fingerprint(hospital: Hospital) -> str | None:
    """Return the fingerprint of this site's identity key, or None if this user account cannot read the key."""
    folder = gate_folder(hospital.state_path)
    try:
        return identity_fingerprint(read_identity_key(folder)) if has_identity_key(folder) else None
    except (OperatorError, OSError):
        return None


def _facts(plan: Plan, by: str) -> dict[str, str | int]:
    digests = {"plan": plan.digest.hex(), "manifest": manifest_of(plan).digest.hex()}
    return {"study": plan.study, "version": plan.version, **digests, "by": by, "account": account()}


def _end_of(text: str, now: datetime) -> datetime:
    """Return the time at which an approval ends, from the text of --until. The time must be in the future."""
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        found += timedelta(days=1) if len(text) == len("2027-06-30") else timedelta()
        if found <= now:
            raise OverflowError("past")
    except (ValueError, OverflowError) as cause:
        told = "is no day or time" if isinstance(cause, ValueError) else "must be in the future, before the year 9999"
        raise UsageError(
            what=f"--until {told}: {text}.",
            consequence=_NOTHING_APPROVED,
            remedy="Write a day like 2027-06-30, or a time like 2027-06-30T18:00+02:00.",
        ) from cause
    return found


def _moment(ends: datetime) -> str:
    """Return the time at which an approval ends, as text. Midnight is shown as the end of the day before."""
    if ends.time() == time():
        return f"the end of {ends - timedelta(days=1):%Y-%m-%d} ({ends:%Z})"
    return f"{ends:%Y-%m-%d %H:%M} ({ends:%Z})"
