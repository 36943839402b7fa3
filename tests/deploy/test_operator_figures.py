"""The limits on the operator's page are those of the code."""

from __future__ import annotations

from typing import Final

import pytest

from coordinator.network import outgoing, pace, service
from coordinator.rounds import taken_out
from coordinator.storage import history
from host import durable
from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from protos.wire.messages import LARGEST_MESSAGE_BYTES
from site_agent.gate.agent_link import PARTING_SECONDS
from site_agent.gate_socket import WINDOW
from tests.deploy.test_documentation import ROOT

PAGE: Final = " ".join((ROOT / "docs" / "operator.md").read_text().split())
NUMBERS: Final = {3: "three", 120: "two minutes"}
SENTENCES: Final = {
    "connections": f"keeps at most {service._MOST_CONNECTIONS} connections open",
    "handshake": f"no TLS handshake after {service._HANDSHAKE_SECONDS} seconds, or no call after "
    f"{service._IDLE_SECONDS} seconds",
    "streams": f"allows a site {service._MOST_STREAMS_OF_A_SITE} open streams at the same time, and "
    f"{pace.STREAMS_OF_A_SITE.burst:,.0f} streams in total",
    "messages": f"can send {pace.MESSAGES.burst:,.0f} messages at once, and then "
    f"{pace.MESSAGES.each_second:,.0f} messages a second",
    "size": f"has at most {LARGEST_MESSAGE_BYTES >> 20} MiB",
    "unread": f"at most {service._UNREAD_BYTES >> 20} MiB of a site's messages that it has not read yet",
    "unread of all": f"an equal share of {service._MOST_UNREAD_BYTES >> 20} MiB",
    "waiting": f"At most {outgoing.MOST_WAITING_BYTES >> 20} MiB of messages and {outgoing.MOST_WAITING_VECTORS} sets",
    "stalled": f"reads nothing for {NUMBERS[int(outgoing.STALLED_SECONDS)]} is disconnected",
    "recorded": f"can send {pace.RECORDED.burst:.0f} messages about joins, withdrawals and results at once, and then "
    f"{pace.RECORDED.each_second:.0f} a second",
    "upkeep": f"can send {pace.UPKEEP.burst:.0f} messages about log checkpoints and renewals at once, and then "
    f"{pace.UPKEEP.each_second:.0f} a second",
    "space for logs": f"audit log or ledger, {durable.RECORDS_RESERVE_BYTES >> 20} MB must stay free",
    "space for models": f"records or models, {durable.MODELS_RESERVE_BYTES >> 20} MB must stay free",
    "restored": f"adds {history.RESTORED_STEP:,} to the identifiers of attempts",
    "attempts": f"misses {NUMBERS[taken_out.MOST_LATE_ATTEMPTS]} attempts in a row",
}


@pytest.mark.parametrize("limit", SENTENCES)
def test_a_limit_on_the_operators_page_is_the_codes(limit: str) -> None:
    """If a limit changes in the code, the page changes too."""
    assert SENTENCES[limit] in PAGE


def test_the_parts_of_an_upload_after_a_withdrawal_are_those_of_the_code() -> None:
    """An officer who withdraws reads how much the agent may still send, and for how long."""
    page = " ".join((ROOT / "docs" / "threat-model.md").read_text().split())

    assert f"up to {WINDOW} parts of about {4 * CHUNK_PARAMETERS >> 20} MiB can wait in the agent" in page
    assert f"for at most {2 * PARTING_SECONDS:.0f} seconds" in page  # to send the refusal, and to part
