"""Runs with lost memory or an interfering person, as plays: who waits, which rounds are repeated, and for whom."""

from __future__ import annotations

from tests.transcripts.plays import play, terms


def test_a_site_without_its_memory_makes_everybody_go_back() -> None:
    """The attempt is void at once; from the round that all hold the past is repeated for its sites, then goes on."""
    play(
        terms(rounds=5, binds_early=True),
        """
        0    > a, b, c join
             < offer 0.0 to a b c
             < bind 0.0 of a b c to a b c
             = collecting 0.0 complete - until 50
        1    > a, b, c complete
             < close 0 of a b c
             < offer 1.0 to a b c
             < bind 1.0 of a b c to a b c
             = collecting 1.0 complete - until 51
        2    > a, b, c complete
             < close 1 of a b c
             < offer 2.0 to a b c
             < bind 2.0 of a b c to a b c
             = collecting 2.0 complete - until 52
        3    > b leaves
             = collecting 2.0 complete - until 13
        4    > b joins 0 reset
             < void 2.0 missing -
             = interrupted 2.1 without - until 1004, to go back
        5    > past 2.0 of a b c
             = interrupted 2.1 without - until 1004, to go back
        5    > back to 1.0 of a b c
             < offer 1.1 to a b c
             < bind 1.1 of a b c to a b c
             = collecting 1.1 complete - until 55
        6    > a, b, c complete
             < close 1 of a b c
             < offer 2.1 to a b c
             < bind 2.1 of a b c to a b c
             = collecting 2.1 complete - until 56
        7    > a, b, c complete
             < close 2 of a b c
             < offer 3.0 to a b c
             < bind 3.0 of a b c to a b c
             = collecting 3.0 complete - until 57
        """,
    )


def test_the_past_is_repeated_for_its_own_sites_and_others_enter_after_it() -> None:
    """Who is here beside them waits; who was in a round and is away is waited for."""
    play(
        terms(sites=frozenset({"a", "b", "c", "d"}), rounds=9),
        """
        0    > a, b, c, d join
             < offer 0.0 to a b c d
             = training 0.0 ready - until 50
        1    > a joins 0 reset
             < void 0.0 missing -
             = interrupted 0.1 without - until 1001, to go back
        2    > past 5.2 of a b c d
             = interrupted 0.1 without - until 1001, to go back
        2    > back to 4.0 of a b c
             < offer 4.1 to a b c
             = training 4.1 ready - until 52
        3    > a, b, c ready 4.1
             < bind 4.1 of a b c to a b c
             = collecting 4.1 complete - until 53
        4    > a, b, c complete
             < close 4 of a b c
             < offer 5.3 to a b c d
             = training 5.3 ready - until 54
        """,
    )


def test_masked_repetitions_agree_on_fresh_keys_where_the_sites_are_others() -> None:
    """After going back everyone agrees again; attempts only rise."""
    play(
        terms(is_masked=True, binds_early=True, rounds=3),
        """
        0    > a, b, c join
             < open key session 1 to a b c
             = agreeing on 1: - advertised, - acknowledged until 50
        1    > a, b, c advertise 1
             < roster 1 to a b c
             = agreeing on 1: a b c advertised, - acknowledged until 50
        2    > a, b, c acknowledge 1
             < seal 1 to a b c
             < offer 0.0 to a b c
             < bind 0.0 of a b c to a b c
             = collecting 0.0 complete - until 52
        3    > c leaves
             = collecting 0.0 complete - until 13
        4    > c joins 0 reset
             < void 0.0 missing -
             = interrupted 0.1 without - until 1004, to go back
        5    > back to 0.0 of a b c
             < open key session 2 to a b c
             = agreeing on 2: - advertised, - acknowledged until 55
        6    > a, b, c advertise 2
             < roster 2 to a b c
             = agreeing on 2: a b c advertised, - acknowledged until 55
        7    > a, b, c acknowledge 2
             < seal 2 to a b c
             < offer 0.1 to a b c
             < bind 0.1 of a b c to a b c
             = collecting 0.1 complete - until 57
        """,
    )


def test_without_a_common_state_nobody_goes_on_however_many_are_left() -> None:
    """A plan that goes on without lost sites cannot where the past has to be repeated: it needs its sites."""
    play(
        terms(sites=frozenset({"a", "b", "c", "d"}), on_lost_site="continue"),
        """
        0    > a, b, c, d join
             < offer 0.0 to a b c d
             = training 0.0 ready - until 50
        1    > a joins 0 reset
             < void 0.0 missing -
             = interrupted 0.1 without - until 1001, to go back
        2    > d leaves
             = interrupted 0.1 without d until 1001, to go back
        1001 > time passes
             < end: a site did not come back in time, missing d
             = over, incomplete
        """,
    )


def test_a_person_pauses_goes_on_and_stops() -> None:
    """A paused run waits without a deadline, whoever comes and goes; a stopped one is over."""
    play(
        terms(binds_early=True, rounds=5),
        """
        0    > a, b, c join
             < offer 0.0 to a b c
             < bind 0.0 of a b c to a b c
             = collecting 0.0 complete - until 50
        1    > somebody pauses
             = collecting 0.0 complete - until 50
        2    > a, b, c complete
             < close 0 of a b c
             = interrupted 1.0 without - until inf
        3    > b leaves
             = interrupted 1.0 without b until inf
        9999 > time passes
             = interrupted 1.0 without b until inf
        9999 > b joins
             = interrupted 1.0 without - until inf
        9999 > somebody goes on
             < offer 1.1 to a b c
             < bind 1.1 of a b c to a b c
             = collecting 1.1 complete - until 10049
        9999 > somebody stops
             < end: it was stopped by a person, missing -
             = over, incomplete
        """,
    )
