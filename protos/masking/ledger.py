"""What a site remembers of what it masked, so that no two masked vectors can be played off.

Two sums over different sets at the same step differ by one site's change; one context filled with
two vectors gives their difference at once. Against both a site trusts nobody's memory but its own.
Source: PROTOCOL.md, section 3, rules 1 to 3. The rules:

* (step, attempt) only increases, over epochs and restarts; an equal pair is the very same context
  with the very same bytes, and only while the process that froze it still holds them;
* a step that was masked is masked again only for the same bytes sent down, and
  - for a set that it was masked for: the identical encoded vector, under the new context;
  - for another set: never, unless a budget was given and has room; then a vector drawn afresh,
    which has to differ from every one that was masked for this step;
* a later step for a set that leaves out a site of the set masked last costs one unit of the same
  budget. A coordinator that sends the same bytes down for both could subtract the two sums;
* what is read from disk is only a memory: its contexts are void, since their keys are gone.

The site writes the text of the new ledger to disk, synced, before a byte of the vector leaves. A
ledger that comes back older (a restored backup) shows against the newest mark in the audit log.
Keys live in memory only, so even then no mask is used twice; the mark keeps sets from being
played off against each other.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias, assert_never

from protos.masking.refusals import MaskingRefused, Reason, require

_FORMAT: Final = "global-layers masking ledger 1"


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a run: later attempts and later steps compare greater."""

    step: int
    attempt: int

    def __post_init__(self) -> None:
        if self.step < 0 or self.attempt < 0:
            raise ValueError("steps and attempts count from 0")


@dataclass(frozen=True)
class Ask:
    """What the coordinator wants masked.

    Attributes:
        mark: step and attempt.
        position: digest of run, step and everything sent down for it, 32 bytes.
        contributors: U, sorted; checked with `check_contributors`.
        redraw: which draw of the step all contributors make; 0 is the ordinary one.
    """

    mark: Mark
    position: bytes
    contributors: tuple[str, ...]
    redraw: int = 0

    def __post_init__(self) -> None:
        if len(self.position) != 32 or list(self.contributors) != sorted(set(self.contributors)):
            raise ValueError("a position has 32 bytes and contributors are sorted")


@dataclass(frozen=True)
class Masked:
    """One set that a vector was masked for at the current step.

    Attributes:
        contributors: the set.
        vector: digest of the encoded vector before masking, 32 bytes.
        redraw: which draw of the step gave the vector; 0 is the ordinary one.
    """

    contributors: tuple[str, ...]
    vector: bytes
    redraw: int


@dataclass(frozen=True)
class Compute:
    """The step is new: train as usual."""


@dataclass(frozen=True)
class Repeat:
    """The set is known: the draw `redraw` again has to give this vector."""

    vector: bytes
    redraw: int


@dataclass(frozen=True)
class DrawAfresh:
    """Another set, paid from the budget: train with a generator keyed by (site seed, step, redraw)."""

    redraw: int


Permission: TypeAlias = Compute | Repeat | DrawAfresh


@dataclass(frozen=True)
class Open:
    """The context that this process may still send, because it holds keys and vector; never on disk."""

    context: bytes
    vector: bytes


@dataclass(frozen=True)
class Ledger:
    """The memory of one run; a value, replaced by `freeze`.

    Attributes:
        run: the run's name.
        last: the newest mark that anything was masked at; None before the first.
        position: of the step of `last`.
        masked: every set of that step, in the order of masking.
        spent: units of the budget that this run has used: other sets at a step, sites left out later.
        open: what this process may retransmit.
    """

    run: str
    last: Mark | None = None
    position: bytes = b""
    masked: tuple[Masked, ...] = ()
    spent: int = 0
    open: Open | None = field(default=None, repr=False)

    def permit(self, ask: Ask, budget: int = 0) -> Permission:
        """Whether the site may mask for this, and what it has to compute. Changes nothing.

        Asked when the contributors are bound, before training where they are bound first.

        Args:
            ask: step, position and set.
            budget: units that this run may spend; 0 unless plan and local policy
                both say `on_lost_site: continue`.

        Raises:
            MaskingRefused: never for this ask.
        """
        if self.last is None or ask.mark.step > self.last.step:
            price = self._price_of_later(ask)
            # Without a price it is free even where a policy has been made stricter than what was spent.
            require(price == 0 or self.spent + price <= budget, Reason.BUDGET_SPENT)
            return Compute()
        require(ask.mark > self.last, Reason.NOT_INCREASING)
        require(hmac.compare_digest(ask.position, self.position), Reason.OTHER_POSITION)
        for known in self.masked:
            if known.contributors == ask.contributors:
                require(ask.redraw == known.redraw, Reason.OTHER_VECTOR)
                return Repeat(known.vector, known.redraw)
        require(budget > 0, Reason.OTHER_SET)
        require(self.spent < budget, Reason.BUDGET_SPENT)
        require(all(ask.redraw != known.redraw for known in self.masked), Reason.SAME_VECTOR)
        return DrawAfresh(ask.redraw)

    def freeze(self, ask: Ask, context: bytes, vector: bytes, budget: int = 0) -> Ledger:
        """The ledger after masking this vector under this context; on disk before a byte leaves.

        Args:
            ask: as it was permitted.
            context: see `round_context`, 32 bytes.
            vector: digest of the whole encoded vector before masking, 32 bytes.
            budget: as in `permit`.

        Raises:
            MaskingRefused: not permitted, or not with this vector. Then nothing may be masked.
        """
        if len(context) != 32 or len(vector) != 32:
            raise ValueError("a context and a vector's digest have 32 bytes")
        following = replace(self, last=ask.mark, position=ask.position, open=Open(context, vector))
        match permission := self.permit(ask, budget):
            case Compute():
                entry = Masked(ask.contributors, vector, ask.redraw)
                return replace(following, masked=(entry,), spent=self.spent + self._price_of_later(ask))
            case Repeat(vector=before):
                require(hmac.compare_digest(before, vector), Reason.OTHER_VECTOR)
                return following
            case DrawAfresh(redraw=redraw):
                # The same vector for two sets gives the missing site's change exactly, by subtraction.
                require(all(known.vector != vector for known in self.masked), Reason.SAME_VECTOR)
                entry = Masked(ask.contributors, vector, redraw)
                return replace(following, masked=(*self.masked, entry), spent=self.spent + 1)
            case _:
                assert_never(permission)

    def _price_of_later(self, ask: Ask) -> int:
        """1 where a later step leaves out a site of the set masked last, else 0."""
        return int(bool(self.masked) and not set(self.masked[-1].contributors) <= set(ask.contributors))

    def check_resend(self, context: bytes, vector: bytes) -> None:
        """Return if kept bytes may be sent once more under this context.

        Raises:
            MaskingRefused: the context is not the one that this process froze last, or the vector is another.
        """
        is_open = self.open is not None and hmac.compare_digest(self.open.context, context)
        require(is_open, Reason.CONTEXT_VOID)
        require(self.open is not None and hmac.compare_digest(self.open.vector, vector), Reason.OTHER_VECTOR)

    def void(self) -> Ledger:
        """The ledger when the kept vector or the keys are gone, or the epoch is over."""
        return replace(self, open=None)

    def refuse_if_older(self, witnessed: Mark) -> None:
        """Return if this ledger knows of all that the audit log knows was masked.

        Raises:
            MaskingRefused: it was rolled back, or is missing.
        """
        require(self.last is not None and self.last >= witnessed, Reason.RECORD_OLDER)

    def to_text(self) -> str:
        """One line of JSON for the site's disk; what is open is left out."""
        content = {
            "format": _FORMAT,
            "run": self.run,
            "last": None if self.last is None else [self.last.step, self.last.attempt],
            "position": self.position.hex(),
            "masked": [[list(entry.contributors), entry.vector.hex(), entry.redraw] for entry in self.masked],
            "spent": self.spent,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, run: str) -> Self:
        """The ledger that a process left on disk; every context in it is void.

        Raises:
            MaskingRefused: it is unreadable or of another run. Nothing is masked until a person has looked.
        """
        try:
            ledger = cls._parse(json.loads(text))
            is_canonical = ledger.to_text() == text.strip()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause
        require(is_canonical, Reason.RECORD_UNREADABLE)
        require(ledger.run == run, Reason.OTHER_RUN)
        return ledger

    @classmethod
    def _parse(cls, content: Any) -> Self:  # Any: whatever JSON holds; the canonical form is compared afterwards
        last = None if content["last"] is None else Mark(*content["last"])
        masked = tuple(
            Masked(tuple(contributors), bytes.fromhex(vector), redraw)
            for contributors, vector, redraw in content["masked"]
        )
        position = bytes.fromhex(content["position"])
        is_begun = last is not None
        if bool(masked) != is_begun or len(position) != 32 * is_begun or content["spent"] < 0:
            raise ValueError("parts of the record are missing")
        numbers = [content["spent"], *(content["last"] or ()), *(entry.redraw for entry in masked)]
        if any(type(number) is not int for number in numbers) or any(len(entry.vector) != 32 for entry in masked):
            raise ValueError("a count that is no whole number, or a digest of another size")
        return cls(run=content["run"], last=last, position=position, masked=masked, spent=content["spent"])
