"""`coordinator explain`: help on an identifier from an error, the journal or `doctor`."""

from __future__ import annotations

import click

from coordinator.operations.coordinator_events import EVENTS
from host.diagnosis import AILMENTS
from host.message_catalogue import ERRORS, explained


@click.command()
@click.argument("identifier", required=False)
def explain(identifier: str | None) -> None:
    """Explain the message IDENTIFIER and what to do. Without IDENTIFIER, list all messages.

    Example: coordinator explain E020
    """
    click.echo(explained((*ERRORS, *EVENTS, *AILMENTS), identifier))
