"""The table of remote calls: name, request, reply, and whether they stream.

These are all the calls that there are; a port answers any other name with "unimplemented".
"""

from __future__ import annotations

from typing import Final

PARTICIPATE: Final = "/global_layers.v1.Federation/Participate"  # stream of messages both ways
ENROL: Final = "/global_layers.v1.Enrolment/Enrol"  # one request, one reply
RENEW: Final = "/global_layers.v1.Enrolment/Renew"  # likewise, for a site whose certificate has expired
HEALTH: Final = "/grpc.health.v1.Health/Check"  # the usual health service, on loopback only

# Metadata by which the coordinator answers a stream that it has taken: its time, in seconds since 1970 in UTC.
COORDINATOR_TIME: Final = "coordinator-time"
