"""Selects records of an audit log, describes them in plain words, and writes them as CSV.

A record counts rounds from 0, as the protocol does. Everything that people read here counts them from 1.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

Facts: TypeAlias = Mapping[str, Any]

_WORDS: Final = {
    "enrolment_requested": "This site asked to be enrolled in {federation}.",
    "enrolled": "This site received its certificate of {federation}.",
    "certificate_renewed": "This site received its next certificate, with a new key.",
    "certificate_in_use": "The coordinator accepted this site's new certificate. The earlier one is no longer used.",
    "certificate_put_back": "The coordinator refused this site's new certificate. The earlier one is in use again.",
    "renewal_requested": "This site requested its next certificate.",
    "renewal_refused": "A renewal was refused: {reason}",
    "state_restored": "{by} (user account {account}) declared that an older state was restored: {reason}. Later acts "
    "are not in the log.",
    "restore_accepted": "{owner} declared a restore. Its log has {count} records now and had {before}.",
    "plan_approved": "{by} approved {study} version {version}, plan digest {plan}.",
    "data_accepted": "{by} accepted {warnings} warnings about this site's table.",
    "model_adopted": "{by} adopted the model {model} of the run {run}, digest {digest}.",
    "model_handed_over": "{by} exported the model {model} of the run {run} for {recipient}, digest {digest}.",
    "approval_refused": "{by} could not approve {study} version {version}: {reason}.",
    "approval_awaited": "A plan of {study} waits for persons here: {because}.",
    "plan_declined": "{by} refused {study} version {version}: {reason}.",
    "plan_withdrawn": "{by} withdrew this site from {study} version {version}.",
    "release_refused": "A contribution to round {round} of {run} was not sent: {reason}.",
    "plan_refused": "The policy refused a plan: {reason}.",
    "run_joined": "This site joined the run {run} ({method}).",
    "run_finished": "The run {run} ended after {rounds} rounds.",
    "run_voided": "A site could not send its numbers, so {run} is over for all. This site's own reason: {own_reason}.",
    "run_went_back": "The run {run} returned to round {round}.",
    "key_session_agreed": "Masking keys were agreed among {sites}.",
    "privacy_spent": "Noise was drawn for {run}: epsilon {epsilon}, delta {delta} of patients' privacy are spent.",
    "contribution_released": "A contribution to round {round} of {run} is released: {bytes} bytes, {tensors} tensors, "
    "masked: {masked}, summed over {contributors}, void: {void}.",
    "contribution_handed_over": "The contribution to round {round} of {run} was sent: {bytes} bytes.",
    "participation_ended": "This site took no further part in {run}: {reason}.",
    "coordinator_refused": "The coordinator broke a rule: {reason}.",
    "log_refused": "The log of {owner} was cut, or an older state was copied back.",
    "coordinator_started": "The coordinator was started.",
    "site_connected": "{site} connected.",
    "peer_refused": "A peer was refused: {reason}.",
    "site_revoked": "The certificate of {site} is no longer accepted. Its connection was closed.",
    "enrolment_answered": "A request to enrol was answered: {outcome}.",
    "refusals_counted": "{count} more requests were refused within a minute. They are not recorded one by one.",
    "own_certificate_renewed": "The coordinator's own certificate is renewed. The new one expires at {ends}.",
    "certificate_issued": "A certificate was issued to {site}.",
    "run_announced": "The run {run} was announced.",
    "run_taken_up": "The run {run} continued after a restart of the coordinator.",
    "run_paused": "A person paused the run {run}.",
    "run_resumed": "A person resumed the run {run}.",
    "run_stopped": "A person ended the run {run}.",
    "run_back": "The run {run} returned to round {round}.",
    "run_ahead": "{site} has more rounds of the run {run} than the coordinator has on record.",
    "site_joined": "{site} joined the run {run}.",
    "site_left": "The connection of {site}, a site of the run {run}, ended.",
    "site_state_refused": "{site} cannot return to the run {run}: it has lost the state that it needs.",
    "result_taken": "{site} received the result of the run {run}.",
    "key_session_opened": "New masking keys were requested from {sites} for the run {run}.",
    "round_offered": "Round {round} of {run} was sent to {sites}.",
    "round_closed": "Round {round} of {run} was summed over {sites}.",
    "run_withdrawn": "The people of {site} withdrew it from the run {run}.",
    "run_revoked": "The federation office revoked {site}, a site of the run {run}.",
    "round_void": "An attempt at round {round} of {run} failed. Missing sites: {missing}.",
    "run_over": "The run {run} ended: {reason}.",
    "end_sent": "{sites} received the message that the run {run} and all others are over.",
}
# A number in words: 1 warning, 2 warnings.
_ONE: Final = re.compile(r"(?<![\w.,-])(1 (?:warning|round|byte|tensor))s\b")
_SHOWN_APART: Final = ("event", "time", "site", "software")


@dataclass(frozen=True)
class Choice:
    """The conditions for selecting records. None means no condition.

    Attributes:
        study: a study's name; selects its runs, and records with a digest of one of its plans.
        since: aware; selects records from this time on.
        until: aware; selects records before this time.
    """

    event: str | None = None
    run: str | None = None
    study: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def chosen(records: Iterable[tuple[int, Facts]], choice: Choice) -> Iterator[tuple[int, Facts]]:
    """Yield the records of an audit log that satisfy all conditions of this selection."""
    kept = list(records)
    plans = {str(facts["plan"]) for _, facts in kept if _is_of_study(facts, choice.study) and "plan" in facts}
    for number, facts in kept:
        if choice.event is not None and facts.get("event") != choice.event:
            continue
        if choice.run is not None and facts.get("run") != choice.run:
            continue
        if choice.study is not None and not (_is_of_study(facts, choice.study) or facts.get("plan") in plans):
            continue
        if _is_in_period(facts, choice):
            yield number, facts


def in_words(facts: Facts) -> str:
    """Return one sentence that describes a record. For an event without a description, return its name and facts."""
    pattern = _WORDS.get(str(facts.get("event")))
    if pattern is not None:
        try:
            words = pattern.format_map({name: _shown(value) for name, value in from_one(facts).items()})
            return _ONE.sub(r"\1", words)
        except (KeyError, ValueError, IndexError):
            pass  # a record of another version, with other facts, is shown as below
    name = str(facts.get("event", "record")).replace("_", " ")
    shown = from_one(facts)
    rest = ", ".join(f"{key.replace('_', ' ')} {_shown(shown[key])}" for key in shown if key not in _SHOWN_APART)
    return f"{name[:1].upper()}{name[1:]}{': ' if rest else ''}{rest}."


def from_one(facts: Facts) -> Facts:
    """Return the facts of a record for people, with rounds counted from 1. The log counts rounds from 0."""
    number = facts.get("round")
    return {**facts, "round": number + 1} if isinstance(number, int) else facts


def line(number: int, facts: Facts) -> str:
    """Return one line about a record for a terminal. Replace control characters in texts from other programs."""
    text = f"{number:>7}  {facts.get('time', ''):<29}  {in_words(facts)}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def as_csv(records: Iterable[tuple[int, Facts]]) -> str:
    """Return CSV with one row for each record: number, time, event, run, round, words, and all facts as JSON."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["record", "time", "event", "run", "round", "in words", "facts"])
    for number, facts in records:
        cells = [str(from_one(facts).get(name, "")) for name in ("time", "event", "run", "round")]
        everything = json.dumps(facts, sort_keys=True)
        writer.writerow([number, *map(_harmless, cells), _harmless(in_words(facts)), everything])
    return out.getvalue()


def figures(records: Iterable[tuple[int, Facts]]) -> list[tuple[str, str]]:
    """Return totals of what was sent: the number of contributions, of bytes and of runs."""
    handed = [facts for _, facts in records if facts.get("event") == "contribution_handed_over"]
    runs = sorted({str(facts.get("run")) for facts in handed})
    total = sum(int(facts.get("bytes", 0)) for facts in handed)
    return [
        ("Contributions that left", str(len(handed))),
        ("Bytes in them", f"{total:,}"),
        ("Runs that they belong to", ", ".join(runs) or "none"),
    ]


def moment(text: str) -> datetime:
    """Parse a typed day or time. Without a typed time zone, the time is in UTC. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _is_of_study(facts: Facts, study: str | None) -> bool:
    if study is None:
        return False
    run = str(facts.get("run", ""))
    return facts.get("study") == study or re.fullmatch(re.escape(study) + r"-v[0-9]+-[0-9a-f]{12}", run) is not None


def _is_in_period(facts: Facts, choice: Choice) -> bool:
    try:
        time = moment(str(facts.get("time")))
    except ValueError:
        return choice.since is None and choice.until is None
    return (choice.since is None or time >= choice.since) and (choice.until is None or time < choice.until)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return json.dumps(value, sort_keys=True)
        case _:
            return str(value)


def _harmless(text: str) -> str:
    # A spreadsheet would run a cell with this beginning as a formula.
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
