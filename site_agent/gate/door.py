"""Builds and releases every contribution of a site. No contribution leaves the site in another way.

No other file of the site agent builds a contribution, and the connection sends only chunks of one. The rules:

* a payload that is not exactly as long as in the round's exchange is refused, not padded;
* a scalar beyond its bounds is refused;
* a value that is not finite is refused, and so is a vector with too many clipped values;
* no such refusal is visible outside: a void leaves, secret random integers with a check that says so. The sum is then
  random too, and shows only that some site had a reason. Zeros would show the other sites' sum;
* the whole vector is encoded and checked before its first byte leaves;
* one position has one contribution: it is kept and sent again, never built a second time;
* a contribution that the hospital's policy does not allow, or that its persons no longer approve, is refused whatever a
  plan contains;
* one transaction records a release before the bytes are handed over: the audit record, the masked vector, and the noise
  with its payment;
* under a plan that requires masking, no chunk is handed over without its masks;
* under a plan with privacy, no vector is encoded without noise, and none leaves before its noise is paid for;
* sums of private layers are stored here for the trainer, and are in no contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, assert_never

import numpy as np
import structlog
from blake3 import blake3

from host.audit_log import AuditLog
from protos.numbers.fixed_point import FixedPoint, NotFinite
from protos.numbers.short_integers import Integers, largest_integer
from protos.plan.exchange import Exchange, Float32
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.plan.short_wire import layer_parts
from protos.plan.weighting import EqualWeights, RowWeights
from protos.wire.messages import Bind, Chunk, MalformedMessage, SiteReason
from site_agent.framed_messages import memory_for
from site_agent.gate.consent import Consent
from site_agent.gate.permission import GateRefusal, Permission
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.gate.site_masking import SiteMasking
from site_agent.hospital import Policy

Noise: TypeAlias = Callable[[list[int]], list[int]]


def unexpected_answer(what: str = "The trainer of this site sent an unexpected answer.") -> GateRefusal:
    """Return the error that the trainer of this site sent what it may not send."""
    return GateRefusal(what=what, reason=SiteReason.TRAINER_FAILED)


@dataclass(frozen=True)
class Contribution:
    """A checked vector, ready for one position. Only the gate process makes contributions.

    Attributes:
        noisy: under a plan with privacy, the sums with noise and the private layers' total after this step.
        void: why random integers take the place of this site's numbers; None if they are its numbers.
        memory: the head of the trainer's memory of answered values, for the audit log.
    """

    position: bytes
    exchange: Exchange
    clipped: int
    buffer: memoryview = field(repr=False)
    digest: bytes
    noisy: Sequence[int] = field(repr=False)
    void: SiteReason | None = None
    memory: str = ""


class Gate:
    """Builds and releases the contributions of one run."""

    def __init__(
        self,
        plan: Plan,
        manifest: Manifest,
        *,
        site: str,
        policy: Policy,
        audit: AuditLog,
        masking: SiteMasking | None,
        consent: Consent,
    ) -> None:
        """Prepare the gate. `masking` is None only if the plan has secure aggregation off."""
        if (masking is None) != (not plan.masking.required):
            raise ValueError("a plan is masked or it is not")
        self._masking, self._plan, self._manifest, self._audit = masking, plan, manifest, audit
        self._ledger = None if plan.privacy is None else PrivacyLedger(audit)
        self._permission = Permission(
            plan, manifest, site=site, policy=policy, consent=consent, audit=audit, ledger=self._ledger
        )
        trains = plan.tier_of(site) == "training"  # otherwise no update differs from zero
        self._builder = Builder(plan, trains=trains, smallest_rows=policy.smallest_training_rows)

    def build(
        self,
        position: bytes,
        exchange: Exchange,
        payload: memoryview,
        *,
        rows: int,
        memory: str = "",
        void: SiteReason | None = None,
    ) -> Contribution:
        """Return the trainer's reply as a contribution, or a void for the reason `void` or one of Builder's."""
        noise = None if self._ledger is None else partial(self._ledger.draw, self._plan, position)
        try:
            if void is None:
                built = self._builder.build(position, exchange, payload, rows=rows, noise=noise)
                return replace(built, memory=memory)
        except GateRefusal as refused:
            structlog.get_logger().error("contribution_void", what=refused.what)
            void = refused.reason
        key = self._masking.void_key if self._masking else bytes(32)  # without masks the check shows the site
        return replace(self._builder.void(position, exchange, void, key, noise=noise), memory=memory)

    def own_sums(self, position: bytes | None) -> bytes:
        """Return the private layers' noisy sums, added up before a step or over all steps, as little-endian int64."""
        return b"" if self._ledger is None else self._ledger.own_sums(self._plan, position).tobytes()

    def require_open(self, bind: Bind) -> None:
        """Check that the approval still permits sending. Raises the same errors as `release`."""
        self._permission.require_open(bind)

    def finish(self) -> None:
        """Delete the noisy numbers of a run that is finished. Raises StoreError."""
        if self._ledger is not None:
            self._ledger.forget_numbers(self._plan)

    def release(self, contribution: Contribution, bind: Bind, scales: bytes = b"") -> Iterator[Chunk]:
        """Record a contribution, and its round's scales, then yield the chunks that the coordinator does not have.

        Raises:
            StoreError: the store cannot be written; no chunk is handed out.
            ConsentEnded: the persons here no longer agree.
            PolicyForbids: the policy does not allow the contribution.
            MaskingRefused: this vector may not be masked for these contributors.
            MalformedMessage: the coordinator requests a chunk that does not exist.
        """
        exchange = contribution.exchange
        if bind.first_chunk >= exchange.layout.chunks:
            raise MalformedMessage("a first chunk that the vector does not have")
        self._permission.require(bind, contribution.position)
        with self._audit.store.transaction():
            if self._masking is not None:
                self._masking.freeze(contribution.position, bind, exchange.layout, contribution.digest)
            if self._ledger is not None:
                self._ledger.pay(self._plan, contribution.position, contribution.noisy)
            self._audit.write(
                "contribution_released",
                run=self._plan.run_name,
                round=bind.round,
                attempt=bind.attempt,
                position=contribution.position.hex(),
                manifest=self._manifest.digest.hex(),
                stage=exchange.stage.name.lower(),
                offered_layers=exchange.layers.hex(),
                scales=scales.hex(),
                tensors=len(exchange.up),
                scalars=len(exchange.scalars),
                bytes=exchange.layout.total_bytes - exchange.layout.start(bind.first_chunk),
                first_chunk=bind.first_chunk,
                clipped=contribution.clipped,
                void="no" if contribution.void is None else contribution.void.name.lower(),
                masked=self._masking is not None,
                memory=contribution.memory,
            )
        return self._hand_out(contribution, bind)

    def _hand_out(self, contribution: Contribution, bind: Bind) -> Iterator[Chunk]:
        layout, buffer = contribution.exchange.layout, contribution.buffer
        if self._masking is not None:
            bodies = self._masking.masked(contribution.position, bind, layout, buffer)
        else:
            bodies = (layout.body(buffer, index) for index in range(bind.first_chunk, layout.chunks))
        for index, body in enumerate(bodies, start=bind.first_chunk):
            self.require_open(bind)
            yield Chunk(bind.round, bind.attempt, index, body)


class Builder:
    """Encodes and checks vectors under one plan. Only the gate process sends these vectors."""

    def __init__(self, plan: Plan, *, trains: bool, smallest_rows: int) -> None:
        """Prepare the encoding.

        `trains` is False for a site that only evaluates; `smallest_rows` limits its row count.
        """
        self._plan, self._trains, self._smallest_rows = plan, trains, smallest_rows
        self._fixed_point = FixedPoint(plan.masking.clipping_range, len(plan.sites))

    def build(
        self, position: bytes, exchange: Exchange, payload: memoryview, *, rows: int, noise: Noise | None = None
    ) -> Contribution:
        """Check the trainer's reply, and return it as a contribution in encoded form.

        Args:
            position: digest of the inputs of the computation.
            exchange: the values that may be sent in this round.
            payload: the updates as little-endian float32, or as the short integers that the trainer made of them.
                Then the scalars without "rows" as little-endian int64, each in the exchange's order, then the noisy
                sums of private layers.
            rows: training rows as the plan counts them; not used if their number is not sent.
            noise: returns the scalars with noise, and keeps the sums behind them; a plan with privacy needs it.

        Raises:
            GateRefusal: the contribution may not leave.
        """
        if len(payload) != payload_bytes(exchange):
            what = "The trainer's answer does not have the length that this round requires."
            raise GateRefusal(what=what, reason=SiteReason.NETWORK_DIFFERS)
        layout = exchange.layout
        kind = "<f4" if exchange.bits == 32 else f"<i{layout.width}"
        values = np.frombuffer(payload, kind, exchange.updates)
        if not self._trains and values.any():
            raise unexpected_answer("The trainer sent an update, but this site only evaluates.")
        weight, scalars = self._weigh(exchange, rows), self._scalars(exchange, payload, rows)
        noisy = self._noisy([*scalars, *self._own_sums(exchange, payload)], noise)
        scalars = noisy[: len(scalars)]
        buffer, digest = memory_for(layout.total_bytes), blake3()
        clipped = 0 if exchange.bits == 32 else self._clipped(exchange, values)
        for index in range(layout.chunks):
            body = layout.body(buffer, index)
            words = layout.words(body, index)
            words[0] = 1
            words[1:] = scalars[: len(words) - 1]
            part = layout.updates_slice(index)
            clipped += self._encode(values[part], weight, layout.updates(body, index))
            digest.update(body)  # while it is in the processor's cache
        self._require_few(clipped, values.size)
        return Contribution(position, exchange, clipped, buffer.toreadonly(), digest.digest(), noisy)

    def void(
        self, position: bytes, exchange: Exchange, reason: SiteReason, key: bytes, *, noise: Noise | None
    ) -> Contribution:
        """Return random integers, always the same ones for a position and a secret key of 32 bytes."""
        noisy = self._noisy([0] * (len(exchange.scalars) + exchange.own_numbers), noise)
        layout, stream, digest = exchange.layout, blake3(position, key=key), blake3()
        buffer = memory_for(layout.total_bytes)
        for index in range(layout.chunks):
            body = layout.body(buffer, index)
            body[:] = stream.digest(len(body), seek=layout.start(index))
            layout.void(body, index)
            digest.update(body)
        return Contribution(position, exchange, 0, buffer.toreadonly(), digest.digest(), noisy, reason)

    def _encode(self, values: Float32 | Integers, weight: float, out: Integers) -> int:
        """Write a part of the updates into a chunk. Return how many were clipped here: none of short integers."""
        if values.dtype != np.float32:
            out[...] = values
            return 0
        try:
            return self._fixed_point.encode(np.asarray(values, np.float32), weight, out)
        except NotFinite as found:
            what = "Training made a value infinite or not a number."
            raise GateRefusal(what=what, reason=SiteReason.VALUE_NOT_FINITE) from found

    def _clipped(self, exchange: Exchange, values: Integers) -> int:
        """Return how many short integers lie at their limit. Refuse those beyond it, and too many in any layer."""
        limit, found = largest_integer(exchange.bits, len(self._plan.sites)), dict[str, int]()
        sizes = dict[str, int]()
        for layer, part in layer_parts(exchange.up):
            own = values[part]
            lowest, largest = int(own.min()), int(own.max())
            if not -limit - 1 <= lowest <= largest <= limit + 1:
                raise unexpected_answer("The trainer's integers are outside their agreed limits.")
            is_reached = max(largest, -lowest) >= limit
            count = int(np.count_nonzero((own >= limit) | (own <= -limit))) if is_reached else 0
            found[layer], sizes[layer] = found.get(layer, 0) + count, sizes.get(layer, 0) + own.size
        for layer, count in found.items():
            self._require_few(count, sizes[layer])
        return sum(found.values())

    def _require_few(self, clipped: int, size: int) -> None:
        if clipped > self._plan.masking.largest_clipped_share * size:
            what = f"{clipped} of {size} values were outside the agreed clipping range."
            raise GateRefusal(what=what, reason=SiteReason.TOO_MUCH_CLIPPED)

    def _noisy(self, scalars: list[int], noise: Noise | None) -> list[int]:
        if (noise is None) != (self._plan.privacy is None):
            raise ValueError("a plan with privacy needs noise, and no other plan has it")
        return scalars if noise is None else noise(scalars)

    def _own_sums(self, exchange: Exchange, payload: memoryview) -> list[int]:
        """Return the sums of private layers. The trainer added their noise, and they never leave the site."""
        training = self._plan.private_training
        if training is None or not exchange.own_numbers:
            return []
        found = [int(number) for number in np.frombuffer(payload[-8 * exchange.own_numbers :], "<i8")]
        if max(map(abs, found)) > training.own_bound:
            raise unexpected_answer("The trainer's sums of private layers are outside their limits.")
        return found

    def _weigh(self, exchange: Exchange, rows: int) -> float:
        """Return the factor by which this site's updates are multiplied."""
        match self._plan.site_weights:
            case EqualWeights():
                return 1.0
            case RowWeights(largest_rows=largest, fewest_rows=agreed) as weighting:
                fewest, most = (
                    (max(agreed, weighting.counted(self._smallest_rows)), largest) if self._trains else (0, 0)
                )
                if exchange.up and not fewest <= rows <= most:
                    raise unexpected_answer("The trainer sent no valid row count.")
                return rows / largest if exchange.up else 1.0
            case _:
                assert_never(self._plan.site_weights)

    def _scalars(self, exchange: Exchange, payload: memoryview, rows: int) -> list[int]:
        """Return the exchange's scalars, after checking that each is within its bounds."""
        start = exchange.layout.width * exchange.updates
        values: list[int] = np.frombuffer(payload, "<i8", exchange.counted_scalars, start).tolist()
        if exchange.rows_place is not None:
            values.insert(exchange.rows_place, rows)
        for name, value, lowest, largest in zip(exchange.scalar_names, values, *exchange.scalar_limits, strict=True):
            if not lowest <= value <= largest:
                raise unexpected_answer(f"The trainer's number for {name} is outside its agreed limits.")
        return values


def payload_bytes(exchange: Exchange) -> int:
    """Return how many bytes the trainer's reply must have for the values of a round."""
    return exchange.layout.width * exchange.updates + 8 * (exchange.counted_scalars + exchange.own_numbers)
