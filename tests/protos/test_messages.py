"""Each record's limits: a message that no honest peer sends never becomes a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protos.wire import messages
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest
from tests.protos.examples import COORDINATOR_MESSAGES, ENROLMENT_REPLIES, ENROLMENT_REQUEST, SITE_MESSAGES

ALL: tuple[Any, ...] = (*SITE_MESSAGES, *COORDINATOR_MESSAGES, ENROLMENT_REQUEST, *ENROLMENT_REPLIES)
D = b"d" * 32
S = b"s" * 64
ADVERT = messages.KeyAdvert("berlin", 3, D, D, D, S)
ACKNOWLEDGEMENT = messages.KeySessionAcknowledgement("berlin", 3, D, S)
BAD_NAMES = ("", "a" * 201, "with space", "slash/ed", "new\nline", "nul\0", "é", "١")  # the last: a digit, not ASCII
BAD_LINES = ("two\nlines", "tab\t", "bell\x07", "\N{RIGHT-TO-LEFT OVERRIDE}abc", "\x1b[2J")

BAD: list[Callable[[], object]] = [
    *(lambda number=number: messages.Hello(number, "1") for number in (0, -1, 1 << 16)),
    *(lambda line=line: messages.Hello(1, line) for line in (*BAD_LINES, "a" * 201)),
    *(lambda name=name: messages.Announcement(name, b"{}") for name in BAD_NAMES),
    lambda: messages.Announcement("run", b""),
    lambda: messages.Announcement("run", bytes((1 << 20) + 1)),
    *(lambda name=name: messages.Join(name, D, D, 0) for name in BAD_NAMES),
    *(lambda size=size: messages.Join("run", bytes(size), D, 0) for size in (0, 31, 33)),
    *(lambda size=size: messages.Join("run", D, bytes(size), 0) for size in (0, 31, 33)),
    *(lambda key_session=key_session: messages.Join("run", D, D, key_session) for key_session in (-1, 1 << 32)),
    *(lambda number=number: messages.Offer(number, 0, D) for number in (-1, messages.MOST_ROUNDS + 4)),
    *(lambda attempt=attempt: messages.Offer(0, attempt, D) for attempt in (-1, 1 << 20)),
    *(lambda size=size: messages.Offer(0, 0, bytes(size)) for size in (0, 31, 33)),
    lambda: messages.Offer(0, 0, D, messages.Stage.TRAINING, bytes(8193)),
    *(lambda best=best: messages.Offer(3, 0, D, messages.Stage.TRAINING, b"", best) for best in (-1, 3, 4)),
    lambda: messages.Offer(0, 0, D, messages.Stage.TRAINING, b"", 0),
    lambda: messages.Finish(3, D, bytes(8193)),
    *(lambda best=best: messages.Finish(3, D, b"", best) for best in (-1, 3, 4)),
    lambda: messages.Bind(0, 0, (), 0),
    lambda: messages.Bind(0, 0, ("b", "a"), 0),
    lambda: messages.Bind(0, 0, ("a", "a"), 0),
    lambda: messages.Bind(0, 0, tuple(f"{index:03d}" for index in range(101)), 0),
    *(lambda name=name: messages.Bind(0, 0, (name,), 0) for name in BAD_NAMES),
    *(lambda first=first: messages.Bind(0, 0, ("a",), first) for first in (-1, 1 << 20)),
    lambda: messages.Bind(messages.MOST_ROUNDS + 4, 0, ("a",), 0),
    *(lambda index=index: messages.Chunk(0, 0, index, b"") for index in (-1, 1 << 20)),
    lambda: messages.Chunk(messages.MOST_ROUNDS + 4, 0, 0, b""),
    lambda: messages.Chunk(0, 1 << 20, 0, b""),
    lambda: messages.Finish(messages.MOST_ROUNDS + 4, D),
    lambda: messages.Finish(0, b""),
    *(lambda name=name: messages.Done(name) for name in BAD_NAMES),
    *(lambda name=name: messages.Refusal(name, messages.SiteReason.DATA_UNFIT) for name in BAD_NAMES),
    *(
        lambda line=line: messages.Refusal("run", messages.SiteReason.DATA_UNFIT, line)
        for line in (*BAD_LINES, "a" * 201)
    ),
    *(
        lambda line=line: messages.Farewell(messages.CoordinatorReason.REPLACED, line)
        for line in (*BAD_LINES, "a" * 1001)
    ),
    *(lambda key_session=key_session: messages.KeySessionOpen(key_session, ("a",)) for key_session in (-1, 0, 1 << 32)),
    lambda: messages.KeySessionOpen(1, ()),
    lambda: messages.KeySessionOpen(1, ("b", "a")),
    *(lambda name=name: replace(ADVERT, site=name) for name in BAD_NAMES),
    *(lambda key_session=key_session: replace(ADVERT, key_session=key_session) for key_session in (-1, 0, 1 << 32)),
    *(lambda name=name: replace(ADVERT, **{name: b"k" * 31}) for name in ("exchange_key", "nonce", "identity_key")),
    *(lambda size=size: replace(ADVERT, signature=bytes(size)) for size in (0, 63, 65)),
    lambda: messages.KeySessionRoster(3, ()),
    lambda: messages.KeySessionRoster(4, (ADVERT,)),
    lambda: messages.KeySessionRoster(3, (ADVERT, ADVERT)),
    lambda: messages.KeySessionRoster(3, (ADVERT, replace(ADVERT, site="amsterdam"))),
    *(lambda name=name: replace(ACKNOWLEDGEMENT, site=name) for name in BAD_NAMES),
    lambda: replace(ACKNOWLEDGEMENT, key_session=0),
    lambda: replace(ACKNOWLEDGEMENT, transcript=b""),
    lambda: replace(ACKNOWLEDGEMENT, signature=D),
    lambda: messages.KeySessionSeal(3, ()),
    lambda: messages.KeySessionSeal(4, (ACKNOWLEDGEMENT,)),
    lambda: messages.KeySessionSeal(3, (ACKNOWLEDGEMENT, replace(ACKNOWLEDGEMENT, site="amsterdam"))),
    *(lambda size=size: replace(ENROLMENT_REQUEST, token=bytes(size)) for size in (0, 23, 25)),
    *(lambda size=size: replace(ENROLMENT_REQUEST, signing_request=bytes(size)) for size in (0, 8193)),
    *(lambda size=size: replace(ENROLMENT_REQUEST, identity_key=bytes(size)) for size in (31, 33)),
    *(lambda size=size: replace(ENROLMENT_REQUEST, signature=bytes(size)) for size in (63, 65)),
    lambda: EnrolmentReply(bytes((64 << 10) + 1), "", ""),
    *(lambda line=line: EnrolmentReply(b"", line, "") for line in (*BAD_LINES, "a" * 201)),
    *(lambda line=line: EnrolmentReply(b"", "", line) for line in (*BAD_LINES, "a" * 1001)),
]


@pytest.mark.parametrize("build", BAD)
def test_what_no_honest_peer_sends_is_refused(build: Callable[[], object]) -> None:
    """A record beyond one of its limits raises MalformedMessage when it is built."""
    with pytest.raises(messages.MalformedMessage):
        build()


def test_no_message_can_be_changed() -> None:
    """What was checked once stays what it is."""
    assert all(type(message).__dataclass_params__.frozen for message in ALL)


def test_secrets_and_bodies_stay_out_of_logs() -> None:
    """A token and a chunk's body never stand in a repr."""
    request = EnrolmentRequest(b"SECRETSECRETSECRETSECRET", b"r", D, S)
    chunk = messages.Chunk(0, 0, 0, b"SECRET")

    assert "SECRET" not in repr(request)
    assert "SECRET" not in repr(chunk)


def test_a_site_knows_which_farewells_are_final() -> None:
    """A site reconnects after a replacement and a restart, and after nothing else."""
    passing = {reason for reason in messages.CoordinatorReason if not reason.is_final}

    assert passing == {messages.CoordinatorReason.REPLACED, messages.CoordinatorReason.SHUTTING_DOWN}
