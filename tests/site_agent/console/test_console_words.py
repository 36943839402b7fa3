"""On the console a reader finds buttons where a terminal would name commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_agent.console.console_actions import for_buttons
from site_agent.console.console_command import console
from site_agent.console.console_links import LINK_SECONDS, Role
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


def test_the_operators_page_has_the_consoles_times() -> None:
    """How long a link and an unused session are valid stands on the operator's page as in the code."""
    page = " ".join((Path(__file__).parents[3] / "docs/operator.md").read_text().split())
    idle_minutes = next(option.default for option in console.params if option.name == "idle_minutes")

    assert LINK_SECONDS == 600
    assert "A link works once, within ten minutes" in page
    assert f"A session ends after {idle_minutes:.0f} minutes without a request" in page
