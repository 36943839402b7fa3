"""On the console a reader finds buttons where a terminal would name commands."""

from __future__ import annotations

import pytest

from site_agent.console.console_links import Role
from site_agent.console.console_words import for_buttons
from site_agent.desk.use.model_in_use import NOBODY_ADOPTED

EVERYBODY = frozenset(Role)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Read them with `site-agent data check`, then go on.", "Read them with “Examine the table”, then go on."),
        ("Correct it or run `site-agent data accept`.", "Correct it or press “Accept the warnings”."),
        ("Run `site-agent adopt MODEL --by NAME` again.", "Press “Compare models” again."),
        ("site-agent: --by is empty. [E002]", "“Your name” is empty. [E002]"),
        ("--until must be in the future: 2020-01-01.", "“Last day of the approval” must be in the future: 2020-01-01."),
        ("See `site-agent release withdraw-data`.", "See `site-agent release withdraw-data`."),
        ("`site-agent reports` is none.", "`site-agent reports` is none."),
        ("Run `site-agent join --by x` first.", "Run `site-agent join --by x` first."),
        ("a--by --byte stays", "a--by --byte stays"),
        ("To end the approval, use `site-agent withdraw`.", "To end the approval, use “Withdraw”."),
    ],
)
def test_a_command_becomes_its_button(text: str, words: str) -> None:
    """A command that the console offers is named by its button, and an option by its field; others stay."""
    assert for_buttons(text, EVERYBODY) == words


def test_a_button_of_another_role_names_the_role() -> None:
    """Who has no such button reads whose it is."""
    words = for_buttons("Read it with `site-agent data check`.", frozenset({Role.OFFICER}))

    assert words == "Read it with “Examine the table” (a button of the data manager)."


def test_no_command_is_named_to_a_clinician_who_compares() -> None:
    """The sentence that stands beside the models of a new site has no command in it."""
    assert "site-agent" not in NOBODY_ADOPTED
