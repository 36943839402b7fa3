"""Rounds as text: events in, effects out, in words that read like a play.

A scene is a list of lines. `> ...` is what happens, `< ...` what the machine wants done, `= ...` where it then stands;
time stands before an event, in seconds.

    0    > anna joins
         = gathering anna

`> 5 rounds in all` is the coordinator's decision, when a round closed, that the run has so many rounds. `> a joins 3
reset` is a site that lost its memory, `> back to 4.1` the coordinator that has made parameters and decisions those
before round 4, whose last attempt was 1; `past 5.0` says how a round was offered before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from coordinator.rounds import phases
from coordinator.rounds.round import advance
from protos.plan.schedules import Timing
from protos.wire.messages import SiteReason

CONTRIBUTE, GRACE = 50.0, 10.0


def terms(**changes: object) -> phases.Terms:
    """Three sites and two rounds in the clear."""
    standard: dict[str, object] = {
        "sites": frozenset({"a", "b", "c"}),
        "rounds": 2,
        "seconds": CONTRIBUTE,
        "result_seconds": CONTRIBUTE,
        "is_masked": False,
        "deadlines": Timing(contribute_seconds=CONTRIBUTE, grace_seconds=GRACE),
    }
    return phases.Terms(**standard | changes)  # type: ignore[arg-type]  # a table of fields, checked by the record


def play(rules: phases.Terms, script: str) -> None:
    """Act out a script and compare every line that the machine answers."""
    expected = [line.strip() for line in script.strip().splitlines() if line.strip()]
    assert "\n".join(acted(rules, expected)) == "\n".join(expected)


def acted(rules: phases.Terms, script: list[str]) -> list[str]:
    """Return the script with what the machine answers to its events. A line of several events, `a, b, c join`, stands
    for one after the other, and shows the effects of all and the last state."""
    state: phases.State = phases.Gathering()
    found: list[str] = []
    for line in script:
        if not line[0].isdigit():
            continue
        time, _, words = line.partition(">")
        effects: list[phases.Effect] = []
        count, _, rest = words.strip().partition(" ")
        if count == "past":
            number, attempt = map(int, rest.split("."))
            rules = replace(rules, past={**rules.past, number: attempt})
        elif rest == "rounds in all":  # what the engine does while it performs the closing
            rules = replace(rules, rounds=int(count))
        else:
            for event in _events(words.strip()):
                state, wanted = advance(rules, state, event, float(time))
                effects += wanted
        found += [line, *(f"< {tell(effect)}" for effect in effects), f"= {show(state)}"]
    return found


_SIMPLE: Final[dict[str, phases.Event]] = {
    "somebody stops": phases.WasStopped(),
    "time passes": phases.TimePassed(),
    "sums do not add up": phases.FoundWrong(),
}
_DECLINES: Final = {
    "declines": SiteReason.NETWORK_DIFFERS,
    "withdraws": SiteReason.WITHDRAWN,
    "revoked": SiteReason.REVOKED,
}


def _events(words: str) -> list[phases.Event]:
    """`a, b joins`, `a joins 3`, `sums do not add up`, `time passes`."""
    if words in _SIMPLE:
        return [_SIMPLE[words]]
    if words.startswith("back to "):
        return [phases.WentBack(*map(int, words.removeprefix("back to ").split(".")))]
    *others, last = words.split(", ")
    name, verb, *arguments = last.split()
    return [_event(site, verb, arguments) for site in (*others, name)]


def _event(site: str, verb: str, arguments: list[str]) -> phases.Event:
    match verb:
        case "joins":
            return phases.Joined(site, int((arguments or ["0"])[0]), is_current="reset" not in arguments)
        case "leaves":
            return phases.Left(site)
        case "advertises":
            return phases.Advertised(site, int(arguments[0]))
        case "acknowledges":
            return phases.Acknowledged(site, int(arguments[0]))
        case "completes":
            return phases.Completed(site)
        case "finishes":
            return phases.TookResult(site)
        case _:
            return phases.Declined(site, _DECLINES[verb])


def tell(effect: phases.Effect) -> str:
    """An effect in words."""
    match effect:
        case phases.OpenKeySession(key_session=key_session):
            return f"open key session {key_session}"
        case phases.SendRoster(key_session=key_session):
            return f"roster {key_session}"
        case phases.SealKeySession(key_session=key_session):
            return f"seal {key_session}"
        case phases.OfferRound(sites=sites, round=number, attempt=attempt, resumes=resumes):
            return f"{'resume' if resumes else 'offer'} {number}.{attempt} to {names(sites)}"
        case phases.CloseRound(round=number):
            return f"close {number}"
        case phases.VoidRound(round=number, attempt=attempt, missing=missing):
            return f"void {number}.{attempt} missing {names(missing)}"
        case phases.SendResult(sites=sites):
            return f"result to {names(sites)}"
        case phases.EndRun(over=over):
            return f"end: {over.reason}, missing {names(over.missing)}"
        case _:
            assert_never(effect)


def show(state: phases.State) -> str:
    """A state in words."""
    match state:
        case phases.Gathering(joined=joined):
            return f"gathering {names(joined)}"
        case phases.Agreeing(attempt=attempt, advertised=advertised, acknowledged=acknowledged, deadline=deadline):
            return (
                f"agreeing on {attempt.key_session}: {names(advertised)} advertised,"
                f" {names(acknowledged)} acknowledged until {deadline:g}"
            )
        case phases.Collecting(attempt=attempt, complete=complete, deadline=deadline):
            return f"collecting {attempt.round}.{attempt.number} complete {names(complete)} until {deadline:g}"
        case phases.Interrupted(attempt=attempt, returns=returns):
            to_return = ", to go back" if returns else ""
            return f"interrupted {attempt.round}.{attempt.number} with {names(attempt.present)}{to_return}"
        case phases.Finishing(done=done, deadline=deadline):
            return f"finishing done {names(done)} until {deadline:g}"
        case phases.Over(is_complete=is_complete):
            return "over, complete" if is_complete else "over, incomplete"
        case _:
            assert_never(state)


def names(sites: frozenset[str]) -> str:
    """Sites in order, or a dash."""
    return " ".join(sorted(sites)) or "-"
