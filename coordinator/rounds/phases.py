"""Defines the phases of a run, the events that change a phase, and the actions that follow from an event.

coordinator/rounds/round.py decides which phase and which actions follow. Times are seconds of the caller's monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from protos.plan.schedules import Deadlines
from protos.wire.messages import SiteReason

Sites: TypeAlias = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Past:
    """The last offer of a round. The run returned to an earlier round, so the same sites must repeat this round.

    The fields have the same meaning as in Attempt. The repetition is a later attempt.
    """

    attempt: int
    bound: Sites
    was_bound: bool = False
    resample: int = 0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The parts of the plan and of the journal that the state machine needs.

    Attributes:
        rounds: the number of rounds, as far as it is known. The end of a round can reduce this number. But the run
            always finishes a round that was offered before.
        binds_early: the offer of a round already names the contributors.
        early_seconds: the longest time for training and sending together if the offer names the contributors, in
            seconds. None means `contribute_seconds`.
        is_masked: contributors first agree on the keys of a key session.
        on_lost_site: whether a run waits for a lost site, or continues without it.
        past: the rounds that must be repeated, because the run returned to an earlier round.
        is_paused: a person has paused the run, so no further round begins.
        first_attempt: the number of the first attempt at a round; above 0 after a restore, because lower numbers may
            have been used.
        first_key_session: the last key session of an earlier process that ended before it offered the first round.
        receivers: sites that only receive the result. The end of the run waits for these sites.
    """

    sites: Sites
    quorum: int
    rounds: int
    binds_early: bool
    early_seconds: float | None = None
    is_masked: bool
    on_lost_site: Literal["wait", "continue"]
    deadlines: Deadlines
    past: Mapping[int, Past] = field(default_factory=dict)
    is_paused: bool = False
    first_attempt: int = 0
    first_key_session: int = 0
    receivers: Sites = frozenset()


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """The coordinator waits for the listed sites. The `declined` sites reported that they will not take part."""

    joined: Sites = frozenset()
    declined: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one round. The phases that work on the attempt have it as a field.

    Attributes:
        present: the connected sites, bound or entering.
        entering: sites that become contributors with the next round.
        agreed: the sites that have the masking keys of `key_session`.
        corruptions: the number of attempts at this round with a wrong sum of the check words.
        was_bound: an attempt at this round has named its contributors, so some sites may have sent data.
        resample: the number of the attempt from which all sites draw other batches and dropout. They do this if a round
            continues without a contributor. 0 means the usual draw.
        withdrawn: bound sites that their own persons or the office have withdrawn. The plan decides whether the other
            sites wait for them or continue at once.
        late: names a site one time for each attempt that failed because of this site. When the site has sent a whole
            contribution, its entries are removed.
    """

    round: int
    number: int
    bound: Sites
    present: Sites
    entering: Sites = frozenset()
    key_session: int = 0
    agreed: Sites = frozenset()
    corruptions: int = 0
    was_bound: bool = False
    resample: int = 0
    withdrawn: Sites = frozenset()
    late: tuple[str, ...] = ()

    def at(self, number: int, past: Past) -> Attempt:
        """Return an attempt that repeats an earlier round with the same sites. Other connected sites enter later."""
        return Attempt(
            round=number,
            number=past.attempt + 1,
            bound=past.bound,
            present=self.present,
            entering=self.present - past.bound,
            key_session=self.key_session,
            agreed=self.agreed,
            was_bound=past.was_bound,
            resample=past.resample,
            withdrawn=self.withdrawn & past.bound,
            late=self.late,
        )


@dataclass(frozen=True, kw_only=True)
class Agreeing:
    """The sites of the attempt agree on new masking keys. After that the round is offered."""

    attempt: Attempt
    advertised: Sites = frozenset()
    acknowledged: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """Parameters were offered to the sites. Each `ready` site has computed and checked its contribution.

    `deadline` is the end of this phase. It is earlier while a site is away. `latest` is the end if no site is away.
    """

    attempt: Attempt
    ready: Sites = frozenset()
    deadline: float
    latest: float


@dataclass(frozen=True, kw_only=True)
class Collecting:
    """The list of contributors is fixed. The `complete` sites have sent all chunks. Deadlines are as in Training."""

    attempt: Attempt
    complete: Sites = frozenset()
    deadline: float
    latest: float


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """No round is offered until every site of the attempt is connected and the run is not paused.

    `returns`: this program or a site lost its memory. So the run first returns to a round that all of them have on
    disk.
    """

    attempt: Attempt
    deadline: float
    returns: bool = False


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """The result was sent. The `done` sites have loaded the result, and the `gone` sites will not load it."""

    attempt: Attempt
    done: Sites = frozenset()
    gone: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Over:
    """The run has ended. `is_complete`: all rounds were done. `is_by_person`: a person stopped the run."""

    is_complete: bool
    reason: str
    missing: Sites = frozenset()
    is_by_person: bool = False


Working: TypeAlias = Agreeing | Training | Collecting | Interrupted
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
    """A site's stream ended."""

    site: str


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
class BecameReady:
    """A site has computed its contribution for this attempt."""

    site: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Completed:
    """A site's last chunk was added."""

    site: str


@dataclass(frozen=True)
class FoundCorrupted:
    """All contributions arrived, and the sum of their check words is wrong."""


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
    """Parameters and decisions were reset to those before a round. `past` is the last offer of that round."""

    round: int
    past: Past


@dataclass(frozen=True)
class WasPaused:
    """A person has paused the run."""


@dataclass(frozen=True)
class WasResumed:
    """A person has resumed the run."""


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
    | BecameReady
    | Completed
    | FoundCorrupted
    | TookResult
    | Declined
    | WentBack
    | WasPaused
    | WasResumed
    | WasStopped
    | TimePassed
)


@dataclass(frozen=True)
class OpenKeySession:
    """Request new keys from these sites."""

    sites: Sites
    key_session: int


@dataclass(frozen=True)
class SendRoster:
    """Send to each of these sites the keys of the other sites."""

    sites: Sites
    key_session: int


@dataclass(frozen=True)
class SealKeySession:
    """Confirm to these sites that all sites have seen the same keys."""

    sites: Sites
    key_session: int


@dataclass(frozen=True)
class OfferRound:
    """Send the round's parameters to these sites."""

    sites: Sites
    round: int
    attempt: int


@dataclass(frozen=True)
class BindRound:
    """Send these sites the contributors' names. With `resumes`, a site sends only chunks that have not arrived yet."""

    sites: Sites
    contributors: Sites
    round: int
    attempt: int
    resample: int
    resumes: bool


@dataclass(frozen=True)
class CloseRound:
    """Apply the server rule to the complete sum."""

    round: int
    contributors: Sites


@dataclass(frozen=True)
class VoidRound:
    """Drop the attempt's sums, and disconnect the missing sites. The run continues without the `given_up` sites."""

    round: int
    attempt: int
    missing: Sites
    given_up: Sites = frozenset()


@dataclass(frozen=True)
class SendResult:
    """Send the result to these sites."""

    sites: Sites


@dataclass(frozen=True)
class EndRun:
    """Write the run's record and inform every site."""

    over: Over


Effect: TypeAlias = (
    OpenKeySession | SendRoster | SealKeySession | OfferRound | BindRound | CloseRound | VoidRound | SendResult | EndRun
)
Outcome: TypeAlias = tuple[State, tuple[Effect, ...]]
