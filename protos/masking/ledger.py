"""Records the vectors that a site has masked, so that no mask is used twice and no step is answered in two ways.

Two vectors in one context have the same masks, so their difference is visible at once. The ledger prevents this. It
does not rely on what the coordinator or another site remembers. Source: docs/privacy.md, "The rules of each gate". The
rules:

* attempts at a step only increase, also after a restart or a new key session. The same step and attempt are sent again
  only with the same context and bytes, by the process that masked them;
* a new step comes after every step that was masked. After a crash a masked step can be repeated as long as the ledger
  has it, and only for the same received bytes;
* a repeated step sends the identical encoded vector, under a new context;
* steps to which the run cannot return are deleted, except the newest one;
* contexts that are read from disk are void, because their keys are gone.

The site writes and syncs the new line of the ledger before a byte of the vector leaves. A restored backup brings an
older ledger, which the marks in the audit log reveal. Keys exist in memory only, so even then no mask is used twice.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from blake3 import blake3

from protos.masking.answered_sets import Answer, Kinds
from protos.masking.masking_refusals import MaskingRefused, Reason, require

_FORMAT: Final = "global-layers masking ledger 4"


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a run. A mark is greater if its step is later, or its attempt at the same step is later."""

    step: int
    attempt: int

    def __post_init__(self) -> None:
        if self.step < 0 or self.attempt < 0:
            raise ValueError("steps and attempts count from 0")


@dataclass(frozen=True)
class Open:
    """The context under which this process may still send its masked vector. The context is never on disk."""

    context: bytes
    vector: bytes


@dataclass(frozen=True)
class Masked:
    """One step for which this site masked a vector.

    Attributes:
        attempt: the newest one.
        position: digest of run, step and everything that was sent for the step, 32 bytes.
        vector: digest of the encoded vector before masking, 32 bytes.
    """

    attempt: int
    position: bytes
    vector: bytes


@dataclass(frozen=True)
class Ledger:
    """What a site has masked in one run. The record is frozen, and `freeze` returns the next one.

    Attributes:
        kinds: the contributors to each kind of number in every sum of the run, as in `Answer`.
        steps: the stored steps, in rising order.
        oldest: the first step that may be repeated. Earlier steps are final.
        open: the context that this process may retransmit.
    """

    run: str
    kinds: Kinds = frozenset()
    steps: Mapping[int, Masked] = field(default_factory=dict)
    oldest: int = 0
    open: Open | None = field(default=None, repr=False)

    @property
    def last(self) -> Mark | None:
        """Return the newest step for which this site masked a vector, with its newest attempt, or None."""
        step = next(reversed(self.steps.keys()), None)  # type: ignore[call-overload]  # of a dict, in rising order
        return None if step is None else Mark(step, self.steps[step].attempt)

    @property
    def answer(self) -> Answer | None:
        """Return the record of the sums of this run, or None if this site has answered none."""
        return Answer(self.run, self.kinds) if self.steps else None

    def permit(self, mark: Mark, position: bytes) -> Masked | None:
        """Decide whether the site may mask a vector for this step. This does not change the ledger.

        Returns:
            The earlier record of this step. The site must send the same vector. None for a new step.

        Raises:
            MaskingRefused: this request can never be permitted.
        """
        known, last = self.steps.get(mark.step), self.last
        if known is None:
            require(mark.step >= self.oldest and (last is None or mark > last), Reason.NOT_INCREASING)
            return None
        require(mark.attempt > known.attempt, Reason.NOT_INCREASING)
        require(hmac.compare_digest(position, known.position), Reason.OTHER_POSITION)
        return known

    def freeze(self, mark: Mark, position: bytes, context: bytes, vector: bytes) -> Ledger:
        """Return the ledger after this vector was masked. Write the ledger to disk before a byte of the vector is sent.

        Args:
            position: digest of run, step and everything that was sent for the step, 32 bytes.
            context: see `round_context`, 32 bytes.
            vector: digest of the whole encoded vector before masking, 32 bytes.

        Raises:
            MaskingRefused: the step is not permitted, or not with this vector. Then the site must not mask.
        """
        if {len(position), len(context), len(vector)} != {32}:
            raise ValueError("a position, a context and a vector's digest have 32 bytes")
        before = self.permit(mark, position)
        require(before is None or hmac.compare_digest(before.vector, vector), Reason.OTHER_VECTOR)
        steps = {**self.steps, mark.step: Masked(mark.attempt, position, vector)}
        return replace(self, steps=steps, open=Open(context, vector))

    def check_resend(self, context: bytes, vector: bytes) -> None:
        """Check that the site may send its stored masked vector again in the round with this context.

        Raises:
            MaskingRefused: this process last masked under another context, or the vector differs.
        """
        is_open = self.open is not None and hmac.compare_digest(self.open.context, context)
        require(is_open, Reason.CONTEXT_VOID)
        require(self.open is not None and hmac.compare_digest(self.open.vector, vector), Reason.OTHER_VECTOR)

    def void(self) -> Ledger:
        """Return the ledger without its open context, after the stored vector or the keys were deleted."""
        return replace(self, open=None)

    def forget_before(self, oldest: int) -> Ledger:
        """Delete the recorded steps to which the run can no longer return. Always keep the newest step."""
        last = self.last
        oldest = max(self.oldest, oldest if last is None else min(oldest, last.step))
        if oldest == self.oldest:
            return self
        return replace(self, oldest=oldest, steps={step: old for step, old in self.steps.items() if step >= oldest})

    def refuse_if_older(self, witnessed: Mark) -> None:
        """Check that the ledger contains the newest masked step that the audit log records.

        Raises:
            MaskingRefused: the ledger is missing, or an older version was restored.
        """
        known = self.steps.get(witnessed.step)
        is_known = known is not None and known.attempt >= witnessed.attempt
        require(is_known or witnessed.step < self.oldest, Reason.RECORD_OLDER)

    def to_text(self) -> str:
        """Return the ledger as lines of JSON, each with a checksum over all earlier lines, without open contexts."""
        kinds = {kind: sorted(sites) for kind, sites in self.kinds}
        check, line = _checked("", {"format": _FORMAT, "run": self.run, "oldest": self.oldest, "kinds": kinds})
        lines = [line]
        for step in self.steps:
            check, line = _checked(check, self._entry(step))
            lines.append(line)
        return "".join(lines)

    def line_after(self, text_check: str, step: int) -> tuple[str, str]:
        """Return the line that records a step, and the new checksum."""
        check, line = _checked(text_check, self._entry(step))
        return line, check

    def _entry(self, step: int) -> dict[str, Any]:
        known = self.steps[step]
        place = {"step": step, "attempt": known.attempt}
        return place | {"position": known.position.hex(), "vector": known.vector.hex()}

    @classmethod
    def from_text(cls, text: str, run: str) -> Self:
        """Read the ledger that an earlier process wrote to disk. No context in it can be used again.

        An incomplete last line is ignored. The process that wrote it ended before it masked anything under it.

        Raises:
            MaskingRefused: the text is unreadable or of another run. Nothing is masked until a person has checked it.
        """
        try:
            ledger = cls._parse(*text[: text.rfind("\n") + 1].splitlines())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause
        require(ledger.run == run, Reason.OTHER_RUN)
        return ledger

    @classmethod
    def _parse(cls, first: str, *others: str) -> Self:
        check, begun = _uncheck("", first)
        if begun["format"] != _FORMAT:
            raise ValueError("another version's record")
        _whole(begun["oldest"])
        steps: dict[int, Masked] = {}
        for line in others:
            check, entry = _uncheck(check, line)
            _whole(entry["step"], entry["attempt"])
            steps[entry["step"]] = Masked(entry["attempt"], _digest(entry["position"]), _digest(entry["vector"]))
        if list(steps) != sorted(steps) or any(step < begun["oldest"] for step in steps):
            raise ValueError("steps out of order")
        kinds = frozenset((str(kind), frozenset(map(str, sites))) for kind, sites in begun["kinds"].items())
        return cls(run=begun["run"], kinds=kinds, steps=steps, oldest=begun["oldest"])


def check_of(text: str) -> str:
    """Return the checksum of the last complete line."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return str(json.loads(lines[-1])["check"])


def _checked(before: str, content: dict[str, Any]) -> tuple[str, str]:
    """Return the checksum of a line, computed from the previous checksum and the content, and the line."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    check = blake3(f"{before} {text}".encode()).hexdigest()[:32]
    return check, json.dumps(content | {"check": check}, sort_keys=True, separators=(",", ":")) + "\n"


def _uncheck(before: str, line: str) -> tuple[str, dict[str, Any]]:  # Any: every type that JSON has
    """Return the checksum of a line, and its content. Raises ValueError if the line does not follow the previous."""
    content = json.loads(line)
    given = content.pop("check")
    check, written = _checked(before, content)
    if check != given or written != line + "\n":
        raise ValueError("a line that was changed, or does not follow on the one before")
    return check, content


def _digest(text: str) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != 32:
        raise ValueError("a digest of another size")
    return found


def _whole(*numbers: Any) -> None:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a count that is no whole number")
