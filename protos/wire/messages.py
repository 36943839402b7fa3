"""Defines the messages as frozen records, which check themselves when they are built.

Bytes from a peer become one of these records or a ProtocolError. No other code of the two programs checks them again. A
text that a person will read is limited to one printable line. There are only the four calls below; a port answers any
other name with "unimplemented".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

PARTICIPATE: Final = "/global_layers.v1.Federation/Participate"  # stream of messages both ways
ENROL: Final = "/global_layers.v1.Enrolment/Enrol"  # one request, one reply
RENEW: Final = "/global_layers.v1.Enrolment/Renew"  # the same, for a site whose certificate has expired

# The key of the metadata of an accepted stream.
ACCEPTED: Final = "accepted"


PROTOCOL_VERSION: Final = 6  # of messages and masks
LARGEST_MESSAGE_BYTES: Final = 2 << 20
MOST_TOGETHER: Final = 16  # messages of the coordinator in one
MOST_TOGETHER_BYTES: Final = 64 << 10  # the largest size of all of them together; a larger message is sent alone
MOST_ROUNDS: Final = 1 << 31
_LARGEST_ROUND: Final = MOST_ROUNDS + 3  # the training rounds, a probe, and two rounds that only measure
_LONGEST_NAME: Final = 200
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{_LONGEST_NAME}}}")
_MOST_KEY_SESSIONS: Final = 1 << 20
_MOST_SITES: Final = 100
_MOST_LAYER_BYTES: Final = 8192
MOST_SAVED: Final = 16


class Stage(IntEnum):
    """The purpose of a round."""

    TRAINING = 0  # sites send updates of the federated parameters
    PROBE = 1  # one local epoch is measured and undone; sites send only the measurements
    VALIDATION = 2  # the last aggregate is measured; sites send only the measurements
    STATISTICS = 3  # declared columns are counted and added up; nothing is trained
    NEWTON = 4  # sites send the sums of a regression on concepts at common coefficients
    GUARD = 5  # sites send the effect of the others' score on the loss, as one number


class SiteReason(IntEnum):
    """The reason why a site leaves a run. The list is closed, because free text could quote data."""

    PLAN_NOT_APPROVED = 1
    POLICY_FORBIDS = 2
    NETWORK_DIFFERS = 3
    DATA_UNFIT = 4
    VALUE_NOT_FINITE = 5
    TOO_MUCH_CLIPPED = 6
    TRAINER_FAILED = 7
    COORDINATOR_MISBEHAVED = 9
    STATE_LOST = 11
    MASKING_REFUSED = 12
    REVOKED = 13
    WITHDRAWN = 14  # a person at the site has withdrawn its approval, or the approval has ended


class CoordinatorReason(IntEnum):
    """The reason why the coordinator ends a stream. The reason decides whether the site reconnects."""

    ALL_RUNS_OVER = 1
    NOT_ACCEPTED = 2
    PROTOCOL_VIOLATED = 3
    RUN_STOPPED = 4
    REPLACED = 5
    SHUTTING_DOWN = 6
    RUN_VOIDED = 7  # some site had a reason to send no numbers; nobody else learns which site or why

    @property
    def is_final(self) -> bool:
        """Return whether a new connection would fail until a person acts."""
        return self in {
            CoordinatorReason.ALL_RUNS_OVER,
            CoordinatorReason.NOT_ACCEPTED,
            CoordinatorReason.PROTOCOL_VIOLATED,
            CoordinatorReason.RUN_STOPPED,
            CoordinatorReason.RUN_VOIDED,
        }


class MalformedMessage(ValueError):  # the caller ends the stream and reports the reason
    """A message that no honest peer of this version sends."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message that a site sends on a stream.

    Attributes:
        together: whether the site can read several messages of the coordinator in one.
        sums: whether the site can compute parameters from the sum of a round.
    """

    protocol: int
    software: str
    together: bool = False
    sums: bool = False

    def __post_init__(self) -> None:
        require(0 < self.protocol < 1 << 16, "protocol version")
        require_line(self.software, "software version", longest=_LONGEST_NAME)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The coordinator starts a run. The site replies with Join or Refusal."""

    run: str
    plan: bytes

    def __post_init__(self) -> None:
        _require_name(self.run, "run")
        require(0 < len(self.plan) <= 1 << 20, "plan size")


@dataclass(frozen=True, slots=True)
class Join:
    """The site agrees to a plan and its manifest, and reports from which state it can continue.

    Attributes:
        key_session: the key session whose masking keys it has, 0 for none.
        next_round: the round with which the training in its memory continues; None if that was lost.
        saved: the rounds before which its state is on its disk, in their order.
        received: the position of the newest parameters that the site was sent, or empty. It has `received_chunks` of
            their chunks.
    """

    run: str
    plan_digest: bytes
    manifest_digest: bytes
    key_session: int
    next_round: int | None = 0
    saved: tuple[int, ...] = ()
    received: bytes = b""
    received_chunks: int = 0

    def __post_init__(self) -> None:
        _require_name(self.run, "run")
        require(len(self.received) in (0, 32) and 0 <= self.received_chunks < 1 << 20, "received parameters")
        require(0 <= self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_digest(self.plan_digest, "plan digest")
        _require_digest(self.manifest_digest, "manifest digest")
        require(self.next_round is None or 0 <= self.next_round <= MOST_ROUNDS, "next round")
        rounds = list(self.saved)
        require(len(rounds) <= MOST_SAVED and rounds == sorted(set(rounds)), "saved states")
        require(all(0 <= number <= _LARGEST_ROUND for number in rounds), "saved states")


@dataclass(frozen=True, slots=True)
class Offer:
    """The coordinator starts a round. The starting parameters follow as chunks.

    Attributes:
        parameters_digest: the digest of everything that follows.
        layers: the manifest's layers that take part, one bit each; empty for all.
        best_round: the round whose received model had the lowest validation loss over all sites so far,
            None if no round was measured.
        first_chunk: the site has the chunks of parameters before this one, so they do not follow.
        saves: whether every contributor saves its state after training, before it sends anything of the round.
        oldest: the oldest round to which this run may still return; a site deletes earlier states.
        scales: of short integers, for each of the manifest's layers (protos/numbers/short_integers.py); else empty.
        summed_rows: of all sites in the newest sum; 0 before any, or with equal weights.
        is_sum: instead of the parameters, the sum of the round before follows (protos/plan/short_wire.py).
    """

    round: int
    attempt: int
    parameters_digest: bytes
    stage: Stage = Stage.TRAINING
    layers: bytes = b""
    best_round: int | None = None
    first_chunk: int = 0
    saves: bool = False
    oldest: int = 0
    scales: bytes = b""
    summed_rows: int = 0
    is_sum: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.oldest <= self.round and 0 <= self.first_chunk < 1 << 20, "oldest round or first chunk")
        _require_position(self.round, self.attempt)
        _require_digest(self.parameters_digest, "parameters digest")
        require(len(self.layers) <= _MOST_LAYER_BYTES, "layers of a round")
        require(0 <= self.summed_rows < 1 << 63, "summed rows")
        require(len(self.scales) <= 8 * _MOST_LAYER_BYTES, "scales of a round")
        require(self.best_round is None or 0 <= self.best_round < self.round, "best round")


@dataclass(frozen=True, slots=True)
class Bind:
    """The contributors of a round: all sites of the plan. The site sends its chunks from `first_chunk` on."""

    round: int
    attempt: int
    sites: tuple[str, ...]
    first_chunk: int

    def __post_init__(self) -> None:
        _require_position(self.round, self.attempt)
        _require_sites(self.sites, "contributors")
        require(0 <= self.first_chunk < 1 << 20, "first chunk")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a vector. The receiver checks `body` against the layout."""

    round: int
    attempt: int
    index: int
    body: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        _require_position(self.round, self.attempt)
        require(0 <= self.index < 1 << 20, "chunk index")


@dataclass(frozen=True, slots=True)
class Finish:
    """The last aggregate follows as chunks. `round` counts the completed rounds. Other fields are as in an Offer."""

    round: int
    parameters_digest: bytes
    layers: bytes = b""
    best_round: int | None = None
    first_chunk: int = 0
    summed_rows: int = 0
    is_sum: bool = False

    def __post_init__(self) -> None:
        _require_position(self.round, 0)
        require(0 <= self.first_chunk < 1 << 20, "first chunk")
        require(0 <= self.summed_rows < 1 << 63, "summed rows")
        _require_digest(self.parameters_digest, "parameters digest")
        require(len(self.layers) <= _MOST_LAYER_BYTES, "layers of a result")
        require(self.best_round is None or 0 <= self.best_round < self.round, "best round")


@dataclass(frozen=True, slots=True)
class Done:
    """The site has loaded the last aggregate."""

    run: str

    def __post_init__(self) -> None:
        _require_name(self.run, "run")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The site leaves a run; `tensor` is the name of a federated tensor, or empty."""

    run: str
    reason: SiteReason
    tensor: str = ""

    def __post_init__(self) -> None:
        _require_name(self.run, "run")
        require_line(self.tensor, "tensor", longest=_LONGEST_NAME)


@dataclass(frozen=True, slots=True)
class Farewell:
    """The coordinator ends the stream."""

    reason: CoordinatorReason
    detail: str

    def __post_init__(self) -> None:
        require_line(self.detail, "detail", longest=1000)


@dataclass(frozen=True, slots=True)
class KeySessionOpen:
    """The coordinator requests that these sites agree on new masking keys."""

    key_session: int
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        require(0 < self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_sites(self.sites, "sites of a key session")


@dataclass(frozen=True, slots=True)
class KeyAdvert:
    """A site's key for one key session, signed with its identity key."""

    site: str
    key_session: int
    exchange_key: bytes
    nonce: bytes
    identity_key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        _require_name(self.site, "site of a key")
        require(0 < self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_digest(self.exchange_key, "exchange key")
        _require_digest(self.nonce, "nonce")
        _require_digest(self.identity_key, "identity key")
        require(len(self.signature) == 64, "signature size")


@dataclass(frozen=True, slots=True)
class KeySessionRoster:
    """All adverts of a key session, sorted by site."""

    key_session: int
    adverts: tuple[KeyAdvert, ...]

    def __post_init__(self) -> None:
        require(0 < self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_sites(tuple(advert.site for advert in self.adverts), "sites of a key session")
        require(all(advert.key_session == self.key_session for advert in self.adverts), "key session of a key")


@dataclass(frozen=True, slots=True)
class KeySessionAcknowledgement:
    """A site's signature of the transcript of a key session."""

    site: str
    key_session: int
    transcript: bytes
    signature: bytes

    def __post_init__(self) -> None:
        _require_name(self.site, "site of an acknowledgement")
        require(0 < self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_digest(self.transcript, "transcript")
        require(len(self.signature) == 64, "signature size")


@dataclass(frozen=True, slots=True)
class KeySessionSeal:
    """All acknowledgements of a key session, sorted by site."""

    key_session: int
    acknowledgements: tuple[KeySessionAcknowledgement, ...]

    def __post_init__(self) -> None:
        require(0 < self.key_session < _MOST_KEY_SESSIONS, "key_session")
        _require_sites(tuple(entry.site for entry in self.acknowledgements), "sites of a key session")
        require(
            all(entry.key_session == self.key_session for entry in self.acknowledgements),
            "key session of an acknowledgement",
        )


SiteMessage: TypeAlias = Hello | Join | Chunk | Done | Refusal | KeyAdvert | KeySessionAcknowledgement
_OfKeySessions: TypeAlias = KeySessionOpen | KeySessionRoster | KeySessionSeal
CoordinatorMessage: TypeAlias = Announcement | Offer | Chunk | Bind | Finish | Farewell | _OfKeySessions


def require(is_right: bool, what: str) -> None:
    """Raise MalformedMessage with this text if a condition on a message is false."""
    if not is_right:
        raise MalformedMessage(what)


def _require_digest(value: bytes, what: str) -> None:
    require(len(value) == 32, what)


def _require_position(round_number: int, attempt: int) -> None:
    require(0 <= round_number <= _LARGEST_ROUND and 0 <= attempt < 1 << 20, "round or attempt")


@lru_cache(maxsize=16)  # a round names the same sites to each of them
def _require_sites(sites: tuple[str, ...], what: str) -> None:
    require(0 < len(sites) <= _MOST_SITES and list(sites) == sorted(set(sites)), what)
    for site in sites:
        _require_name(site, what)


def _require_name(value: str, what: str) -> None:
    require(_NAME.fullmatch(value) is not None, what)


def require_line(value: str, what: str, *, longest: int) -> None:
    """Check that a text is one printable line of at most `longest` characters, or empty."""
    require(len(value) <= longest and (value == "" or value.isprintable()), what)
