"""Converts an audit log to one HTML page, in three parts: actions of people, each run, and all other records.

Each record is on the page exactly once, with its number and its facts. All records of one round are one line: offer,
release, handover, bound sites and sum.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from host.log_report import Facts, figures, in_words
from host.printed_page import Cell, Folded, Section, page, pairs, paragraph, table

Record: TypeAlias = tuple[int, Facts]
_PEOPLE: Final = "What people decided"
_REFUSED: Final = "What was refused"
_IDENTITY: Final = "Sites, certificates and keys"
_LOG: Final = "The log itself"
_OTHER: Final = "Everything else"
# For each group its description, and the events that belong to it.
_GROUPS: Final = {
    _PEOPLE: ("Approvals, withdrawals and other acts of a person.", (
        "plan_approved", "plan_declined", "approval_awaited", "plan_withdrawn", "data_accepted",
        "model_adopted", "model_handed_over",
        "run_paused", "run_resumed", "run_stopped", "run_withdrawn",
    )),
    _REFUSED: ("Requests that this program or its policy did not allow.", (
        "approval_refused", "plan_refused", "release_refused", "coordinator_refused", "renewal_refused", "peer_refused",
        "log_refused", "refusals_counted", "site_state_refused",
    )),
    _IDENTITY: ("Sites and programs that were accepted, with their keys.", (
        "enrolment_requested", "enrolled", "enrolment_answered", "certificate_renewed",
        "certificate_in_use", "certificate_put_back", "renewal_requested",
        "certificate_issued", "own_certificate_renewed", "site_connected", "site_revoked",
    )),
    _LOG: ("Declared restores of this program and of the program at the other end.", (
        "state_restored", "restore_accepted",
    )),
    _OTHER: ("Records that belong to no run.", ()),
}  # fmt: skip
_GROUP_OF: Final = {event: group for group, (_, events) in _GROUPS.items() for event in events}


def as_html(title: str, summary: Iterable[tuple[str, str]], records: Iterable[Record]) -> str:
    """Return one HTML page that loads no other file: the checks, the totals sent, and every record in words.

    Args:
        summary: the checks, as names and texts.
        records: number and facts of each record, in order.
    """
    kept = list(records)
    groups, runs = _grouped(kept)
    sections = [
        Section(heading="What was checked, and what was sent", parts=[pairs("Summary", (*summary, *figures(kept)))])
    ]
    sections += [_section(group, groups[group]) for group in (_PEOPLE, _REFUSED)]
    sections += [_run(name, found) for name, found in runs.items()]
    sections += [_section(group, groups[group]) for group in (_IDENTITY, _LOG, _OTHER)]
    words = (
        "Each record is shown once on this page. The column “facts” of each table shows the record unchanged. In the "
        "audit log the first round has the number 0."
    )
    return page(title, [paragraph(words, "soft")], sections)


def _grouped(records: Sequence[Record]) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """Group the records by their topic. Records that only concern a run are grouped by the run's name."""
    groups: dict[str, list[Record]] = defaultdict(list)
    runs: dict[str, list[Record]] = defaultdict(list)
    for number, facts in records:
        group = _GROUP_OF.get(str(facts.get("event")))
        if group is None and facts.get("run"):
            runs[str(facts["run"])].append((number, facts))
        else:
            groups[group or _OTHER].append((number, facts))
    return groups, runs


def _section(heading: str, records: Sequence[Record]) -> Section:
    if not records:
        return Section(heading=heading, parts=[])
    return Section(heading=heading, parts=[paragraph(_GROUPS[heading][0], "soft"), _table(heading, records)])


def _table(caption: str, records: Sequence[Record]) -> str:
    return table(caption, _HEAD, [_line([record]) for record in records], style="log")


def _run(name: str, records: Sequence[Record]) -> Section:
    """Return the records of a run: first those without a round, then a line for each round."""
    rounds: dict[int, list[Record]] = defaultdict(list)
    others: list[Record] = []
    for number, facts in records:
        at = facts.get("round")
        if isinstance(at, int):
            rounds[at].append((number, facts))
        else:
            others.append((number, facts))
    left = dict(figures(records))
    count, size = left["Contributions that left"], left["Bytes in them"]
    words = f"This site sent {count} contributions with {size} bytes in this run."
    parts = [paragraph(words, "soft")] if count != "0" else []
    if others:
        parts.append(_table(f"{name}, course", others))
    if rounds:
        lines = [[at + 1, *_line(found)] for at, found in sorted(rounds.items())]
        parts.append(table(f"{name}, rounds", ("round", *_HEAD), lines, style="rounds"))
    return Section(heading=f"Run {name}", parts=parts)


_HEAD: Final = ("time (UTC)", "what happened", "record", "facts")


def _line(records: Sequence[Record]) -> list[Cell]:
    """Return the cells of one line, with the time of the first of these records."""
    words = [in_words(facts) for _, facts in records]
    everything = json.dumps([facts for _, facts in records], indent=1, sort_keys=True)
    return [
        _time(records[0][1]),
        words[0] if len(words) == 1 else tuple(words),
        ", ".join(str(number) for number, _ in records),
        Folded(summary="facts", text=everything),
    ]


def _time(facts: Facts) -> str:
    """Return a time as people write it. A time of another zone is unchanged."""
    text = str(facts.get("time", ""))
    return text[:19].replace("T", " ") if text.endswith("+00:00") else text
