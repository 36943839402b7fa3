"""Records the vectors that a site has masked, so that no two sums of a site reveal one update by subtraction.

Two sums over different sets at the same step differ by one site's update. Two vectors in one context have the same
masks, so their difference is visible at once. The ledger prevents both. It does not rely on what the coordinator or
another site remembers. Source: docs/privacy.md, "The rules of each gate". The rules:

* attempts at a step only increase, also after a restart or a new key session. The same step and attempt are sent again
  only with the same context and bytes, by the process that masked them;
* a new step comes after every step that was masked. After a crash a masked step can be repeated as long as the ledger
  has it, and only for the same received bytes;
* a repeated step for the same set sends the identical encoded vector, under a new context;
* a repeated step for another set sends a resampled vector, which differs from every vector masked for this step;
* steps to which the run cannot return are deleted, except the newest one. The count of each set is never deleted;
* every new sum is compared with all sums of this site, also under other plans. If together they would isolate fewer
  sites than the smallest set, the sum costs budget (answered_sets.py);
* a sum with too few contributors to some number is refused, whatever the budget;
* contexts that are read from disk are void, because their keys are gone.

The site writes and syncs the new line of the ledger before a byte of the vector leaves. A restored backup brings an
older ledger, which the marks in the audit log reveal. Keys exist in memory only, so even then no mask is used twice.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from protos.masking.answered_sets import (
    Answer,
    Listing,
    are_together_safe,
    isolates,
    listing_of_equals,
    price,
    with_one_more,
)
from protos.masking.ledger_lines import checked, digest, listing_in, listing_out, uncheck, whole
from protos.masking.masking_refusals import MaskingRefused, Reason, require

_FORMAT: Final = "global-layers masking ledger 3"


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a run. A mark is greater if its step is later, or its attempt at the same step is later."""

    step: int
    attempt: int

    def __post_init__(self) -> None:
        if self.step < 0 or self.attempt < 0:
            raise ValueError("steps and attempts count from 0")


@dataclass(frozen=True)
class Ask:
    """The coordinator's request for a masked contribution.

    Attributes:
        position: digest of run, step and everything that was sent for the step, 32 bytes.
        contributors: U, sorted; checked with `check_contributors`.
        resample: the number of the draw of batches that all contributors use; 0 is the ordinary draw.
    """

    mark: Mark
    position: bytes
    contributors: tuple[str, ...]
    resample: int = 0

    def __post_init__(self) -> None:
        if len(self.position) != 32 or list(self.contributors) != sorted(set(self.contributors)):
            raise ValueError("a position has 32 bytes and contributors are sorted")


@dataclass(frozen=True)
class Masked:
    """A record that a vector was masked for one set of sites at a step.

    Attributes:
        vector: digest of the encoded vector before masking, 32 bytes.
        resample: the number of the draw that produced the vector. 0 is the first draw.
    """

    contributors: tuple[str, ...]
    vector: bytes
    resample: int


@dataclass(frozen=True)
class Open:
    """The context under which this process may still send its masked vector. The context is never on disk."""

    context: bytes
    vector: bytes


@dataclass(frozen=True)
class Remembered:
    """One step for which this site masked a vector.

    Attributes:
        position: digest of run, step and everything that was sent for the step, 32 bytes.
        masked: a record for each set, in the order of masking.
    """

    attempt: int
    position: bytes
    masked: tuple[Masked, ...]


@dataclass(frozen=True)
class Comparison:
    """The earlier sums with which a run's sums are compared.

    Attributes:
        smallest: the fewest sites that any combination of sums may have.
        others: the count of each sum in other runs.
    """

    smallest: int
    others: Mapping[Answer, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """What a site has masked in one run. The record is frozen, and `freeze` returns the next one.

    Attributes:
        listing: the plan's sites that contribute to each number; None for equal sites.
        steps: the stored steps, in rising order.
        oldest: the first step that may be repeated. Earlier steps are final.
        forgotten: for the earlier steps, how often each set was answered.
        open: the context that this process may retransmit.
        by_set: how often each set was answered at all steps, deleted ones included; computed if absent.
    """

    run: str
    listing: Listing | None = None
    steps: Mapping[int, Remembered] = field(default_factory=dict)
    oldest: int = 0
    forgotten: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    open: Open | None = field(default=None, repr=False)
    by_set: Mapping[tuple[str, ...], int] | None = field(default=None, repr=False, compare=False)

    @property
    def last(self) -> Mark | None:
        """Return the newest step for which this site masked a vector, with its newest attempt, or None."""
        step = next(reversed(self.steps.keys()), None)  # type: ignore[call-overload]  # of a dict, in rising order
        return None if step is None else Mark(step, self.steps[step].attempt)

    def answered(self, identities: Mapping[str, str] | None = None) -> Counter[Answer]:
        """Count how often each sum of this run was sent. Only a ledger without a listing uses `identities`."""
        tally: Counter[Answer] = Counter()
        for sites, count in self._counted.items():
            tally[(self.listing or listing_of_equals(sites, identities)).answer(self.run, sites)] += count
        return tally

    @property
    def _counted(self) -> Mapping[tuple[str, ...], int]:
        if self.by_set is not None:
            return self.by_set
        remembered = Counter(entry.contributors for step in self.steps.values() for entry in step.masked)
        return remembered + Counter(self.forgotten)

    def permit(self, ask: Ask, compared: Comparison, budget: int = 0) -> Masked | None:
        """Decide whether the site may mask a vector for this request. This does not change the ledger.

        The gate calls this function before it masks. It also calls it when the coordinator names the contributors
        before the contribution is built.

        Args:
            budget: units that may be spent; 0 unless plan and local policy both have `on_lost_site: continue`.

        Returns:
            The earlier record for exactly this set. Training again with its draw must produce the same vector. None for
            a new set. Then the site trains with the requested draw.

        Raises:
            MaskingRefused: this request can never be permitted.
        """
        known, last = self.steps.get(ask.mark.step), self.last
        if known is None:
            require(ask.mark.step >= self.oldest and (last is None or ask.mark > last), Reason.NOT_INCREASING)
            self._require_budget(ask, compared, budget, Reason.OTHER_SETS)
            return None
        require(ask.mark.attempt > known.attempt, Reason.NOT_INCREASING)
        require(hmac.compare_digest(ask.position, known.position), Reason.OTHER_POSITION)
        for entry in known.masked:
            if entry.contributors == ask.contributors:
                require(ask.resample == entry.resample, Reason.OTHER_VECTOR)
                return entry
        self._require_budget(ask, compared, budget, Reason.OTHER_SET)
        require(all(ask.resample != entry.resample for entry in known.masked), Reason.SAME_VECTOR)
        return None

    def freeze(self, ask: Ask, context: bytes, vector: bytes, compared: Comparison, budget: int = 0) -> Ledger:
        """Return the ledger after this vector was masked. Write the ledger to disk before a byte of the vector is sent.

        Args:
            context: see `round_context`, 32 bytes.
            vector: digest of the whole encoded vector before masking, 32 bytes.

        Raises:
            MaskingRefused: the request is not permitted, or not with this vector. Then the site must not mask.
        """
        if len(context) != 32 or len(vector) != 32:
            raise ValueError("a context and a vector's digest have 32 bytes")
        known = self.steps.get(ask.mark.step)
        masked = () if known is None else known.masked
        by_set = Counter(self._counted)
        before = self.permit(ask, compared, budget)
        if before is not None:
            require(hmac.compare_digest(before.vector, vector), Reason.OTHER_VECTOR)
        else:
            # The same vector for two sets gives the missing site's update exactly, by subtraction.
            require(all(entry.vector != vector for entry in masked), Reason.SAME_VECTOR)
            masked = (*masked, Masked(ask.contributors, vector, ask.resample))
            by_set[ask.contributors] += 1
        steps = {**self.steps, ask.mark.step: Remembered(ask.mark.attempt, ask.position, masked)}
        return replace(self, steps=steps, open=Open(context, vector), by_set=by_set)

    def _require_budget(self, ask: Ask, compared: Comparison, budget: int, reason: Reason) -> None:
        """Check that this sum, together with all earlier sums, does not exceed the budget."""
        answer = (self.listing or listing_of_equals(ask.contributors)).answer(self.run, ask.contributors)
        answered = self.answered()
        if are_together_safe(frozenset((*answered, *compared.others, answer)), compared.smallest):
            return  # in most rounds
        before = answered + Counter(compared.others)
        require(not isolates([answer], compared.smallest), Reason.TOO_FEW_FOR_A_NUMBER)
        costs = price(with_one_more(before, answer), compared.smallest)
        # A sum without further cost is allowed, even if the policy is now stricter than the spent budget.
        is_free = costs <= price(before, compared.smallest)
        require(is_free or budget > 0, reason)
        require(is_free or costs <= budget, Reason.BUDGET_SPENT)

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
        over = (entry.contributors for step, old in self.steps.items() if step < oldest for entry in old.masked)
        steps = {step: old for step, old in self.steps.items() if step >= oldest}
        return replace(self, oldest=oldest, steps=steps, forgotten=Counter(self.forgotten) + Counter(over))

    def refuse_if_older(self, witnessed: Mark) -> None:
        """Check that the ledger contains the newest masked step that the audit log records.

        Raises:
            MaskingRefused: the ledger is missing, or an older version was restored.
        """
        known = self.steps.get(witnessed.step)
        is_known = known is not None and known.attempt >= witnessed.attempt
        require(is_known or witnessed.step < self.oldest, Reason.RECORD_OLDER)

    def to_text(self) -> str:
        """Return the ledger as lines of JSON, each with a checksum over all earlier lines.

        Open contexts are omitted.
        """
        forgotten = sorted([list(sites), count] for sites, count in self.forgotten.items())
        head = {"format": _FORMAT, "run": self.run, "oldest": self.oldest, "forgotten": forgotten}
        check, line = checked("", head | {"listing": listing_out(self.listing)})
        lines = [line]
        for step in self.steps:
            check, line = checked(check, self._entry(step))
            lines.append(line)
        return "".join(lines)

    def line_after(self, text_check: str, step: int) -> tuple[str, str]:
        """Return the line that records a step, and the new checksum."""
        check, line = checked(text_check, self._entry(step))
        return line, check

    def _entry(self, step: int) -> dict[str, Any]:
        known = self.steps[step]
        masked = [[list(entry.contributors), entry.vector.hex(), entry.resample] for entry in known.masked]
        place = {"step": step, "attempt": known.attempt, "position": known.position.hex()}
        return place | {"masked": masked}

    @classmethod
    def from_text(cls, text: str, run: str) -> Self:
        """Read the ledger that an earlier process wrote to disk. No context in it can be used again.

        An incomplete last line is ignored. The process that wrote it ended before it masked anything under it.

        Raises:
            MaskingRefused: the text is unreadable or of another run. Nothing is masked until a person has checked it.
        """
        try:
            first, *others = text[: text.rfind("\n") + 1].splitlines() or [text]
            ledger = cls._parse(first, others)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause
        require(ledger.run == run, Reason.OTHER_RUN)
        return ledger

    @classmethod
    def _parse(cls, first: str, others: list[str]) -> Self:
        check, begun = uncheck("", first)
        if begun["format"] != _FORMAT:
            raise ValueError("another version's record")
        whole(begun["oldest"])
        steps: dict[int, Remembered] = {}
        for line in others:
            check, entry = uncheck(check, line)
            whole(entry["step"], entry["attempt"])
            steps[entry["step"]] = Remembered(entry["attempt"], digest(entry["position"]), _masked(entry["masked"]))
        if list(steps) != sorted(steps) or any(step < begun["oldest"] for step in steps):
            raise ValueError("steps out of order")
        forgotten = {tuple(sites): count for sites, count in begun["forgotten"]}
        whole(*forgotten.values())
        listing = listing_in(begun["listing"])
        return cls(run=begun["run"], listing=listing, steps=steps, oldest=begun["oldest"], forgotten=forgotten)


def _masked(entries: list[Any]) -> tuple[Masked, ...]:
    found = tuple(Masked(tuple(sites), digest(vector), resample) for sites, vector, resample in entries)
    whole(*(entry.resample for entry in found))
    if not found:
        raise ValueError("a step that was masked for nobody")
    return found
