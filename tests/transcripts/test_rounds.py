"""Rounds as plays: who comes, who is lost and comes back, and how a run ends."""

from __future__ import annotations

from tests.transcripts.plays import play, terms

BEGUN = """
        0     > a, b, c joins
              < offer 0.0 to a b c
              = collecting 0.0 complete - until 50
"""
KEYS = """
        0     > a, b, c joins
              < open key session 1
              = agreeing on 1: - advertised, - acknowledged until 50
"""


def continued(transcript: str, rounds: int = 2) -> None:
    """Play a run of three sites from its first offer on."""
    play(terms(rounds=rounds), BEGUN + transcript)


def masked(transcript: str) -> None:
    """Play a run of three sites from its first keys on."""
    play(terms(is_masked=True), KEYS + transcript)


def test_a_run_begins_with_all_its_sites_however_long_that_takes() -> None:
    """A site that left, withdrew or was revoked before the run is waited for; one that can never take part ends it."""
    play(
        terms(),
        """
        0     > a, b joins
              = gathering a b
        5     > a leaves
              = gathering b
        6     > b withdraws
              = gathering -
        7     > c joins
              = gathering c
        9000000 > time passes
              = gathering c
        9000001 > a, b joins
              < offer 0.0 to a b c
              = collecting 0.0 complete - until 9.00005e+06
        9000002 > c declines
              < end: c takes no further part (network differs), missing c
              = over, incomplete
        """,
    )


def test_a_site_that_was_taken_out_is_waited_for_at_once() -> None:
    """Persons at the hospital or the office took it out: no grace period runs; it may return to the same round."""
    continued("""
        1     > a revoked
              < void 0.0 missing -
              = interrupted 0.0 with b c
        2     > b withdraws
              = interrupted 0.0 with c
        12    > a, b joins
              < offer 0.1 to a b c
              = collecting 0.1 complete - until 62
    """)


def test_what_a_site_sent_before_it_was_taken_out_counts_but_no_further_round_begins() -> None:
    """Its contribution has left and may complete the round."""
    continued("""
        1     > a completes
              = collecting 0.0 complete a until 50
        2     > a withdraws
              = collecting 0.0 complete a until 50
        3     > b, c completes
              < close 0
              = interrupted 1.0 with b c
        4     > a joins
              < offer 1.1 to a b c
              = collecting 1.1 complete - until 54
    """)


def test_sums_do_not_add_up_three_times() -> None:
    """A wrong sum is made again twice, and forgiven when it adds up."""
    continued("""
        1     > sums do not add up
              < void 0.0 missing -
              < offer 0.1 to a b c
              = collecting 0.1 complete - until 51
        2     > sums do not add up
              < void 0.1 missing -
              < offer 0.2 to a b c
              = collecting 0.2 complete - until 52
        3     > a, b, c completes
              < close 0
              < offer 1.0 to a b c
              = collecting 1.0 complete - until 53
        4     > sums do not add up
              < void 1.0 missing -
              < offer 1.1 to a b c
              = collecting 1.1 complete - until 54
        5     > sums do not add up
              < void 1.1 missing -
              < offer 1.2 to a b c
              = collecting 1.2 complete - until 55
        6     > sums do not add up
              < end: the contributions do not add up, missing -
              = over, incomplete
    """)


def test_a_site_that_never_answers_about_keys_interrupts() -> None:
    """Who is silent is disconnected, and all agree again."""
    masked("""
        1     > a, b advertises 1
              = agreeing on 1: a b advertised, - acknowledged until 50
        50    > time passes
              < void 0.0 missing c
              = interrupted 0.0 with a b
        51    > c joins
              < open key session 2
              = agreeing on 2: - advertised, - acknowledged until 101
        52    > a, b, c advertises 2
              < roster 2
              = agreeing on 2: a b c advertised, - acknowledged until 101
        53    > a acknowledges 2
              = agreeing on 2: a b c advertised, a acknowledged until 101
        101   > time passes
              < void 0.1 missing b c
              = interrupted 0.1 with a
    """)


def test_a_site_keeps_or_loses_its_keys() -> None:
    """With its keys it resumes; without them everybody agrees again."""
    masked("""
        1     > a, b, c advertises 1
              < roster 1
              = agreeing on 1: a b c advertised, - acknowledged until 50
        2     > a, b, c acknowledges 1
              < seal 1
              < offer 0.0 to a b c
              = collecting 0.0 complete - until 52
        3     > a leaves
              = collecting 0.0 complete - until 13
        4     > a joins 1
              < resume 0.0 to a
              = collecting 0.0 complete - until 52
        5     > b leaves
              = collecting 0.0 complete - until 15
        6     > b joins
              < void 0.0 missing -
              < open key session 2
              = agreeing on 2: - advertised, - acknowledged until 56
        7     > a, b, c advertises 2
              < roster 2
              = agreeing on 2: a b c advertised, - acknowledged until 56
        8     > a, b, c acknowledges 2
              < seal 2
              < offer 0.1 to a b c
              = collecting 0.1 complete - until 58
        9     > b completes
              = collecting 0.1 complete b until 58
        10    > b leaves
              = collecting 0.1 complete b until 58
        11    > b joins
              = collecting 0.1 complete b until 58
        12    > a, c completes
              < close 0
              < open key session 3
              = agreeing on 3: - advertised, - acknowledged until 62
    """)


def test_a_site_without_its_memory_makes_everybody_go_back() -> None:
    """Nothing is offered before; a repeated round is a later attempt."""
    continued(
        """
        1     > a, b, c completes
              < close 0
              < offer 1.0 to a b c
              = collecting 1.0 complete - until 51
        2     > b leaves
              = collecting 1.0 complete - until 12
        3     > b joins 0 reset
              < void 1.0 missing -
              = interrupted 1.1 with a b c, to go back
        4     > a completes
              = interrupted 1.1 with a b c, to go back
        5     > past 1.1
              = interrupted 1.1 with a b c, to go back
        6     > back to 0.0
              < offer 0.1 to a b c
              = collecting 0.1 complete - until 56
        7     > a, b, c completes
              < close 0
              < offer 1.2 to a b c
              = collecting 1.2 complete - until 57
        """,
        rounds=5,
    )


def test_training_that_ends_early_makes_what_was_offered() -> None:
    """The round that was offered is made."""
    continued(
        """
        1     > a, b, c completes
              < close 0
              < offer 1.0 to a b c
              = collecting 1.0 complete - until 51
        2     > 2 rounds in all
              = collecting 1.0 complete - until 51
        3     > a, b, c completes
              < close 1
              < result to a b c
              = finishing done - until 53
        """,
        rounds=6,
    )


def test_finishing_does_not_wait_for_ever() -> None:
    """A site that is back in time gets the result."""
    continued(
        """
        1     > b completes
              = collecting 0.0 complete b until 50
        2     > b leaves
              = collecting 0.0 complete b until 50
        3     > a, c completes
              < close 0
              < result to a c
              = finishing done - until 53
        4     > b joins
              < result to b
              = finishing done - until 53
        5     > a, b finishes
              = finishing done a b until 53
        53    > time passes
              < end: all rounds were made, missing c
              = over, complete
        """,
        rounds=1,
    )


def test_who_only_receives_is_waited_for_at_the_end_alone() -> None:
    """It joins no round."""
    play(
        terms(rounds=1, receivers=frozenset("r")),
        """
        0     > r, a, b, c joins
              < offer 0.0 to a b c
              = collecting 0.0 complete - until 50
        1     > a, b, c completes
              < close 0
              < result to a b c r
              = finishing done - until 51
        2     > a, b, c finishes
              = finishing done a b c until 51
        3     > r finishes
              < end: all rounds were made, missing -
              = over, complete
        """,
    )
