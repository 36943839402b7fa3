"""What an agent holds of one run: the download under way, the kept contribution, the binding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.manifest import Manifest
from protos.messages import Bind, Chunk, Finish, MalformedMessage, Offer
from protos.parameters import DOWN_CHUNK_PARAMETERS, down_chunks, down_slice, position
from protos.plan import Plan
from site_agent.boundary.gate import Contribution, Gate


class Download:
    """Parameters on their way in: filled chunk by chunk, believed only when the digest agrees."""

    def __init__(self, announced: Offer | Finish, parameters: int) -> None:
        self.announced = announced
        self.vector: npt.NDArray[np.float32] = np.empty(parameters, np.float32)
        self._hash = blake3()
        self._next = 0

    @property
    def is_complete(self) -> bool:
        """Whether all chunks have arrived."""
        return self._next == down_chunks(self.vector.size)

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk.

        Raises:
            MalformedMessage: it is not the next one, not of its size, or the whole is not what was offered.
        """
        attempt = self.announced.attempt if isinstance(self.announced, Offer) else 0
        if (chunk.round, chunk.attempt, chunk.index) != (self.announced.round, attempt, self._next) or self.is_complete:
            raise MalformedMessage("a chunk out of order")
        part = self.vector[down_slice(chunk.index)]
        if len(chunk.body) != 4 * part.size or part.size > DOWN_CHUNK_PARAMETERS:
            raise MalformedMessage("a chunk of the wrong size")
        part[...] = np.frombuffer(chunk.body, "<f4")
        self._hash.update(chunk.body)
        self._next += 1

    def check(self) -> None:
        """Raises MalformedMessage when the whole is not what was announced."""
        if self._hash.digest() != self.announced.parameters_digest:
            raise MalformedMessage("parameters that are not what was announced")


@dataclass
class RunWork:
    """One run at this site. `position` is what is being trained, or was trained last."""

    run: str
    plan: Plan
    manifest: Manifest
    gate: Gate
    download: Download | None = None
    offer: Offer | None = None
    position: bytes = b""
    contribution: Contribution | None = field(default=None, repr=False)
    bind: Bind | None = None
    highest: tuple[int, int] = (0, -1)
    is_concluded: bool = False

    def accept_offer(self, offer: Offer) -> None:
        """Rounds and attempts only increase, and a void attempt repeats the very same step.

        Raises:
            MalformedMessage: the coordinator goes back, skips, or offers other bytes for the step.
        """
        at = (offer.round, offer.attempt)
        if at < self.highest or offer.round >= self.plan.schedule.rounds:
            raise MalformedMessage("a round that is over, or that the plan does not have")
        here = position(self.run, offer.round, offer.parameters_digest)
        if self.position and offer.round == self.highest[0] and here != self.position:
            raise MalformedMessage("other parameters for the same step")
        self.highest, self.offer, self.bind = at, offer, None

    def accept_bind(self, bind: Bind, *, site: str, smallest_sites: int) -> None:
        """The contributors have to be listed, include this site, and be enough.

        Raises:
            MalformedMessage: they are not.
        """
        offer = self.offer
        if offer is None or (bind.round, bind.attempt) != (offer.round, offer.attempt):
            raise MalformedMessage("contributors for a round that was not offered")
        if self.bind is not None and self.bind.sites != bind.sites:
            raise MalformedMessage("two sets of contributors for one attempt")
        enough = max(self.plan.quorum, smallest_sites)
        if site not in bind.sites or not set(bind.sites) <= set(self.plan.site_names) or len(bind.sites) < enough:
            raise MalformedMessage("contributors that the plan or the policy does not allow")
        self.bind = bind
