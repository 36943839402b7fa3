"""`coordinator explain`: help on an identifier from an error, the journal or `doctor`."""

from __future__ import annotations

import click

from coordinator.operations.coordinator_events import EVENTS
from host.diagnosis import AILMENTS
from host.message_catalogue import ERRORS, explained


@click.command()
@click.argument("identifier", required=False)
def explain(identifier: str | None) -> None:
    """Say what IDENTIFIER means and what to do; without one, list all.

    Example: coordinator explain E020
    """
    click.echo(explained((*ERRORS, *EVENTS, *AILMENTS), identifier))
