"""Rounds as text: events in, effects out, in words that read like a play.

A scene is a list of lines. `> ...` is what happens, `< ...` what the machine wants done, `= ...` where
it then stands; time stands before an event, in seconds.

    0    > anna joins
         = gathering anna

`> 5 rounds in all` is the coordinator's decision, when a round closed, that the run has so many rounds.
`> a joins 3 reset` is a site that lost its memory, `> back to 4.1` the coordinator that has made parameters and
decisions those before round 4, whose last attempt was 1; `past 5.0 of a b` says how a round was offered before.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, assert_never

from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    BecameReady,
    BindRound,
    CloseRound,
    Collecting,
    Completed,
    Declined,
    Effect,
    EndRun,
    Event,
    Finishing,
    FoundCorrupted,
    Gathering,
    Interrupted,
    Joined,
    Left,
    OfferRound,
    OpenKeySession,
    Over,
    Past,
    SealKeySession,
    SendResult,
    SendRoster,
    State,
    Terms,
    TimePassed,
    TookResult,
    Training,
    VoidRound,
    WasPaused,
    WasResumed,
    WasStopped,
    WentBack,
)
from coordinator.rounds.round import advance, begin
from protos.plan.schedules import Deadlines
from protos.wire.messages import SiteReason

JOIN, CONTRIBUTE, GRACE, RETURN = 100.0, 50.0, 10.0, 1000.0


def terms(**changes: object) -> Terms:
    """Three sites, two rounds of long local work in the clear, all three needed."""
    standard: dict[str, object] = {
        "sites": frozenset({"a", "b", "c"}),
        "quorum": 3,
        "rounds": 2,
        "binds_early": False,
        "is_masked": False,
        "on_lost_site": "wait",
        "deadlines": Deadlines(
            join_seconds=JOIN, contribute_seconds=CONTRIBUTE, grace_seconds=GRACE, return_seconds=RETURN
        ),
    }
    return Terms(**standard | changes)  # type: ignore[arg-type]  # a table of fields, checked by the record


def play(rules: Terms, script: str) -> None:
    """Act out a script and compare every line that the machine answers.

    Each event line is followed by the effects in order and the state. A line of several events,
    `a, b, c join`, stands for one after the other, and shows the effects of all and the last state.
    """
    state: State = begin(rules, 0.0)
    now = 0.0
    expected = [line.strip() for line in script.strip().splitlines() if line.strip()]
    acted: list[str] = []
    for line in expected:
        if not line[0].isdigit():
            continue
        time, _, words = line.partition(">")
        now = float(time)
        effects: list[Effect] = []
        count, _, rest = words.strip().partition(" ")
        if count == "past":
            number, attempt, sites = re.fullmatch(r"(\d+)\.(\d+) of (.*)", rest).groups()  # type: ignore[union-attr]
            how = Past(attempt=int(attempt), bound=frozenset(sites.split()), was_bound=True)
            rules = replace(rules, past={**rules.past, int(number): how})
            acted += [line, f"= {show(state)}"]
            continue
        if rest in {"pauses", "goes on"}:
            rules = replace(rules, is_paused=rest == "pauses")
        if rest == "rounds in all":  # what the engine does while it performs the closing
            rules = replace(rules, rounds=int(count))
            acted += [line, f"= {show(state)}"]
            continue
        for event in _events(words.strip()):
            state, wanted = advance(rules, state, event, now)
            effects += wanted
        acted += [line, *(f"< {tell(effect)}" for effect in effects), f"= {show(state)}"]
    assert "\n".join(acted) == "\n".join(expected)


_PERSONS: Final[dict[str, Event]] = {
    "somebody pauses": WasPaused(),
    "somebody goes on": WasResumed(),
    "somebody stops": WasStopped(),
}
REASON: Final = SiteReason.DATA_UNFIT


def _events(words: str) -> list[Event]:
    """`a, b join`, `a joins 3`, `a ready 0.1`, `sums do not add up`, `time passes`."""
    if words == "time passes":
        return [TimePassed()]
    if words == "sums do not add up":
        return [FoundCorrupted()]
    if words in _PERSONS:
        return [_PERSONS[words]]
    if words.startswith("back to "):
        place, _, sites = words.removeprefix("back to ").partition(" of ")
        number, attempt = map(int, place.split("."))
        return [WentBack(number, Past(attempt=attempt, bound=frozenset(sites.split()), was_bound=True))]
    head, _, rest = words.partition(" ") if "," not in words else _names(words)
    verb, _, argument = rest.partition(" ")
    return [_event(site.strip(), verb.rstrip("s"), argument) for site in head.split(",")]


def _names(words: str) -> tuple[str, str, str]:
    *others, last = words.split(", ")
    name, _, rest = last.partition(" ")
    return ",".join([*others, name]), " ", rest


def _event(site: str, verb: str, argument: str) -> Event:
    match verb:
        case "join":
            key_session, _, how = argument.partition(" ")
            return Joined(site, int(key_session or 0), is_current=how != "reset")
        case "leave":
            return Left(site)
        case "advertise":
            return Advertised(site, int(argument))
        case "acknowledge":
            return Acknowledged(site, int(argument))
        case "ready":
            number, attempt = argument.split(".")
            return BecameReady(site, int(number), int(attempt))
        case "complete":
            return Completed(site)
        case "finishe" | "finish":
            return TookResult(site)
        case "decline":
            return Declined(site, REASON)
        case "withdraw":
            return Declined(site, SiteReason.WITHDRAWN)
        case "i" if argument == "revoked":
            return Declined(site, SiteReason.REVOKED)
        case _:
            raise ValueError(f"no event is called {verb}")


def tell(effect: Effect) -> str:
    """An effect in words."""
    match effect:
        case OpenKeySession(sites=sites, key_session=key_session):
            return f"open key session {key_session} to {names(sites)}"
        case SendRoster(sites=sites, key_session=key_session):
            return f"roster {key_session} to {names(sites)}"
        case SealKeySession(sites=sites, key_session=key_session):
            return f"seal {key_session} to {names(sites)}"
        case OfferRound(sites=sites, round=number, attempt=attempt):
            return f"offer {number}.{attempt} to {names(sites)}"
        case BindRound(sites=sites, contributors=contributors, round=number, attempt=attempt, resumes=resumes):
            how = "resume" if resumes else "bind"
            draw = f", draw {effect.resample}" if effect.resample else ""
            return f"{how} {number}.{attempt} of {names(contributors)} to {names(sites)}{draw}"
        case CloseRound(round=number, contributors=contributors):
            return f"close {number} of {names(contributors)}"
        case VoidRound(round=number, attempt=attempt, missing=missing, given_up=given_up):
            gone = f", given up {names(given_up)}" if given_up else ""
            return f"void {number}.{attempt} missing {names(missing)}{gone}"
        case SendResult(sites=sites):
            return f"result to {names(sites)}"
        case EndRun(over=over):
            return f"end: {over.reason}, missing {names(over.missing)}"
        case _:
            assert_never(effect)


def show(state: State) -> str:
    """A state in words."""
    match state:
        case Gathering(joined=joined, declined=declined):
            return f"gathering {names(joined)}" + (f", declined {names(declined)}" if declined else "")
        case Agreeing(attempt=attempt, advertised=advertised, acknowledged=acknowledged, deadline=deadline):
            return (
                f"agreeing on {attempt.key_session}: {names(advertised)} advertised,"
                f" {names(acknowledged)} acknowledged until {deadline:g}"
            )
        case Training(attempt=attempt, ready=ready, deadline=deadline):
            return f"training {attempt.round}.{attempt.number} ready {names(ready)} until {deadline:g}"
        case Collecting(attempt=attempt, complete=complete, deadline=deadline):
            return f"collecting {attempt.round}.{attempt.number} complete {names(complete)} until {deadline:g}"
        case Interrupted(attempt=attempt, deadline=deadline):
            away = attempt.bound - attempt.present
            to_return = ", to go back" if state.returns else ""
            return f"interrupted {attempt.round}.{attempt.number} without {names(away)} until {deadline:g}{to_return}"
        case Finishing(done=done, deadline=deadline):
            return f"finishing done {names(done)} until {deadline:g}"
        case Over(is_complete=is_complete):
            return "over, complete" if is_complete else "over, incomplete"
        case _:
            assert_never(state)


def names(sites: frozenset[str]) -> str:
    """Sites in order, or a dash."""
    return " ".join(sorted(sites)) or "-"
