"""The memory of a site: every way to compare two masked vectors with each other is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.masking import ledger as module
from protos.masking.answered_sets import Listing, listing_of_equals, price
from protos.masking.ledger import Ask, Comparison, Ledger, Mark, Masked
from protos.masking.ledger_lines import check_of
from protos.masking.masking_refusals import MaskingRefused, Reason

ALONE = Comparison(3)  # with nothing that was answered in other runs
ALL, FEWER, OTHERS = ("a", "b", "c", "d"), ("a", "b", "c"), ("a", "b", "d")


def _hash(text: object) -> bytes:
    return hashlib.sha256(str(text).encode()).digest()


def _ask(
    step: int, attempt: int, contributors: tuple[str, ...] = ALL, position: object = None, resample: int = 0
) -> Ask:
    return Ask(Mark(step, attempt), _hash(step if position is None else position), contributors, resample)


def _spent(ledger: Ledger) -> int:
    """The cost of a ledger's sums, without other runs."""
    return price(ledger.answered(), ALONE.smallest)


def _begun() -> Ledger:
    """A ledger after masking step 4, attempt 1, for all four sites."""
    return Ledger("run-1").freeze(_ask(4, 1), _hash("context 4.1"), _hash("vector 4"), ALONE)


ATTACKS = [
    ("the same attempt again", _ask(4, 1), "vector 4", Reason.NOT_INCREASING),
    ("an earlier attempt", _ask(4, 0), "vector 4", Reason.NOT_INCREASING),
    ("other received bytes", _ask(4, 2, position="other"), "vector 4", Reason.OTHER_POSITION),
    ("a smaller set", _ask(4, 2, FEWER, resample=2), "vector 4b", Reason.OTHER_SET),
    ("a retrained vector", _ask(4, 2), "vector 4b", Reason.OTHER_VECTOR),
]


@pytest.mark.parametrize(("ask", "vector", "reason"), [case[1:] for case in ATTACKS], ids=[case[0] for case in ATTACKS])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_attack_is_refused_before_and_after_a_restart_and_passes_a_weakened_ledger(
    ask: Ask, vector: str, reason: Reason, is_restarted: bool, weakened: Any
) -> None:
    """Each is stopped by the check that names it, whether or not the agent was restarted in between."""
    ledger = _begun()
    if is_restarted:
        ledger = Ledger.from_text(ledger.to_text(), "run-1")

    with pytest.raises(MaskingRefused) as refused:
        ledger.freeze(ask, _hash("context"), _hash(vector), ALONE)
    assert refused.value.reason is reason

    doors = [reason, Reason.BUDGET_SPENT] if reason is Reason.OTHER_SET else [reason]
    with weakened([module], doors[0]), weakened([module], doors[-1]):
        ledger.freeze(ask, _hash("context"), _hash(vector), ALONE)


def test_an_earlier_step_that_was_not_masked_or_is_forgotten_never_comes() -> None:
    """A coordinator that returns to a step unknown to the ledger is refused, with any attempt."""
    ledger = Ledger("run-1").freeze(_ask(3, 0), _hash("context 3"), _hash("vector 3"), ALONE)
    ledger = ledger.freeze(_ask(4, 1), _hash("context 4.1"), _hash("vector 4"), ALONE).forget_before(4)

    for state in (ledger, Ledger.from_text(ledger.to_text(), "run-1"), _begun()):
        for attempt in range(5):
            with pytest.raises(MaskingRefused) as refused:
                state.permit(_ask(3, attempt), ALONE, budget=5)
            assert refused.value.reason is Reason.NOT_INCREASING
    assert ledger.forget_before(9).last == ledger.last  # the newest step is never forgotten


def test_a_remembered_step_comes_again_only_as_it_was() -> None:
    """After a return to an earlier step each one repeats its vector for its set under a later attempt; nothing else."""
    ledger = Ledger("run-1")
    for step in range(3):
        ledger = ledger.freeze(_ask(step, step), _hash(("context", step)), _hash(("vector", step)), ALONE)
    ledger = Ledger.from_text(ledger.to_text(), "run-1")

    for step in range(3):
        again = _ask(step, step + 1)
        assert ledger.permit(again, ALONE) == Masked(ALL, _hash(("vector", step)), 0)
        for ask, vector, reason in (
            (_ask(step, step), ("vector", step), Reason.NOT_INCREASING),
            (_ask(step, step + 1, position="other"), ("vector", step), Reason.OTHER_POSITION),
            (_ask(step, step + 1, FEWER, resample=step + 1), "resampled", Reason.OTHER_SET),
            (again, "retrained", Reason.OTHER_VECTOR),
        ):
            with pytest.raises(MaskingRefused) as refused:
                ledger.freeze(ask, _hash("context"), _hash(vector), ALONE)
            assert refused.value.reason is reason
        ledger = ledger.freeze(again, _hash(("again", step)), _hash(("vector", step)), ALONE)
    assert ledger.last == Mark(2, 3)
    assert _spent(ledger.freeze(_ask(3, 0), _hash("context 3"), _hash("vector 3"), ALONE)) == 0


def test_differencing_would_give_a_sites_change_exactly() -> None:
    """What the rule on sets prevents: two sums of one step, with and without d, differ by d's vector."""
    generator = np.random.default_rng(5)
    vectors = {site: generator.integers(-1000, 1000, 20) for site in ALL}

    everyone, without = (sum(vectors[site] for site in sites) for sites in (ALL, FEWER))

    np.testing.assert_array_equal(everyone - without, vectors["d"])


def test_the_same_set_repeats_the_same_vector_under_a_new_attempt() -> None:
    """After a void round the same computation is masked again, across a restart, without any budget."""
    ledger = Ledger.from_text(_begun().to_text(), "run-1")

    assert ledger.permit(_ask(4, 2), ALONE) == Masked(ALL, _hash("vector 4"), 0)
    after = ledger.freeze(_ask(4, 2), _hash("context 4.2"), _hash("vector 4"), ALONE)
    assert after.last == Mark(4, 2)
    assert _spent(after) == 0


def test_another_set_costs_budget_and_needs_a_vector_resampled() -> None:
    """With room in the budget the site goes on, never with a vector that it masked for another set."""
    ledger = _begun()
    ask = _ask(4, 2, FEWER, resample=2)

    assert ledger.permit(ask, ALONE, budget=1) is None
    with pytest.raises(MaskingRefused) as ordinary:
        ledger.permit(_ask(4, 2, FEWER), ALONE, budget=1)
    with pytest.raises(MaskingRefused) as same:
        ledger.freeze(ask, _hash("context"), _hash("vector 4"), ALONE, budget=1)
    after = ledger.freeze(ask, _hash("context"), _hash("vector 4 again"), ALONE, budget=1)
    with pytest.raises(MaskingRefused) as spent:
        after.permit(_ask(4, 3, OTHERS, resample=3), ALONE, budget=1)

    assert ordinary.value.reason is Reason.SAME_VECTOR
    assert same.value.reason is Reason.SAME_VECTOR
    assert spent.value.reason is Reason.BUDGET_SPENT
    assert after.permit(_ask(4, 3, FEWER, resample=2), ALONE) == Masked(FEWER, _hash("vector 4 again"), 2)
    assert after.permit(_ask(4, 3, ALL), ALONE) == Masked(ALL, _hash("vector 4"), 0)
    assert after.permit(_ask(5, 0, OTHERS), ALONE, budget=2) is None


@pytest.mark.parametrize(("first", "then"), [(ALL, FEWER), (FEWER, ALL)], ids=["leaving", "entering"])
def test_a_later_step_for_another_set_costs_as_many_units_as_there_are_pairs(
    first: tuple[str, ...], then: tuple[str, ...], weakened: Any
) -> None:
    """Two steps for one set and three for another: a coordinator could subtract two sums, each at its own parameters.
    So the third step is free again, and so is a return to the first set until there is a further pair."""
    ledger = Ledger("run-1")
    prices = []
    for step, sites in enumerate((first, first, then, then, then, first, first)):
        after = ledger.freeze(_ask(step, 0, sites), _hash(("context", step)), _hash(("vector", step)), ALONE, budget=3)
        prices.append(_spent(after))
        if prices[-1] > _spent(ledger):
            for budget, reason in ((0, Reason.OTHER_SETS), (prices[-1] - 1, Reason.BUDGET_SPENT)):
                if budget == 0 and reason is Reason.BUDGET_SPENT:
                    continue
                with pytest.raises(MaskingRefused) as unpaid:
                    ledger.permit(_ask(step, 0, sites), ALONE, budget)
                assert unpaid.value.reason is reason
                with weakened([module], reason), weakened([module], Reason.BUDGET_SPENT):
                    ledger.permit(_ask(step, 0, sites), ALONE, budget)
        ledger = Ledger.from_text(after.to_text(), "run-1").forget_before(step - 1)

    assert prices == [0, 0, 1, 2, 2, 3, 3]


def test_groups_of_the_smallest_set_enter_and_leave_for_nothing() -> None:
    """Sets that are unions of fixed groups of three isolate no fewer than three, in whatever order they come."""
    groups = [("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i")]
    ledger = Ledger("run-1")
    for step, chosen in enumerate(((0, 1, 2), (0, 1), (0, 2), (0, 1, 2), (0,))):
        sites = tuple(site for number in chosen for site in groups[number])
        ledger = ledger.freeze(_ask(step, 0, sites), _hash(("context", step)), _hash(("vector", step)), ALONE)

    assert _spent(ledger) == 0
    with pytest.raises(MaskingRefused) as split:
        ledger.permit(_ask(9, 0, ("a", "b", "c", "d", "e")), ALONE)
    assert split.value.reason is Reason.OTHER_SETS


def test_other_runs_count_by_identity_keys_and_only_the_same_set_is_free() -> None:
    """What was answered under another plan is compared by the sites' keys, whatever their names there."""
    names = {site: f"key of {site}" for site in ALL}
    listing = listing_of_equals(ALL, names)
    other = listing_of_equals(("a1", "b1", "c1", "d1"), {f"{site}1": key for site, key in names.items()})
    before = Ledger("run-0", other).freeze(_ask(0, 0, ("a1", "b1", "c1", "d1")), _hash(1), _hash(2), ALONE)
    compared = Comparison(3, Ledger.from_text(before.to_text(), "run-0").answered())

    assert Ledger("run-1", listing).permit(_ask(0, 0, ALL), compared) is None
    with pytest.raises(MaskingRefused) as fewer:
        Ledger("run-1", listing).permit(_ask(0, 0, FEWER), compared)
    assert fewer.value.reason is Reason.OTHER_SETS
    assert Ledger("run-1", listing).permit(_ask(0, 0, FEWER), compared, budget=1) is None


def test_a_number_with_too_few_contributors_is_refused_whatever_the_budget() -> None:
    """Four sites are added up, but only two of them contribute to one kind of number: the sum of that is over two."""
    names = {site: site for site in ALL}
    listing = Listing(names, {"changes": frozenset(ALL), "column x": frozenset(("a", "b"))})

    with pytest.raises(MaskingRefused) as refused:
        Ledger("run-1", listing).permit(_ask(0, 0, ALL), ALONE, budget=9)

    assert refused.value.reason is Reason.TOO_FEW_FOR_A_NUMBER


def test_the_budget_counts_over_steps_and_restarts() -> None:
    """A run has one budget: neither a new step nor a restart fills it again."""
    ledger = _begun().freeze(_ask(4, 2, FEWER, resample=2), _hash(1), _hash(2), ALONE, budget=1)
    ledger = Ledger.from_text(ledger.to_text(), "run-1").freeze(_ask(5, 0), _hash(3), _hash(4), ALONE)

    with pytest.raises(MaskingRefused) as refused:
        ledger.permit(_ask(5, 1, FEWER), ALONE, budget=1)

    assert refused.value.reason is Reason.BUDGET_SPENT
    assert ledger.permit(_ask(5, 1, FEWER, resample=1), ALONE, budget=2) is None


def test_a_retransmission_is_the_kept_bytes_under_the_open_context(weakened: Any) -> None:
    """Other bytes, another context, a void one or one from before a restart: nothing is sent again."""
    ledger, context, vector = _begun(), _hash("context 4.1"), _hash("vector 4")
    restarted = Ledger.from_text(ledger.to_text(), "run-1")

    ledger.check_resend(context, vector)
    cases = [
        (ledger, context, _hash("retrained"), Reason.OTHER_VECTOR),
        (ledger, _hash("context 4.0"), vector, Reason.CONTEXT_VOID),
        (ledger.void(), context, vector, Reason.CONTEXT_VOID),
        (restarted, context, vector, Reason.CONTEXT_VOID),
    ]
    for state, asked, kept, reason in cases:
        with pytest.raises(MaskingRefused) as refused:
            state.check_resend(asked, kept)
        assert refused.value.reason is reason
    with weakened([module], Reason.OTHER_VECTOR):
        ledger.check_resend(context, _hash("retrained"))


def test_a_ledger_that_was_rolled_back_is_refused(weakened: Any) -> None:
    """A restored or missing file is older than the audit log's mark. Without the check a set is forgotten."""
    old, new = _begun(), _begun().freeze(_ask(5, 0), _hash("context"), _hash("vector 5"), ALONE)
    assert new.last is not None
    new.refuse_if_older(new.last)

    for rolled_back in (old, Ledger("run-1")):
        with pytest.raises(MaskingRefused) as refused:
            rolled_back.refuse_if_older(new.last)
        assert refused.value.reason is Reason.RECORD_OLDER
    with weakened([module], Reason.RECORD_OLDER):
        old.refuse_if_older(new.last)
    # The differencing that the check prevents: what was masked for all is masked for fewer, undisguised.
    assert old.permit(_ask(5, 0, FEWER), ALONE, budget=1) is None
    assert new.permit(_ask(5, 1, FEWER, resample=1), ALONE, budget=1) is None


def test_text_gives_the_ledger_back_without_what_was_open() -> None:
    """Reading what was written loses nothing but the right to retransmit."""
    ledger = _begun().freeze(_ask(4, 2, FEWER, resample=2), _hash(1), _hash(2), ALONE, budget=1)

    for state in (Ledger("run-1"), _begun(), ledger):
        assert Ledger.from_text(state.to_text(), "run-1") == replace(state, open=None)


def test_a_damaged_text_is_refused() -> None:
    """Any single changed character is refused; without its end the last line counts as never written."""
    text = _begun().to_text()

    for damaged in (
        *(text[:index] + ("x" if text[index] != "x" else "y") + text[index + 1 :] for index in range(len(text) - 1)),
        "",
        "{}",
        "[]",
        "null",
        text * 2,
        text.splitlines(keepends=True)[1],
        text.replace(":4", ":4.0", 1),
        text.replace('"attempt":1', '"attempt":true'),
    ):
        with pytest.raises(MaskingRefused) as refused:
            Ledger.from_text(damaged, "run-1")
        assert refused.value.reason is Reason.RECORD_UNREADABLE
    with pytest.raises(MaskingRefused) as other:
        Ledger.from_text(text, "run-2")
    assert other.value.reason is Reason.OTHER_RUN


def test_a_line_that_was_being_written_is_dropped() -> None:
    """A power cut leaves a part of the last line."""
    before, after = _begun(), _begun().freeze(_ask(5, 0), _hash("context"), _hash("vector 5"), ALONE)
    text, line = before.to_text(), after.line_after(check_of(before.to_text()), 5)[0]

    for length in range(len(line)):
        assert Ledger.from_text(text + line[:length], "run-1") == replace(before, open=None)
    assert Ledger.from_text(text + line, "run-1") == replace(after, open=None)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    asks=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 4),
            st.sampled_from([ALL, FEWER, OTHERS]),
            st.integers(0, 1),
            st.integers(0, 3),
            st.integers(0, 3),
            st.booleans(),
        ),
        max_size=25,
    ),
    budget=st.integers(0, 2),
)
def test_whatever_a_coordinator_asks_for_no_two_vectors_can_be_played_off(asks: list[Any], budget: int) -> None:
    """Over all sequences of asks and restarts: no mark comes twice, and per step a set has one vector and a vector
    one set.

    The number of sets beyond the first of each step never passes the budget.
    """
    ledger, taken = Ledger("run-1"), []
    for step, attempt, contributors, sent_down, vector, resample, is_restarted in asks:
        ask = _ask(step, attempt, contributors, position=(step, sent_down), resample=resample)
        try:
            ledger = ledger.freeze(ask, _hash((step, attempt)), _hash(vector), ALONE, budget)
            taken.append((step, attempt, sent_down, contributors, vector))
        except MaskingRefused:
            pass
        recounted = Ledger.from_text(ledger.to_text(), "run-1")
        assert ledger.answered() == recounted.answered()  # the running count and the memory on disk agree
        ledger = recounted if is_restarted else ledger.forget_before(step - 2)

    marks = [entry[:2] for entry in taken]
    assert len(set(marks)) == len(marks)
    assert all(
        max(marks[:place], default=(0, 0))[0] <= step or step in {m[0] for m in marks[:place]}
        for place, (step, _) in enumerate(marks)
    )
    by_set = {(step, contributors): vector for step, _, _, contributors, vector in taken}
    by_vector = {(step, vector): contributors for step, _, _, contributors, vector in taken}
    steps = {entry[0] for entry in taken}
    assert all(by_set[step, contributors] == vector for step, _, _, contributors, vector in taken)
    assert all(by_vector[step, vector] == contributors for step, _, _, contributors, vector in taken)
    assert len({(step, sent_down) for step, _, sent_down, _, _ in taken}) == len(steps)
    assert len(by_set) - len(steps) <= budget


def test_a_copied_list_of_sites_keeps_no_earlier_answers() -> None:
    """The record of a sum follows from the list's own identities, also after a copy with other identities."""
    listing = Listing({name: name for name in ALL}, {"changes": frozenset(ALL)})
    listing.answer("run", tuple(ALL))

    other = replace(listing, identities={name: f"key of {name}" for name in ALL})

    assert other.answer("run", tuple(ALL)).kinds == {("changes", frozenset(f"key of {name}" for name in ALL))}
