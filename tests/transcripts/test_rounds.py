"""Rounds in the clear as plays: who comes, who enters late, and how a run ends well."""

from __future__ import annotations

import pytest

from coordinator.rounds.phases import BecameReady, CloseRound, Completed, Finishing, Joined, State
from coordinator.rounds.round import advance, begin
from tests.transcripts.plays import CONTRIBUTE, play, terms


def test_everyone_comes_and_all_goes_well() -> None:
    """A run of three sites and two rounds, from the first to the last word."""
    play(
        terms(),
        """
        0     > a, b joins
              = gathering a b
        5     > c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 55
        20    > a, b ready 0.0
              = training 0.0 ready a b until 55
        30    > c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 80
        31    > a, c, b completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 81
        40    > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 90
        41    > a, b, c completes
              < close 1 of a b c
              < result to a b c
              = finishing done - until 91
        42    > a, b finishes
              = finishing done a b until 91
        43    > c finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )


def test_contributors_are_bound_with_the_offer_in_rounds_of_one_batch() -> None:
    """Binding early, the offer and the contributors travel together with the previous result."""
    play(
        terms(binds_early=True),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 50
        1     > a, b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 51
        2     > c, b, a completes
              < close 1 of a b c
              < result to a b c
              = finishing done - until 52
        3     > a, b, c finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )


def test_sites_that_train_after_they_were_named_have_the_time_of_both_phases() -> None:
    """Also after one of them was away for a moment."""
    play(
        terms(binds_early=True, early_seconds=2 * CONTRIBUTE, rounds=1),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 100
        1     > c leaves
              = collecting 0.0 complete - until 11
        2     > c joins
              < offer 0.0 to c
              < resume 0.0 of a b c to c
              = collecting 0.0 complete - until 100
        99    > a, b, c completes
              < close 0 of a b c
              < result to a b c
              = finishing done - until 149
        """,
    )


@pytest.mark.parametrize("binds_early", [False, True])
def test_who_says_before_its_chunks_that_they_come_changes_nothing(binds_early: bool) -> None:
    """In a large plan an agent is ready once more when it sends; the run takes no notice, late or twice."""
    rules = terms(binds_early=binds_early, rounds=1)
    state: State = begin(rules, 0.0)
    for event in [Joined(site) for site in "abc"] + [BecameReady(site, 0, 0) for site in "abc" if not binds_early]:
        state, _ = advance(rules, state, event, 1.0)
    for site in "abc":
        for _ in range(2):
            assert advance(rules, state, BecameReady(site, 0, 0), 2.0) == (state, ())
        state, effects = advance(rules, state, Completed(site), 2.0)
        assert advance(rules, state, BecameReady(site, 0, 0), 3.0) == (state, ())

    assert isinstance(state, Finishing)
    assert isinstance(effects[0], CloseRound)


def test_nobody_waits_for_a_site_that_declined() -> None:
    """A quorum of the willing begins at once, before the deadline."""
    play(
        terms(quorum=2),
        """
        0     > a, b joins
              = gathering a b
        1     > c declines
              < offer 0.0 to a b
              = training 0.0 ready - until 51
        """,
    )


def test_a_site_that_declined_may_change_its_mind() -> None:
    """Declining is undone by joining."""
    play(
        terms(quorum=2),
        """
        0     > c declines
              = gathering -, declined c
        1     > c joins
              = gathering c
        2     > a, b joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 52
        """,
    )


def test_too_few_sites_agree() -> None:
    """A run that cannot reach its quorum ends at once."""
    play(
        terms(),
        """
        0     > a, b joins
              = gathering a b
        1     > c declines
              < end: too few sites agree to take part, missing c
              = over, incomplete
        2     > c joins
              = over, incomplete
        """,
    )


def test_the_deadline_finds_a_quorum() -> None:
    """At the deadline a quorum begins without the others, who enter later."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b joins
              = gathering a b
        99    > time passes
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        110   > c joins
              = training 0.0 ready - until 150
        120   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 170
        121   > a, b completes
              < close 0 of a b
              < offer 1.0 to a b c
              = training 1.0 ready - until 171
        130   > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 180
        131   > a, b, c completes
              < close 1 of a b c
              < result to a b c
              = finishing done - until 181
        """,
    )


def test_the_deadline_finds_too_few() -> None:
    """At the deadline fewer than a quorum end the run."""
    play(
        terms(quorum=2),
        """
        0     > a joins
              = gathering a
        100   > time passes
              < end: too few sites joined in time, missing b c
              = over, incomplete
        """,
    )


def test_a_site_that_leaves_while_gathering_is_waited_for() -> None:
    """Leaving before the start is no refusal."""
    play(
        terms(),
        """
        0     > a, b joins
              = gathering a b
        1     > a leaves
              = gathering b
        2     > c joins
              = gathering b c
        3     > a joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 53
        """,
    )


def test_a_late_site_enters_with_the_next_round() -> None:
    """Who comes late never joins a round that has begun."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        101   > c joins
              = training 0.0 ready - until 150
        102   > c ready 0.0
              = training 0.0 ready - until 150
        103   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 153
        104   > c completes
              = collecting 0.0 complete - until 153
        105   > a, b completes
              < close 0 of a b
              < offer 1.0 to a b c
              = training 1.0 ready - until 155
        """,
    )


def test_a_plan_that_waits_keeps_the_set_that_it_began_with() -> None:
    """A larger set is another set, which costs the sites a budget that such a plan leaves at 0."""
    play(
        terms(quorum=2),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        101   > c joins
              = training 0.0 ready - until 150
        103   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 153
        105   > a, b completes
              < close 0 of a b
              < offer 1.0 to a b
              = training 1.0 ready - until 155
        """,
    )


def test_a_late_site_that_leaves_again_does_not_enter() -> None:
    """Only a site that is there when the round ends enters the next."""
    play(
        terms(quorum=2),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        101   > c joins
              = training 0.0 ready - until 150
        102   > c leaves
              = training 0.0 ready - until 150
        103   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 153
        104   > a, b completes
              < close 0 of a b
              < offer 1.0 to a b
              = training 1.0 ready - until 154
        """,
    )


def test_a_late_site_that_declines_does_not_enter() -> None:
    """A site that refuses before it has entered is not waited for."""
    play(
        terms(quorum=2),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        101   > c joins
              = training 0.0 ready - until 150
        102   > c declines
              = training 0.0 ready - until 150
        103   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 153
        104   > a, b completes
              < close 0 of a b
              < offer 1.0 to a b
              = training 1.0 ready - until 154
        """,
    )


def test_training_that_ends_early_makes_what_was_offered_and_what_measures() -> None:
    """Of six rounds the sums of the first end training: the second is on its way, then comes the one that measures."""
    play(
        terms(rounds=6),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a, b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 52
        2     > 3 rounds in all
              = training 1.0 ready - until 52
        3     > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 53
        4     > a, b, c completes
              < close 1 of a b c
              < offer 2.0 to a b c
              = training 2.0 ready - until 54
        5     > a, b, c ready 2.0
              < bind 2.0 of a b c to a b c
              = collecting 2.0 complete - until 55
        6     > a, b, c completes
              < close 2 of a b c
              < result to a b c
              = finishing done - until 56
        """,
    )


def test_an_early_end_in_rounds_of_one_batch_leaves_the_bound_round_whole() -> None:
    """Offer and contributors of the next round had left already; it is made, and then comes the result."""
    play(
        terms(rounds=9, binds_early=True),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 50
        1     > a, b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 51
        1     > 2 rounds in all
              = collecting 1.0 complete - until 51
        2     > a, b, c completes
              < close 1 of a b c
              < result to a b c
              = finishing done - until 52
        3     > a, b, c finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )


def test_a_site_that_was_to_enter_after_the_last_round_gets_no_result() -> None:
    """Who was never offered a round has no part in its result; the others are waited for, not this one."""
    play(
        terms(quorum=2, rounds=1),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < offer 0.0 to a b
              = training 0.0 ready - until 150
        101   > c joins
              = training 0.0 ready - until 150
        102   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 152
        103   > a, b completes
              < close 0 of a b
              < result to a b
              = finishing done - until 153
        104   > a, b finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )


def test_words_of_another_round_or_stranger_change_nothing() -> None:
    """Late, early and foreign words leave the machine where it is."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a ready 1.0
              = training 0.0 ready - until 50
        2     > a ready 0.1
              = training 0.0 ready - until 50
        3     > x ready 0.0
              = training 0.0 ready - until 50
        4     > x joins
              = training 0.0 ready - until 50
        5     > a completes
              = training 0.0 ready - until 50
        6     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 56
        7     > x completes
              = collecting 0.0 complete - until 56
        8     > a, b completes
              = collecting 0.0 complete a b until 56
        9     > x completes
              = collecting 0.0 complete a b until 56
        """,
    )
