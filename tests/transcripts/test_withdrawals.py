"""A site that persons take out, its own or the office, as plays: nobody waits for it, and nobody else loses a thing."""

from __future__ import annotations

from tests.transcripts.plays import play, terms


def test_where_the_plan_says_so_the_others_go_on_at_once() -> None:
    """No grace and no deadline: the step comes again without the site, in the same draw while nobody was named."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c withdraws
              < void 0.0 missing c
              < offer 0.1 to a b
              = training 0.1 ready - until 51
        2     > a, b ready 0.1
              < bind 0.1 of a b to a b
              = collecting 0.1 complete - until 52
        """,
    )


def test_after_contributors_were_named_the_step_is_resampled() -> None:
    """One of the named has not sent: the others make the step with another draw, as after any loss."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > c withdraws
              < void 0.0 missing c
              < offer 0.1 to a b
              = training 0.1 ready - until 52
        3     > a, b ready 0.1
              < bind 0.1 of a b to a b, draw 1
              = collecting 0.1 complete - until 53
        """,
    )


def test_what_was_sent_before_counts_and_the_next_round_is_without_the_site() -> None:
    """A complete contribution is not taken back; no draw is lost, because the next step was not offered yet."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 51
        2     > c completes
              = collecting 0.0 complete c until 51
        3     > c withdraws
              = collecting 0.0 complete c until 51
        4     > a completes
              = collecting 0.0 complete a c until 51
        5     > b completes
              < close 0 of a b c
              < offer 1.1 to a b
              = training 1.1 ready - until 55
        6     > a, b ready 1.1
              < bind 1.1 of a b to a b
              = collecting 1.1 complete - until 56
        """,
    )


def test_where_the_plan_waits_the_others_wait_and_the_site_may_come_back() -> None:
    """The federation is intact: a new approval brings the site back to the very step."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c withdraws
              < void 0.0 missing c
              = interrupted 0.0 without c until 1001
        900   > c joins
              < offer 0.1 to a b c
              = training 0.1 ready - until 950
        """,
    )


def test_too_few_are_left_and_nobody_comes_back() -> None:
    """Below the quorum the others wait as long as for any site, and the run then says who is missing."""
    play(
        terms(on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c withdraws
              < void 0.0 missing c
              = interrupted 0.0 without c until 1001
        1001  > time passes
              < end: a site did not come back in time, missing c
              = over, incomplete
        """,
    )


def test_another_site_that_is_away_is_not_given_up_with_it() -> None:
    """Only the withdrawn site is gone at once; the other one comes back to the step without it."""
    play(
        terms(quorum=1, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > b leaves
              = training 0.0 ready - until 11
        2     > c withdraws
              < void 0.0 missing c
              = interrupted 0.0 without b c until 1002
        3     > b joins
              < offer 0.1 to a b
              = training 0.1 ready - until 53
        """,
    )


def test_under_masks_the_others_agree_on_keys_again() -> None:
    """The set has changed, so no mask of the old key session is used again."""
    play(
        terms(quorum=2, on_lost_site="continue", is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > c withdraws
              < open key session 2 to a b
              = agreeing on 2: - advertised, - acknowledged until 51
        """,
    )


def test_a_site_that_is_revoked_is_not_waited_for() -> None:
    """The others go on at once, also where the revoked site was away already and had its grace."""
    play(
        terms(quorum=2, on_lost_site="continue"),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c leaves
              = training 0.0 ready - until 11
        2     > c is revoked
              < void 0.0 missing c
              < offer 0.1 to a b
              = training 0.1 ready - until 52
        """,
    )


def test_where_the_plan_waits_a_revoked_site_may_be_invited_again() -> None:
    """The run is not over: with the identity key that the plan lists the site comes back to the step."""
    play(
        terms(),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 50
        1     > c is revoked
              < void 0.0 missing c
              = interrupted 0.0 without c until 1001
        900   > c joins
              < offer 0.1 to a b c
              = training 0.1 ready - until 950
        """,
    )


def test_before_the_run_begins_a_revoked_site_is_left_out_where_enough_remain() -> None:
    """Nobody waits for it to join; below the quorum all wait, since it may be invited again in time."""
    play(
        terms(quorum=2),
        """
        0     > a, b joins
              = gathering a b
        1     > c is revoked
              < offer 0.0 to a b
              = training 0.0 ready - until 51
        """,
    )
    play(
        terms(),
        """
        0     > a, b joins
              = gathering a b
        1     > c is revoked
              = gathering a b
        2     > c joins
              < offer 0.0 to a b c
              = training 0.0 ready - until 52
        """,
    )
