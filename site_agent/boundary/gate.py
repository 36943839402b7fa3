"""The one door out of a site.

Builds the contribution for a round from the trained change. Nothing else in the site agent may
build one, and the connection sends no chunk that is not cut from one. The rules:

* a change whose length is not the manifest's is refused, not padded;
* a value that is not finite is refused, and so is a vector with too many clipped values;
* the whole vector is encoded and checked before its first byte leaves;
* one position has one contribution: what was built is kept and sent again, never built anew;
* the audit log records a release, and is synced, before the bytes are handed over;
* under a plan that requires masking, no chunk is handed over without its masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
from blake3 import blake3

from protos.errors import OperatorError
from protos.fixed_point import FixedPoint, NotFinite
from protos.manifest import Manifest
from protos.messages import Bind, Chunk, MalformedMessage, SiteReason
from protos.plan import EqualWeights, Plan, RowWeights
from protos.tensors import Layout
from site_agent.boundary.audit import AuditLog
from site_agent.boundary.masking import SiteMasking


class GateRefusal(OperatorError):
    """The gate did not let a contribution out; `reason` and `tensor` may be told to the coordinator."""

    def __init__(self, *, what: str, reason: SiteReason, tensor: str = "") -> None:
        super().__init__(
            what=what,
            consequence="Nothing of this round left this site.",
            remedy="Tell the study's researcher; the run stops here for this site.",
        )
        self.reason, self.tensor = reason, tensor


@dataclass(frozen=True)
class Contribution:
    """A checked vector, ready for one position and draw; only the gate makes them."""

    position: bytes
    redraw: int
    clipped: int
    buffer: bytearray = field(repr=False)
    digest: bytes


class Gate:
    """The door for one run."""

    def __init__(self, run: str, plan: Plan, manifest: Manifest, audit: AuditLog, masking: SiteMasking | None) -> None:
        """`masking` is None only where the plan has secure aggregation off."""
        if (masking is None) != (plan.secure_aggregation == "off"):
            raise ValueError("a plan is masked or it is not")
        self._masking = masking
        self._run, self._plan, self._manifest, self._audit = run, plan, manifest, audit
        self._layout = Layout(manifest.parameters, len(manifest.scalars))
        self._fixed_point = FixedPoint(plan.encoding.clipping_range, len(plan.sites))

    def build(self, position: bytes, change: memoryview, *, rows: int, redraw: int) -> Contribution:
        """Encode and check what the trainer handed out.

        Args:
            position: what the change was computed from.
            change: little-endian float32 in the manifest's order.
            rows: training rows on the public grid; not used where all sites weigh the same.
            redraw: which draw of the step it is, 0 for the ordinary one.

        Raises:
            GateRefusal: the vector may not leave.
        """
        if len(change) != 4 * self._manifest.parameters:
            raise GateRefusal(
                what="The trained change is not what the manifest names.", reason=SiteReason.NETWORK_DIFFERS
            )
        weight, scalars = self._weigh(rows)
        values = np.frombuffer(change, "<f4")
        buffer = bytearray(self._layout.total_bytes)
        clipped = 0
        for index in range(self._layout.chunks):
            body = self._layout.body(buffer, index)
            words = self._layout.words(body, index)
            words[0] = 1
            words[1:] = scalars[: len(words) - 1]
            part = self._layout.changes_slice(index)
            try:
                clipped += self._fixed_point.encode(values[part], weight, self._layout.changes(body, index))
            except NotFinite as found:
                tensor = self._manifest.tensor_at(part.start + found.index)
                what = f"Training made {tensor} infinite or not a number."
                raise GateRefusal(what=what, reason=SiteReason.VALUE_NOT_FINITE, tensor=tensor) from found
        if clipped > self._plan.encoding.largest_clipped_share * values.size:
            what = f"{clipped} of {values.size} values lay outside the agreed clipping range."
            raise GateRefusal(what=what, reason=SiteReason.TOO_MUCH_CLIPPED)
        return Contribution(position, redraw, clipped, buffer, blake3(buffer).digest())

    def release(self, contribution: Contribution, bind: Bind) -> Iterator[Chunk]:
        """The contribution's chunks from where the coordinator lacks them; the log is written first.

        Raises:
            AuditError: the log cannot be written; no chunk is handed out.
            MaskingRefused: this vector may not be masked for these contributors.
            MalformedMessage: the coordinator asks for a chunk that there is not.
        """
        if bind.first_chunk >= self._layout.chunks:
            raise MalformedMessage("a first chunk that the vector does not have")
        if self._masking is not None:
            self._masking.freeze(contribution.position, bind, contribution.digest)
        self._audit.write(
            "contribution_released",
            run=self._run,
            round=bind.round,
            attempt=bind.attempt,
            contributors=list(bind.sites),
            manifest=self._manifest.digest.hex(),
            tensors=len(self._manifest.tensors),
            scalars=[scalar.name for scalar in self._manifest.scalars],
            bytes=self._layout.total_bytes - self._layout.start(bind.first_chunk),
            first_chunk=bind.first_chunk,
            clipped=contribution.clipped,
            masked=self._masking is not None,
        )
        return self._hand_out(contribution, bind)

    def _hand_out(self, contribution: Contribution, bind: Bind) -> Iterator[Chunk]:
        """The chunks, and at their end a second record: how much left, and the hash of these very bytes.

        Masked bytes confirm no guess at the change; the hash of the change itself would.
        """
        sent, total = blake3(), 0
        for index, body in enumerate(self._bodies(contribution, bind), start=bind.first_chunk):
            sent.update(body)
            total += len(body)
            yield Chunk(bind.round, bind.attempt, index, body)
        at = {"run": self._run, "round": bind.round, "attempt": bind.attempt}
        self._audit.write("contribution_handed_over", **at, bytes=total, payload_blake3=sent.hexdigest())

    def _bodies(self, contribution: Contribution, bind: Bind) -> Iterator[bytes]:
        if self._masking is not None:
            return self._masking.masked(contribution.position, bind, contribution.buffer)
        chunks = range(bind.first_chunk, self._layout.chunks)
        return (bytes(self._layout.body(contribution.buffer, index)) for index in chunks)

    def _weigh(self, rows: int) -> tuple[float, list[int]]:
        match self._plan.weighting:
            case EqualWeights():
                return 1.0, []
            case RowWeights(largest_rows=largest):
                if not 0 < rows <= largest:
                    raise GateRefusal(what="The trainer named no valid row count.", reason=SiteReason.TRAINER_FAILED)
                return rows / largest, [rows]
            case _:
                assert_never(self._plan.weighting)
