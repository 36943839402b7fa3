"""An attacker in one process of a site gets only that process's power, over drawn sequences of messages."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pki.enrolment_decisions import ENROLMENT_LABEL, RENEWAL_LABEL
from pki.identity_key import public_bytes, verify
from protos.errors import OperatorError, RefusedError
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Announcement, Chunk, Hello, Join, KeyAdvert, SiteMessage
from protos.wire.upkeep_messages import KeptHead, LogHeads, RenewalAsked, Upkeep
from site_agent.approving import approve
from site_agent.framed_messages import packed
from site_agent.gate import loop, waiting
from site_agent.gate_socket import WINDOW, Down, Look, Make, Requested, Shown
from tests.federation import identity_key, masked_plan
from tests.hostile.taken_over import NOW, Gate, TakenOverAgent, gate_at, whole
from tests.rehearsal.federation import Office

STEPS = 60


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that connects again does so at once."""
    monkeypatch.setattr(loop, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(loop, "LONGEST_WAIT_SECONDS", 0.002)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    """What the agent's folder of site a holds: a certificate that is due for renewal, and a request for a new key."""
    office = Office.found(tmp_path_factory.mktemp("office"), now=NOW - timedelta(days=40))
    keys = office.enrol("a", now=NOW - timedelta(days=35))
    chain, root = keys.certificate_path.read_bytes(), keys.root_certificate_path.read_bytes()
    return chain, root, keys.next_signing_request()


def played(folder: Path, files: tuple[bytes, ...], seed: int, *, is_approved: bool) -> tuple[Gate, TakenOverAgent]:
    """A gate whose agent is a driver for this number of turns."""
    plan = masked_plan("abc")
    if is_approved:
        approve(folder, plan, by="A. Jones", at=datetime(2026, 1, 1, tzinfo=UTC))

    async def scene() -> tuple[Gate, TakenOverAgent]:
        async with gate_at(folder, plan, "a") as gate:
            driver = TakenOverAgent(gate, plan, files, seed)
            await driver.run(STEPS)
            error = gate.error()
            assert error is None or isinstance(error, OperatorError), error
            return gate, driver

    return asyncio.run(scene())


@pytest.mark.parametrize("is_approved", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_number_leaves_without_a_set_of_sites(
    tmp_path: Path, files: tuple[bytes, ...], seed: int, *, is_approved: bool
) -> None:
    """What an agent makes up has no signatures of other sites, and without an approval the trainer is not asked."""
    gate, driver = played(tmp_path, files, seed, is_approved=is_approved)

    assert is_approved or gate.trainer.trained == []
    assert [said for said in gate.said if isinstance(said, Chunk if is_approved else Chunk | Join | KeyAdvert)] == []
    assert driver.most_waiting <= WINDOW + 2


def test_the_identity_key_signs_this_sites_renewals_and_nothing_else(tmp_path: Path, files: tuple[bytes, ...]) -> None:
    """Over all draws each signature that a request carries is one for site a, under one label."""
    key, asked = public_bytes(identity_key("a")), list[RenewalAsked]()
    for seed in range(30):
        gate, _ = played(tmp_path / str(seed), files, seed, is_approved=False)
        asked += [said for said in gate.said if isinstance(said, RenewalAsked)]

    assert asked
    for one in asked:
        request = hashlib.sha256(one.signing_request).digest()
        verify(key, one.signature, RENEWAL_LABEL, b"heart", b"a", request)
        with pytest.raises(RefusedError):
            verify(key, one.signature, ENROLMENT_LABEL, b"heart", b"a", request)
        with pytest.raises(RefusedError):
            verify(key, one.signature, RENEWAL_LABEL, b"heart", b"b", request)


def test_logs_and_certificates_do_not_wait_for_an_approval(
    tmp_path: Path, files: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a plan waits for persons, the gate answers messages about logs, and requests a certificate that is due."""
    monkeypatch.setattr(waiting, "APPROVAL_POLL_SECONDS", 0.01)
    plan = masked_plan("abc")

    async def scene() -> list[SiteMessage | Upkeep]:
        async with gate_at(tmp_path, plan, "a") as gate:
            for message in (Announcement(plan.run_name, plan.canonical), LogHeads(KeptHead(), KeptHead())):
                while not gate.has_stream or gate.waiting:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                gate.write(whole(Down(1, encode_coordinator_message(message))))
            for _ in range(100):
                await asyncio.sleep(0.01)
                for order in gate.read():
                    match order:
                        case Make():
                            gate.write(whole(Requested(files[2])))
                        case Look():
                            gate.write(whole(Shown("", "", packed(files[:2]))))
            assert gate.error() is None
            return gate.said

    said = asyncio.run(scene())

    # Heads go out once a second too, so on a slow machine more than one has gone.
    kinds = [type(message) for message in said if not isinstance(message, Hello)]
    assert (kinds[0], kinds.count(RenewalAsked), {*kinds}) == (LogHeads, 1, {LogHeads, RenewalAsked})
