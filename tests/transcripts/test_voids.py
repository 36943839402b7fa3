"""Attempts that come to nothing, as plays: a site stays away, declines, or the sums do not add up; what follows."""

from __future__ import annotations

from tests.transcripts.plays import play, terms


def test_the_grace_ends() -> None:
    """A site away beyond its grace makes the step void; it is offered again when the site is back."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b ready 0.0
              = training 0.0 ready a b until 50
        2     > c leaves
              = training 0.0 ready a b until 12
        11    > time passes
              = training 0.0 ready a b until 12
        12    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1012
        500   > c joins
              < offer 0.1 to a b c
              = training 0.1 ready - until 550
        501   > a, b, c ready 0.0
              = training 0.1 ready - until 550
        502   > a, b, c ready 0.1
              < bind 0.1 of a b c to a b c
              = collecting 0.1 complete - until 552
        """,
    )


def test_the_time_to_contribute_ends() -> None:
    """A silent site makes the step void as well, and is cut off."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b ready 0.0
              = training 0.0 ready a b until 50
        50    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1050
        60    > c joins
              < offer 0.1 to a b c
              = training 0.1 ready - until 110
        """,
    )


def test_a_site_does_not_return() -> None:
    """After the longest wait the run ends; what was made stays made."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c leaves
              = training 0.0 ready - until 11
        11    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1011
        1010  > time passes
              = interrupted 0.0 without c until 1011
        1011  > time passes
              < end: a site did not come back in time, missing c
              = over, incomplete
        """,
    )


def test_a_run_goes_on_without_a_lost_site_where_the_plan_says_so() -> None:
    """With `continue` and a quorum the step is made without the site; it may enter later."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c leaves
              = training 0.0 ready - until 11
        11    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1011
        1011  > time passes
              < offer 0.1 to a b
              = training 0.1 ready - until 1061
        1012  > a, b ready 0.1
              < bind 0.1 of a b to a b
              = collecting 0.1 complete - until 1062
        1013  > c joins
              = collecting 0.1 complete - until 1062
        1014  > a, b completes
              < close 0 of a b
              < offer 1.0 to a b c
              = training 1.0 ready - until 1064
        1015  > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 1065
        """,
    )


def test_a_run_does_not_go_on_below_the_quorum() -> None:
    """`continue` never goes below the quorum."""
    play(
        terms(quorum=3, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c leaves
              = training 0.0 ready - until 11
        11    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1011
        1011  > time passes
              < end: a site did not come back in time, missing c
              = over, incomplete
        """,
    )


def test_a_contributor_declines() -> None:
    """A bound site that takes no further part ends the run; the others are not summed without it."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > b declines
              < end: b takes no further part (data unfit), missing b
              = over, incomplete
        2     > a, c ready 0.0
              = over, incomplete
        """,
    )


def test_sums_do_not_add_up_three_times() -> None:
    """Three sums of one round that do not add up end the run, whatever else was void before."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        50    > time passes
              < void 0.0 missing a b c
              = interrupted 0.0 without a b c until 1050
        51    > a, b, c joins
              < offer 0.1 to a b c
              = training 0.1 ready - until 101
        52    > a, b, c ready 0.1
              < bind 0.1 of a b c to a b c
              = collecting 0.1 complete - until 102
        53    > sums do not add up
              < void 0.1 missing -
              < offer 0.2 to a b c
              = training 0.2 ready - until 103
        54    > a, b, c ready 0.2
              < bind 0.2 of a b c to a b c
              = collecting 0.2 complete - until 104
        55    > sums do not add up
              < void 0.2 missing -
              < offer 0.3 to a b c
              = training 0.3 ready - until 105
        56    > a, b, c ready 0.3
              < bind 0.3 of a b c to a b c
              = collecting 0.3 complete - until 106
        57    > sums do not add up
              < end: the contributions do not add up, missing -
              = over, incomplete
        """,
    )


def test_sums_that_add_up_again_are_forgiven() -> None:
    """What did not add up in one round is not counted against the next."""
    play(
        terms(rounds=3),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > sums do not add up
              < void 0.0 missing -
              < offer 0.1 to a b c
              = training 0.1 ready - until 52
        3     > a, b, c ready 0.1
              < bind 0.1 of a b c to a b c
              = collecting 0.1 complete - until 53
        4     > sums do not add up
              < void 0.1 missing -
              < offer 0.2 to a b c
              = training 0.2 ready - until 54
        5     > a, b, c ready 0.2
              < bind 0.2 of a b c to a b c
              = collecting 0.2 complete - until 55
        6     > a, b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 56
        7     > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 57
        8     > sums do not add up
              < void 1.0 missing -
              < offer 1.1 to a b c
              = training 1.1 ready - until 58
        """,
    )


def test_going_on_without_a_site_that_was_named_is_a_fresh_draw_by_all() -> None:
    """Two sums of one step over different sets never hold the same vectors; the next round is ordinary again."""
    play(
        terms(rounds=2, quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a, b completes
              = collecting 0.0 complete a b until 51
        3     > c leaves
              = collecting 0.0 complete a b until 13
        13    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1013
        1013  > time passes
              < offer 0.1 to a b
              = training 0.1 ready - until 1063
        1014  > a, b ready 0.1
              < bind 0.1 of a b to a b, draw 1
              = collecting 0.1 complete - until 1064
        1015  > a, b completes
              < close 0 of a b
              < offer 1.0 to a b
              = training 1.0 ready - until 1065
        1016  > a, b ready 1.0
              < bind 1.0 of a b to a b
              = collecting 1.0 complete - until 1066
        """,
    )


def test_going_on_without_a_site_before_anyone_was_named_is_the_ordinary_draw() -> None:
    """Where contributors were never named nobody has sent, and nothing has to be resampled."""
    play(
        terms(rounds=1, quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c leaves
              = training 0.0 ready - until 11
        11    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1011
        1011  > time passes
              < offer 0.1 to a b
              = training 0.1 ready - until 1061
        1012  > a, b ready 0.1
              < bind 0.1 of a b to a b
              = collecting 0.1 complete - until 1062
        """,
    )
