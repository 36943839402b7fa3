"""The ledger: each step has one vector, places only increase, and what was written is read or refused."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.masking.ledger import Ledger, Mark, check_of
from protos.masking.masking_refusals import MaskingRefused, Reason

KINDS = frozenset({("changes", frozenset({"a", "b", "c"}))})


def _hash(of: object) -> bytes:
    return sha256(str(of).encode()).digest()


def _frozen(ledger: Ledger, step: int, attempt: int, vector: object = None, position: object = None) -> Ledger:
    vector = step if vector is None else vector
    context = _hash(("context", step, attempt))
    return ledger.freeze(Mark(step, attempt), _hash(step if position is None else position), context, _hash(vector))


def _begun() -> Ledger:
    return _frozen(_frozen(Ledger("run", KINDS), 3, 0), 4, 1)


REFUSED: dict[str, tuple[Callable[[Ledger], object], Reason]] = {
    "an earlier step": (lambda ledger: _frozen(ledger, 2, 5), Reason.NOT_INCREASING),
    "the same attempt": (lambda ledger: _frozen(ledger, 4, 1), Reason.NOT_INCREASING),
    "an earlier attempt": (lambda ledger: _frozen(ledger, 4, 0), Reason.NOT_INCREASING),
    "another vector": (lambda ledger: _frozen(ledger, 4, 2, vector="other"), Reason.OTHER_VECTOR),
    "other received bytes": (lambda ledger: _frozen(ledger, 4, 2, position="other"), Reason.OTHER_POSITION),
    "a final step": (lambda ledger: _frozen(ledger.forget_before(4), 3, 9), Reason.NOT_INCREASING),
    "a context of an earlier attempt": (
        lambda ledger: ledger.check_resend(_hash(("context", 3, 0)), _hash(3)),
        Reason.CONTEXT_VOID,
    ),
    "an older record": (lambda ledger: ledger.refuse_if_older(Mark(4, 2)), Reason.RECORD_OLDER),
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_ledger_refuses(what: str, is_restarted: bool) -> None:
    """The same before and after a restart."""
    ask, reason = REFUSED[what]
    ledger = Ledger.from_text(_begun().to_text(), "run") if is_restarted else _begun()

    with pytest.raises(MaskingRefused) as caught:
        ask(ledger)

    assert caught.value.reason is reason


def test_a_step_is_repeated_with_the_same_vector_and_sent_again_in_its_context() -> None:
    """A repeated attempt, an earlier step that is kept, and the next step."""
    ledger = _frozen(_frozen(_frozen(_begun(), 4, 2), 3, 1), 5, 0)

    ledger.check_resend(_hash(("context", 5, 0)), _hash(5))
    assert ledger.last == Mark(5, 0)
    with pytest.raises(MaskingRefused, match=Reason.CONTEXT_VOID):
        Ledger.from_text(ledger.to_text(), "run").check_resend(_hash(("context", 5, 0)), _hash(5))
    with pytest.raises(MaskingRefused, match=Reason.OTHER_VECTOR):
        ledger.check_resend(_hash(("context", 5, 0)), _hash(6))


def test_the_newest_step_is_never_forgotten_and_the_answer_never_lost() -> None:
    """What this site has answered is compared with later plans, so it is kept."""
    ledger = _begun().forget_before(99)

    assert list(ledger.steps) == [4]
    assert ledger.answer is not None
    assert ledger.answer.kinds == KINDS
    assert Ledger("run", KINDS).answer is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=12))
def test_text_and_lines_are_read_as_they_were_written(asks: list[tuple[int, int, bool]]) -> None:
    """A ledger that grew line by line has the text of one that was written at once."""
    ledger = Ledger("run", KINDS)
    text = ledger.to_text()
    for step, attempt, forgets in asks:
        try:
            new = _frozen(ledger, step, attempt)
        except MaskingRefused:
            continue
        is_new = step not in ledger.steps
        line, check = new.line_after(check_of(text), step)
        ledger, text = new, text + line if is_new else new.to_text()
        assert not is_new or check_of(text) == check
        if forgets:
            ledger = ledger.forget_before(step)
            text = ledger.to_text()

    assert Ledger.from_text(text, "run") == ledger.void()


@pytest.mark.parametrize("place", range(0, 800, 7))
def test_a_ledger_that_was_cut_or_changed_is_refused_or_older(place: int) -> None:
    """A cut line was never in force; every other damage is found."""
    text = _begun().to_text()
    cut, changed = text[: place % len(text)], text[: place % len(text)] + "#" + text[place % len(text) + 1 :]
    for damaged in (cut, changed):
        reason = None
        try:
            found = Ledger.from_text(damaged, "run")
        except MaskingRefused as refused:
            found, reason = Ledger("run"), refused.reason
        assert set(found.steps) < set(_begun().steps)
        assert found.steps or reason in (None, Reason.RECORD_UNREADABLE, Reason.OTHER_RUN)


def test_a_ledger_of_another_run_is_refused() -> None:
    """Its steps are not this run's."""
    with pytest.raises(MaskingRefused, match=Reason.OTHER_RUN):
        Ledger.from_text(_begun().to_text(), "another")
