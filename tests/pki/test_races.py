"""One invitation with many users at once: exactly one wins."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

from pki.authority import Authority
from pki.enrolment_decisions import Issued, enrolment_request, handle_request, invite_site
from pki.names import SiteName
from pki.register import Register
from protos.errors import RefusedError
from protos.wire.upkeep_messages import EnrolmentRequest
from tests.pki.whole_site import SiteKeys

RACERS = 4


def race(authority: Authority, path: Path, now: datetime, requests: list[EnrolmentRequest]) -> list[bool]:
    """Let each request run through a register of its own, all released at the same moment; who got a certificate."""
    gate = threading.Barrier(len(requests))

    def run(request: EnrolmentRequest) -> bool:
        with Register(path) as register:
            gate.wait()
            try:
                return isinstance(handle_request(authority, register, request, now), Issued)
            except RefusedError:
                return False

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(run, requests))


def winners_of(tries: int, authority: Authority, folder: Path, now: datetime) -> list[int]:
    """The number of callers that won each of this number of invitations."""
    path = folder / "register.sqlite"
    keys = [SiteKeys.create(folder / f"racer-{number}") for number in range(RACERS)]
    won = []
    with Register.create(path) as register:
        for number in range(tries):
            site = SiteName(f"site-{number}")
            invitation = invite_site(
                authority, register, site, valid_for=timedelta(hours=1), is_pre_approved=True, now=now
            )
            for one in keys:
                one.tls_key_path.unlink()
                one.identity_key_path.unlink()
                SiteKeys.create(one.directory)
            made = [enrolment_request(invitation, one.signing_request(), one.identity_key()) for one in keys]
            won.append(sum(race(authority, path, now, made)))
            assert len(register.site(site).accepted_certificates) == 1
    return won


def test_of_all_that_race_for_an_invitation_one_wins(authority: Authority, tmp_path: Path, now: datetime) -> None:
    """Four keys at once, each through a connection of its own: one certificate."""
    assert winners_of(10, authority, tmp_path, now) == [1] * 10
