"""Sites that are lost and return, as plays: their grace period, the repeated messages, and how a round continues."""

from __future__ import annotations

from tests.transcripts.plays import play, terms


def test_a_site_returns_within_its_grace_while_training() -> None:
    """A site lost while training has its grace; back in time, it is offered the same step."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a leaves
              = training 0.0 ready - until 11
        5     > a joins
              < offer 0.0 to a
              = training 0.0 ready - until 50
        6     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 56
        """,
    )


def test_a_ready_site_that_was_lost_has_to_be_ready_again() -> None:
    """Ready belongs to a stream, and ends with it."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a ready 0.0
              = training 0.0 ready a until 50
        2     > a leaves
              = training 0.0 ready a until 12
        3     > a joins
              < offer 0.0 to a
              = training 0.0 ready - until 50
        4     > b, c ready 0.0
              = training 0.0 ready b c until 50
        5     > a ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 55
        """,
    )


def test_a_ready_site_that_is_away_at_the_binding_has_its_grace() -> None:
    """Contributors are bound while one is away: it has its grace for the upload, not the whole time."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a ready 0.0
              = training 0.0 ready a until 50
        2     > a leaves
              = training 0.0 ready a until 12
        3     > b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 13
        13    > time passes
              < void 0.0 missing a
              = interrupted 0.0 without a until 1013
        """,
    )


def test_a_site_is_lost_while_collecting_and_resumes() -> None:
    """A returning site continues after the chunks that have arrived."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a completes
              = collecting 0.0 complete a until 51
        3     > b leaves
              = collecting 0.0 complete a until 13
        4     > b joins
              < offer 0.0 to b
              < resume 0.0 of a b c to b
              = collecting 0.0 complete a until 51
        5     > b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 55
        """,
    )


def test_a_site_that_has_sent_everything_may_leave() -> None:
    """Losing a site after its last chunk costs nothing in this round; the next waits for it."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a completes
              = collecting 0.0 complete a until 51
        3     > a leaves
              = collecting 0.0 complete a until 51
        4     > b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 14
        5     > a joins
              < offer 1.0 to a
              = training 1.0 ready - until 54
        6     > a, b, c ready 1.0
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 56
        """,
    )


def test_finishing_does_not_wait_for_ever() -> None:
    """A site that does not confirm the result is named, and the run is complete."""
    play(
        terms(rounds=1),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a, b, c completes
              < close 0 of a b c
              < result to a b c
              = finishing done - until 52
        3     > a, b finishes
              = finishing done a b until 52
        52    > time passes
              < end: all rounds were made, missing c
              = over, complete
        """,
    )


def test_a_site_that_was_away_gets_the_result_when_it_is_back() -> None:
    """The last result waits for a returning site."""
    play(
        terms(rounds=1),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a completes
              = collecting 0.0 complete a until 51
        3     > a leaves
              = collecting 0.0 complete a until 51
        4     > b, c completes
              < close 0 of a b c
              < result to b c
              = finishing done - until 54
        5     > b, c finishes
              = finishing done b c until 54
        6     > a joins
              < result to a
              = finishing done b c until 54
        7     > a finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )


def test_a_site_that_has_sent_everything_is_sent_nothing_again() -> None:
    """A complete site that returns waits for the next round; its parameters may change meanwhile."""
    play(
        terms(rounds=2),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > a completes
              = collecting 0.0 complete a until 51
        3     > a leaves
              = collecting 0.0 complete a until 51
        4     > a joins
              = collecting 0.0 complete a until 51
        5     > b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 55
        """,
    )


def test_coming_and_going_never_holds_a_round_open() -> None:
    """However often a site returns, the attempt ends when its time to contribute is over."""
    play(
        terms(rounds=1),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        45    > c leaves
              = training 0.0 ready - until 50
        46    > c joins
              < offer 0.0 to c
              = training 0.0 ready - until 50
        49    > c leaves
              = training 0.0 ready - until 50
        49.5  > c joins
              < offer 0.0 to c
              = training 0.0 ready - until 50
        50    > time passes
              < void 0.0 missing a b c
              = interrupted 0.0 without a b c until 1050
        """,
    )
