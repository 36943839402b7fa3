"""The messages that a coordinator may send to a site at each moment, and the required result."""

from __future__ import annotations

from typing import Any

import numpy as np

from protos.errors import ProtocolError
from protos.plan.plan import Plan
from protos.wire.messages import Refusal, SiteReason
from tests.rehearsal.lying import Evidence, Lie, Stream
from tests.rehearsal.study import (
    SITES,
    THREE_CHUNKS,
)

ALL = tuple(SITES)


def zeros(count: int = THREE_CHUNKS, value: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Parameters."""
    return np.full(count, value, np.float32)


def assert_nothing_left(evidence: Evidence) -> None:
    """No part of a contribution was sent, and the log knows of no release."""
    assert evidence.chunks == []
    assert evidence.events("contribution_released") == []


def after_joining(*messages: Any) -> Any:
    """Send these messages to a site that has joined."""

    def lie(plan: Plan) -> Lie:
        async def tell(stream: Stream) -> None:
            await stream.joined(plan)
            await stream.send(*messages)

        return tell

    return lie


def after_offer(*messages: Any, number: int = 0) -> Any:
    """Send these messages to a site that is ready in a round."""

    def lie(plan: Plan) -> Lie:
        async def tell(stream: Stream) -> None:
            await stream.joined(plan)
            await stream.offered(plan, number)
            await stream.send(*messages)

        return tell

    return lie


def before_joining(*messages: Any) -> Any:
    """Say these things first."""

    def lie(_: Plan) -> Lie:
        async def tell(stream: Stream) -> None:
            await stream.send(*messages)

        return tell

    return lie


def assert_refused(evidence: Evidence) -> None:
    """The agent stopped because of the coordinator's message, with a record and a reason, and sent nothing."""
    assert_nothing_left(evidence)
    assert isinstance(evidence.error, ProtocolError), evidence.error
    (record,) = evidence.events("coordinator_refused")
    assert record["reason"]
    assert record["reason"] in evidence.error.what
    assert evidence.connections == 1
    assert [type(message) for message in evidence.received if isinstance(message, Refusal)] in ([Refusal], [])
    for message in evidence.received:
        if isinstance(message, Refusal):
            assert (message.reason, message.tensor) == (SiteReason.COORDINATOR_MISBEHAVED, "")
