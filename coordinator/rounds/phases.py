"""Defines the phases of a run, the events that change a phase, and the actions that follow from an event.

coordinator/rounds/round.py decides which phase and which actions follow. Times are seconds of the caller's monotonic
clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from protos.plan.schedules import Timing
from protos.wire.messages import SiteReason

Sites: TypeAlias = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The parts of the plan and of the run's records that the state machine needs.

    Attributes:
        rounds: the number of rounds, as far as it is known. The end of a round can reduce this number. But the run
            always finishes a round that was offered before.
        sites: all of them contribute to every sum.
        seconds: the longest time for training and sending together, counted again from each chunk that moves. So a
            line that is slow makes no attempt void.
        result_seconds: the longest time until all sites have loaded the result, counted in the same way.
        is_masked: the sites first agree on the keys of a key session.
        past: the last attempt at each round that must be repeated, because the run returned to an earlier round. The
            repetition is a later attempt.
        first_attempt: the number of the first attempt at a round; above 0 after a restore, because lower numbers may
            have been used.
        first_key_session: the last key session of an earlier process that ended before it offered the first round.
        receivers: sites that only receive the result. The end of the run waits for these sites.
    """

    sites: Sites
    rounds: int
    seconds: float
    result_seconds: float
    is_masked: bool
    deadlines: Timing
    past: Mapping[int, int] = field(default_factory=dict)
    first_attempt: int = 0
    first_key_session: int = 0
    receivers: Sites = frozenset()


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """The coordinator waits until all sites have joined, without end."""

    joined: Sites = frozenset()
    deadline: ClassVar[float] = math.inf


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one round. The phases that work on the attempt have it as a field.

    Attributes:
        present: the connected sites.
        withdrawn: sites that a person took out of the run. Nothing is offered before they have joined again.
        has_keys: all sites have the masking keys of `key_session`.
        corruptions: the number of attempts at this round with a wrong sum of the check words.
    """

    round: int
    number: int
    present: Sites
    withdrawn: Sites = frozenset()
    key_session: int = 0
    has_keys: bool = False
    corruptions: int = 0


@dataclass(frozen=True, kw_only=True)
class Agreeing:
    """The sites of the attempt agree on new masking keys. After that the round is offered."""

    attempt: Attempt
    advertised: Sites = frozenset()
    acknowledged: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Collecting:
    """Parameters were offered to the sites. The `complete` sites have sent all chunks of their contributions.

    `deadline` is the end of this phase. It is earlier while a site is away. `latest` is the end if no site is away.
    """

    attempt: Attempt
    complete: Sites = frozenset()
    deadline: float
    latest: float


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """No round is offered until every site is connected. This has no end.

    `returns`: this program or a site lost its memory. So the run first returns to a round that all of them have on
    disk.
    """

    attempt: Attempt
    returns: bool = False
    deadline: ClassVar[float] = math.inf


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """The result was sent. The `done` sites have loaded the result, and the `gone` sites will not load it."""

    attempt: Attempt
    done: Sites = frozenset()
    gone: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Over:
    """The run has ended.

    Attributes:
        is_complete: all rounds were done.
        is_by_person: a person stopped the run.
        is_void: some site had a reason to send no numbers. Only its own people learn which site, and why.
    """

    is_complete: bool
    reason: str
    missing: Sites = frozenset()
    is_by_person: bool = False
    is_void: bool = False


Working: TypeAlias = Agreeing | Collecting | Interrupted
State: TypeAlias = Gathering | Working | Finishing | Over


@dataclass(frozen=True)
class Joined:
    """A site agreed to the plan, or is connected again and has the keys of `key_session` (0: none).

    `is_current`: its memory or its disk has the state from which the current round continues.
    """

    site: str
    key_session: int = 0
    is_current: bool = True


@dataclass(frozen=True)
class Left:
    """A site's stream ended, or a person took the site out of the run (`is_withdrawn`), so it is not back soon."""

    site: str
    is_withdrawn: bool = False


@dataclass(frozen=True)
class Advertised:
    """A site sent its key for a key session."""

    site: str
    key_session: int


@dataclass(frozen=True)
class Acknowledged:
    """A site has checked all keys of a key session."""

    site: str
    key_session: int


@dataclass(frozen=True)
class Moved:
    """A chunk of parameters was taken by a site's line, or a chunk of its contribution was added."""

    site: str


@dataclass(frozen=True)
class Completed:
    """A site's last chunk was added."""

    site: str


@dataclass(frozen=True)
class FoundWrong:
    """All contributions arrived, and the sum of their check words is wrong, or at least one of them is a void."""

    is_void: bool = False


@dataclass(frozen=True)
class TookResult:
    """A site has loaded the result."""

    site: str


@dataclass(frozen=True)
class Declined:
    """A site reported that it takes no further part in the run."""

    site: str
    reason: SiteReason


@dataclass(frozen=True)
class WentBack:
    """Parameters and decisions were reset to those before a round. `attempt` is the last one at that round."""

    round: int
    attempt: int


@dataclass(frozen=True)
class WasStopped:
    """A person has ended the run."""


@dataclass(frozen=True)
class TimePassed:
    """The clock has advanced. Deadlines may have passed."""


Event: TypeAlias = (
    Joined
    | Left
    | Advertised
    | Acknowledged
    | Moved
    | Completed
    | FoundWrong
    | TookResult
    | Declined
    | WentBack
    | WasStopped
    | TimePassed
)


@dataclass(frozen=True)
class OpenKeySession:
    """Request new keys from all sites."""

    key_session: int


@dataclass(frozen=True)
class SendRoster:
    """Send to each site the keys of the other sites."""

    key_session: int


@dataclass(frozen=True)
class SealKeySession:
    """Confirm to all sites that they have seen the same keys."""

    key_session: int


@dataclass(frozen=True)
class OfferRound:
    """Send the round's parameters to these sites. With `resumes`, they send only chunks that have not arrived yet."""

    sites: Sites
    round: int
    attempt: int
    resumes: bool = False


@dataclass(frozen=True)
class CloseRound:
    """Apply the server rule to the complete sum."""

    round: int


@dataclass(frozen=True)
class VoidRound:
    """Drop the attempt's sums, and disconnect the missing sites."""

    round: int
    attempt: int
    missing: Sites


@dataclass(frozen=True)
class SendResult:
    """Send the result to these sites."""

    sites: Sites


@dataclass(frozen=True)
class EndRun:
    """Write the run's record and inform every site."""

    over: Over


Effect: TypeAlias = (
    OpenKeySession | SendRoster | SealKeySession | OfferRound | CloseRound | VoidRound | SendResult | EndRun
)
Outcome: TypeAlias = tuple[State, tuple[Effect, ...]]
