"""Masked rounds as plays: sites agree on keys first, and again after every loss, return or entry."""

from __future__ import annotations

from tests.transcripts.plays import play, terms


def test_masked_rounds_agree_on_keys_first() -> None:
    """Adverts, roster, acknowledgements, seal: then the round is offered; the next needs none."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b advertises 1
              = agreeing on 1: a b advertised, - acknowledged until 50
        2     > c advertises 1
              < roster 1 to a b c
              = agreeing on 1: a b c advertised, - acknowledged until 50
        3     > a, b, c acknowledges 1
              < seal 1 to a b c
              < offer 0.0 to a b c
              = training 0.0 ready - until 53
        4     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 54
        5     > a, b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 55
        """,
    )


def test_words_of_another_key_session_are_not_counted() -> None:
    """An advert of a key session that is over, or given twice, does not complete this one."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b, c advertises 2
              = agreeing on 1: - advertised, - acknowledged until 50
        2     > a, a, b advertises 1
              = agreeing on 1: a b advertised, - acknowledged until 50
        3     > a, b, c acknowledges 2
              = agreeing on 1: a b advertised, - acknowledged until 50
        """,
    )


def test_a_site_lost_while_agreeing_restarts_the_agreement() -> None:
    """Back within its grace, it and all others agree on a new key session of the same step."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b advertises 1
              = agreeing on 1: a b advertised, - acknowledged until 50
        2     > c leaves
              = agreeing on 1: a b advertised, - acknowledged until 12
        3     > c joins
              < open key session 2 to a b c
              = agreeing on 2: - advertised, - acknowledged until 53
        4     > a, b, c advertises 2
              < roster 2 to a b c
              = agreeing on 2: a b c advertised, - acknowledged until 53
        """,
    )


def test_a_site_that_never_advertises_interrupts() -> None:
    """Without all keys there is no round."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b advertises 1
              = agreeing on 1: a b advertised, - acknowledged until 50
        50    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1050
        60    > c joins
              < open key session 2 to a b c
              = agreeing on 2: - advertised, - acknowledged until 110
        """,
    )


def test_a_site_that_never_acknowledges_interrupts() -> None:
    """A key that was sent but not agreed to is no key."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b, c advertises 1
              < roster 1 to a b c
              = agreeing on 1: a b c advertised, - acknowledged until 50
        2     > a, b acknowledges 1
              = agreeing on 1: a b c advertised, a b acknowledged until 50
        50    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1050
        """,
    )


def test_a_site_that_kept_its_keys_resumes() -> None:
    """A broken stream alone costs no new keys."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b, c advertises 1
              < roster 1 to a b c
              = agreeing on 1: a b c advertised, - acknowledged until 50
        2     > a, b, c acknowledges 1
              < seal 1 to a b c
              < offer 0.0 to a b c
              = training 0.0 ready - until 52
        3     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 53
        4     > a completes
              = collecting 0.0 complete a until 53
        5     > b leaves
              = collecting 0.0 complete a until 15
        6     > b joins 1
              < offer 0.0 to b
              < resume 0.0 of a b c to b
              = collecting 0.0 complete a until 53
        7     > b, c completes
              < close 0 of a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 57
        """,
    )


def test_a_site_that_lost_its_keys_makes_everyone_agree_again() -> None:
    """Lost keys void the attempt: the same step is repeated under new keys."""
    play(
        terms(is_masked=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b, c advertises 1
              < roster 1 to a b c
              = agreeing on 1: a b c advertised, - acknowledged until 50
        2     > a, b, c acknowledges 1
              < seal 1 to a b c
              < offer 0.0 to a b c
              = training 0.0 ready - until 52
        3     > a, b, c ready 0.0
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 53
        4     > b leaves
              = collecting 0.0 complete - until 14
        5     > b joins 0
              < void 0.0 missing -
              < open key session 2 to a b c
              = agreeing on 2: - advertised, - acknowledged until 55
        6     > a, b, c advertises 2
              < roster 2 to a b c
              = agreeing on 2: a b c advertised, - acknowledged until 55
        7     > a, b, c acknowledges 2
              < seal 2 to a b c
              < offer 0.1 to a b c
              = training 0.1 ready - until 57
        """,
    )


def test_an_entry_makes_everyone_agree_again() -> None:
    """A site that enters brings a new key session with it."""
    play(
        terms(is_masked=True, quorum=2, on_lost_site="continue"),
        """
        0     > a, b joins
              = gathering a b
        100   > time passes
              < open key session 1 to a b
              = agreeing on 1: - advertised, - acknowledged until 150
        101   > a, b advertises 1
              < roster 1 to a b
              = agreeing on 1: a b advertised, - acknowledged until 150
        102   > a, b acknowledges 1
              < seal 1 to a b
              < offer 0.0 to a b
              = training 0.0 ready - until 152
        103   > c joins
              = training 0.0 ready - until 152
        104   > a, b ready 0.0
              < bind 0.0 of a b to a b
              = collecting 0.0 complete - until 154
        105   > a, b completes
              < close 0 of a b
              < open key session 2 to a b c
              = agreeing on 2: - advertised, - acknowledged until 155
        106   > a, b, c advertises 2
              < roster 2 to a b c
              = agreeing on 2: a b c advertised, - acknowledged until 155
        107   > a, b, c acknowledges 2
              < seal 2 to a b c
              < offer 1.0 to a b c
              = training 1.0 ready - until 157
        """,
    )


def test_corrupted_sums_cost_new_keys() -> None:
    """Under masking sums that do not add up are tried again with other keys."""
    play(
        terms(is_masked=True, binds_early=True),
        """
        0     > a, b, c joins
              < open key session 1 to a b c
              = agreeing on 1: - advertised, - acknowledged until 50
        1     > a, b, c advertises 1
              < roster 1 to a b c
              = agreeing on 1: a b c advertised, - acknowledged until 50
        2     > a, b, c acknowledges 1
              < seal 1 to a b c
              < offer 0.0 to a b c
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 52
        3     > sums do not add up
              < void 0.0 missing -
              < open key session 2 to a b c
              = agreeing on 2: - advertised, - acknowledged until 53
        4     > a, b, c advertises 2
              < roster 2 to a b c
              = agreeing on 2: a b c advertised, - acknowledged until 53
        5     > a, b, c acknowledges 2
              < seal 2 to a b c
              < offer 0.1 to a b c
              < bind 0.1 of a b c to a b c
              = collecting 0.1 complete - until 55
        """,
    )
