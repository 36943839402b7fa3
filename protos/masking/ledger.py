"""What a site remembers of what it masked, so that no two masked vectors can be played off.

Two sums over different sets at the same step differ by one site's change; one context filled with
two vectors gives their difference at once. Against both a site trusts nobody's memory but its own.
Source: PROTOCOL.md, section 3, rules 1 to 3. The rules:

* at each step attempts only increase, over key sessions, restarts and returns to an earlier step; an equal pair
  is the very same context with the very same bytes, and only while the process that froze it holds them;
* a new step comes after every one that was masked. One that was masked comes again, after a crash
  somewhere, as long as it is remembered, and only for the same bytes sent down, and
  - for a set that it was masked for: the identical encoded vector, under the new context;
  - for another set: never, unless a budget was given and has room; then a vector drawn afresh,
    which has to differ from every one that was masked for this step;
* what the run no longer goes back to is forgotten, and then over for good;
* a new step for a set that leaves out a site of the set masked last costs one unit of the same
  budget. A coordinator that sends the same bytes down for both could subtract the two sums;
* what is read from disk is only a memory: its contexts are void, since their keys are gone.

The site writes the new line of the ledger to disk, synced, before a byte of the vector leaves. A
ledger that comes back older (a restored backup) shows against the marks in the audit log.
Keys live in memory only, so even then no mask is used twice; the marks keep sets from being
played off against each other.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias, assert_never

from blake3 import blake3

from protos.masking.masking_refusals import MaskingRefused, Reason, require

_FORMAT: Final = "global-layers masking ledger 2"
_FORMAT_1: Final = "global-layers masking ledger 1"  # knew one step; whoever wrote it never went back


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
    """One set that a vector was masked for at a step.

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
class Remembered:
    """One step that was masked.

    Attributes:
        attempt: the newest one.
        position: of the step.
        masked: every set, in the order of masking.
    """

    attempt: int
    position: bytes
    masked: tuple[Masked, ...]


@dataclass(frozen=True)
class Ledger:
    """The memory of one run; a value, replaced by `freeze`.

    Attributes:
        run: the run's name.
        steps: what is remembered, in rising order of the steps.
        oldest: the first step that may come again; those before are over for good.
        spent: units of the budget that this run has used: other sets at a step, sites left out later.
        open: what this process may retransmit.
    """

    run: str
    steps: Mapping[int, Remembered] = field(default_factory=dict)
    oldest: int = 0
    spent: int = 0
    open: Open | None = field(default=None, repr=False)

    @property
    def last(self) -> Mark | None:
        """The newest step that anything was masked at, and its newest attempt."""
        step = next(reversed(self.steps.keys()), None)  # type: ignore[call-overload]  # of a dict, in rising order
        return None if step is None else Mark(step, self.steps[step].attempt)

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
        known, last = self.steps.get(ask.mark.step), self.last
        if known is None:
            require(ask.mark.step >= self.oldest and (last is None or ask.mark > last), Reason.NOT_INCREASING)
            price = self._price_of_later(ask)
            # Without a price it is free even where a policy has been made stricter than what was spent.
            require(price == 0 or self.spent + price <= budget, Reason.BUDGET_SPENT)
            return Compute()
        require(ask.mark.attempt > known.attempt, Reason.NOT_INCREASING)
        require(hmac.compare_digest(ask.position, known.position), Reason.OTHER_POSITION)
        for entry in known.masked:
            if entry.contributors == ask.contributors:
                require(ask.redraw == entry.redraw, Reason.OTHER_VECTOR)
                return Repeat(entry.vector, entry.redraw)
        require(budget > 0, Reason.OTHER_SET)
        require(self.spent < budget, Reason.BUDGET_SPENT)
        require(all(ask.redraw != entry.redraw for entry in known.masked), Reason.SAME_VECTOR)
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
        known = self.steps.get(ask.mark.step)
        masked, price = () if known is None else known.masked, 0
        match permission := self.permit(ask, budget):
            case Compute():
                masked, price = (Masked(ask.contributors, vector, ask.redraw),), self._price_of_later(ask)
            case Repeat(vector=before):
                require(hmac.compare_digest(before, vector), Reason.OTHER_VECTOR)
            case DrawAfresh(redraw=redraw):
                # The same vector for two sets gives the missing site's change exactly, by subtraction.
                require(all(entry.vector != vector for entry in masked), Reason.SAME_VECTOR)
                masked, price = (*masked, Masked(ask.contributors, vector, redraw)), 1
            case _:
                assert_never(permission)
        steps = {**self.steps, ask.mark.step: Remembered(ask.mark.attempt, ask.position, masked)}
        return replace(self, steps=steps, spent=self.spent + price, open=Open(context, vector))

    def _price_of_later(self, ask: Ask) -> int:
        """1 where a new step leaves out a site of the set masked last, else 0."""
        last = self.last
        before = set() if last is None else set(self.steps[last.step].masked[-1].contributors)
        return int(not before <= set(ask.contributors))

    def check_resend(self, context: bytes, vector: bytes) -> None:
        """Return if kept bytes may be sent once more under this context.

        Raises:
            MaskingRefused: the context is not the one that this process froze last, or the vector is another.
        """
        is_open = self.open is not None and hmac.compare_digest(self.open.context, context)
        require(is_open, Reason.CONTEXT_VOID)
        require(self.open is not None and hmac.compare_digest(self.open.vector, vector), Reason.OTHER_VECTOR)

    def void(self) -> Ledger:
        """The ledger when the kept vector or the keys are gone, or the key session is over."""
        return replace(self, open=None)

    def forget_before(self, oldest: int) -> Ledger:
        """The ledger when the run no longer goes back beyond a step; the newest one is never forgotten."""
        last = self.last
        oldest = max(self.oldest, oldest if last is None else min(oldest, last.step))
        return replace(self, oldest=oldest, steps={step: old for step, old in self.steps.items() if step >= oldest})

    def refuse_if_older(self, witnessed: Mark) -> None:
        """Return if this ledger knows of what the audit log knows was masked.

        Raises:
            MaskingRefused: it was rolled back, or is missing.
        """
        known = self.steps.get(witnessed.step)
        is_known = known is not None and known.attempt >= witnessed.attempt
        require(is_known or witnessed.step < self.oldest, Reason.RECORD_OLDER)

    def to_text(self) -> str:
        """Lines of JSON for the site's disk, each with a check over all before; what is open is left out."""
        check, line = _checked("", {"format": _FORMAT, "run": self.run, "oldest": self.oldest, "spent": self.spent})
        lines = [line]
        for step in self.steps:
            check, line = _checked(check, self._entry(step))
            lines.append(line)
        return "".join(lines)

    def line_after(self, text_check: str, step: int) -> tuple[str, str]:
        """The line that a text with this check needs to know of a step that was just masked; the new check."""
        check, line = _checked(text_check, self._entry(step))
        return line, check

    def _entry(self, step: int) -> dict[str, Any]:
        known = self.steps[step]
        masked = [[list(entry.contributors), entry.vector.hex(), entry.redraw] for entry in known.masked]
        place = {"step": step, "attempt": known.attempt, "position": known.position.hex()}
        return place | {"masked": masked, "spent": self.spent}

    @classmethod
    def from_text(cls, text: str, run: str) -> Self:
        """The ledger that a process left on disk; every context in it is void.

        A last line without its end was being written when the process died: nothing was masked under it.

        Raises:
            MaskingRefused: it is unreadable or of another run. Nothing is masked until a person has looked.
        """
        try:
            first, *others = text[: text.rfind("\n") + 1].splitlines() or [text]
            begun = json.loads(first)
            ledger = cls._parse_first(begun) if begun["format"] == _FORMAT_1 else cls._parse(first, others)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause
        require(ledger.run == run, Reason.OTHER_RUN)
        return ledger

    @classmethod
    def _parse(cls, first: str, others: list[str]) -> Self:
        check, begun = _uncheck("", first)
        if begun["format"] != _FORMAT:
            raise ValueError("another version's record")
        _whole(begun["oldest"], begun["spent"])
        steps: dict[int, Remembered] = {}
        spent = begun["spent"]
        for line in others:
            check, entry = _uncheck(check, line)
            _whole(entry["step"], entry["attempt"], entry["spent"])
            known = Remembered(entry["attempt"], _digest(entry["position"]), _masked(entry["masked"]))
            steps[entry["step"]], spent = known, entry["spent"]
        if list(steps) != sorted(steps) or any(step < begun["oldest"] for step in steps):
            raise ValueError("steps out of order")
        return cls(run=begun["run"], steps=steps, oldest=begun["oldest"], spent=spent)

    @classmethod
    def _parse_first(cls, content: dict[str, Any]) -> Self:
        """The record of the first version, which knew one step."""
        _whole(content["spent"])
        if content["last"] is None:
            return cls(run=content["run"], spent=content["spent"])
        step, attempt = content["last"]
        _whole(step, attempt)
        known = Remembered(attempt, _digest(content["position"]), _masked(content["masked"]))
        return cls(run=content["run"], steps={step: known}, oldest=step, spent=content["spent"])


def check_of(text: str) -> str:
    """The check of a text's last whole line."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return str(json.loads(lines[-1])["check"])


def _checked(before: str, content: dict[str, Any]) -> tuple[str, str]:
    """A line's check, over the one before and its content, and the line."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    check = blake3(f"{before} {text}".encode()).hexdigest()[:32]
    return check, json.dumps(content | {"check": check}, sort_keys=True, separators=(",", ":")) + "\n"


def _uncheck(before: str, line: str) -> tuple[str, dict[str, Any]]:  # Any: whatever JSON holds
    content = json.loads(line)
    given = content.pop("check")
    check, written = _checked(before, content)
    if check != given or written != line + "\n":
        raise ValueError("a line that was changed, or does not follow on the one before")
    return check, content


def _masked(entries: list[Any]) -> tuple[Masked, ...]:
    found = tuple(Masked(tuple(sites), _digest(vector), redraw) for sites, vector, redraw in entries)
    _whole(*(entry.redraw for entry in found))
    if not found:
        raise ValueError("a step that was masked for nobody")
    return found


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != 32:
        raise ValueError("a digest of another size")
    return digest


def _whole(*numbers: Any) -> None:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a count that is no whole number")
