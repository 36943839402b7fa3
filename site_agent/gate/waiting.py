"""Waits until persons have approved a plan or withdrawn from it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from host.audit_log import AuditLog
from site_agent.gate.consent import Consent

APPROVAL_POLL_SECONDS: Final = 1.0
CONSENT_POLL_SECONDS: Final = 0.2
# A coordinator that returns to its last snapshot repeats the rounds of a minute, so an honest one stays far below.
MOST_REPETITIONS: Final = 100_000.0
REPETITIONS_EACH_SECOND: Final = 1.0


class Repetitions:
    """Limits how often a coordinator announces runs and repeats rounds, because each repetition is in the audit log.

    Above the limit the site reads the coordinator's next message later. Nothing is refused.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with all repetitions that are allowed at once. `clock` returns monotonic seconds."""
        self._clock, self._left, self._since = clock, MOST_REPETITIONS, -math.inf

    def count(self) -> None:
        """Count one repetition."""
        now = self._clock()
        self._left = min(MOST_REPETITIONS, self._left + REPETITIONS_EACH_SECOND * (now - self._since)) - 1.0
        self._since = now

    @property
    def wait_seconds(self) -> float:
        """Return how long to wait before the coordinator's next message is read."""
        if self._left >= 0:
            return 0.0
        return max(0.0, self._since - self._left / REPETITIONS_EACH_SECOND - self._clock())


async def await_approval(
    consent: Consent,
    audit: AuditLog,
    tell: Callable[[], None],
    require_rest: Callable[[], None],
    work: Callable[[], Awaitable[None]],
) -> None:
    """Wait until as many persons of this hospital have approved exactly this plan as the policy requires.

    `tell` is called if the approval is missing; the audit log has the reason, and every change of it. `require_rest`
    is called before each look at the approval. It raises an error if the site need not wait any longer. `work` is
    awaited once a second. It handles messages that must not wait for the approval.

    Raises:
        TrainerGone: the trainer has ended in the meantime.
        UnavailableError: the stream has ended in the meantime.
        OperatorError: an error of `work`.
    """
    plan, told = consent.plan, ""
    require_rest()
    while because := consent.why_not():
        if because != told:
            facts = {"study": plan.study, "plan": plan.digest.hex(), "because": because}
            audit.write("approval_awaited", **facts)
            structlog.get_logger().warning("approval_awaited", **facts)
            tell()
            told = because
        await asyncio.sleep(APPROVAL_POLL_SECONDS)
        await work()
        require_rest()


async def watch(check: Callable[[], None], seconds: float) -> None:
    """Repeat a check after each interval of this many seconds, until the check raises an error."""
    while True:
        check()
        await asyncio.sleep(seconds)
