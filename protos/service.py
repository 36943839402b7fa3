"""The table of calls: name, request, reply, streaming or not."""

from __future__ import annotations

from typing import Final

PARTICIPATE: Final = "/global_layers.v1.Federation/Participate"  # stream of messages both ways
ENROL: Final = "/global_layers.v1.Enrolment/Enrol"  # one request, one reply
