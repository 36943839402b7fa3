"""Describes the records of an audit log in plain words.

A record counts rounds from 0, as the protocol does. Everything that people read here counts them from 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
