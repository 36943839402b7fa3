"""A connected site that never sends what a step needs, as plays: how long the others repeat the step for it."""

from __future__ import annotations

import pytest

from tests.transcripts.plays import play, terms

THREE_VOID_ATTEMPTS = """
    0     > a, b, c joins
          < offer 0.0 to a b c
          = training 0.0 ready - until 50
    1     > a, b ready 0.0
          = training 0.0 ready a b until 50
    50    > time passes
          < void 0.0 missing c
          = interrupted 0.0 without c until 1050
    51    > c joins
          < offer 0.1 to a b c
          = training 0.1 ready - until 101
    52    > a, b ready 0.1
          = training 0.1 ready a b until 101
    101   > time passes
          < void 0.1 missing c
          = interrupted 0.1 without c until 1101
    102   > c joins
          < offer 0.2 to a b c
          = training 0.2 ready - until 152
    103   > a, b ready 0.2
          = training 0.2 ready a b until 152
    152   > time passes
"""


def test_others_go_on_without_a_site_that_is_late_again_and_again() -> None:
    """After three void attempts because of one site, the others continue, and it enters no more."""
    play(
        terms(on_lost_site="continue", quorum=2, rounds=4),
        THREE_VOID_ATTEMPTS
        + """
              < void 0.2 missing c, given up c
              < offer 0.3 to a b
              = training 0.3 ready - until 202
        153   > c joins
              = training 0.3 ready - until 202
        154   > a, b ready 0.3
              < bind 0.3 of a b to a b
              = collecting 0.3 complete - until 204
        155   > a, b complete
              < close 0 of a b
              < offer 1.0 to a b
              = training 1.0 ready - until 205
        156   > a, b ready 1.0
              < bind 1.0 of a b to a b
              = collecting 1.0 complete - until 206
        157   > a, b complete
              < close 1 of a b
              < offer 2.0 to a b
              = training 2.0 ready - until 207
        """,
    )


@pytest.mark.parametrize(("on_lost_site", "quorum"), [("wait", 2), ("continue", 3)])
def test_a_plan_that_needs_a_late_site_waits_for_it(on_lost_site: str, quorum: int) -> None:
    """Where the plan waits, or too few would be left, the run is interrupted however often a site was late."""
    play(
        terms(on_lost_site=on_lost_site, quorum=quorum),
        THREE_VOID_ATTEMPTS
        + """
              < void 0.2 missing c
              = interrupted 0.2 without c until 1152
        153   > c joins
              < offer 0.3 to a b c
              = training 0.3 ready - until 203
        """,
    )


def test_a_site_that_gives_what_is_due_begins_again_at_nought() -> None:
    """Late twice, then in time: the next two late attempts are waited through again."""
    play(
        terms(on_lost_site="continue", quorum=2, binds_early=True),
        """
        0     > a, b, c joins
              < offer 0.0 to a b c
              < bind 0.0 of a b c to a b c
              = collecting 0.0 complete - until 50
        1     > a, b complete
              = collecting 0.0 complete a b until 50
        50    > time passes
              < void 0.0 missing c
              = interrupted 0.0 without c until 1050
        51    > c joins
              < offer 0.1 to a b c
              < bind 0.1 of a b c to a b c
              = collecting 0.1 complete - until 101
        52    > a, b complete
              = collecting 0.1 complete a b until 101
        101   > time passes
              < void 0.1 missing c
              = interrupted 0.1 without c until 1101
        102   > c joins
              < offer 0.2 to a b c
              < bind 0.2 of a b c to a b c
              = collecting 0.2 complete - until 152
        103   > a, b, c complete
              < close 0 of a b c
              < offer 1.0 to a b c
              < bind 1.0 of a b c to a b c
              = collecting 1.0 complete - until 153
        104   > a, b complete
              = collecting 1.0 complete a b until 153
        153   > time passes
              < void 1.0 missing c
              = interrupted 1.0 without c until 1153
        """,
    )


def test_attempts_for_which_all_were_missing_count_against_nobody() -> None:
    """After the coordinator's own line was down again and again a site that is away once is waited for."""
    play(
        terms(on_lost_site="continue", quorum=2),
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
        101   > time passes
              < void 0.1 missing a b c
              = interrupted 0.1 without a b c until 1101
        102   > a, b, c joins
              < offer 0.2 to a b c
              = training 0.2 ready - until 152
        152   > time passes
              < void 0.2 missing a b c
              = interrupted 0.2 without a b c until 1152
        153   > a, b, c joins
              < offer 0.3 to a b c
              = training 0.3 ready - until 203
        154   > a, b ready 0.3
              = training 0.3 ready a b until 203
        155   > c leaves
              = training 0.3 ready a b until 165
        165   > time passes
              < void 0.3 missing c
              = interrupted 0.3 without c until 1165
        """,
    )
