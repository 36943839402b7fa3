"""`site-agent join`: keys and certificate, the trainer, then the agent's loop.

The table is checked before anything is sent anywhere. A trainer that was started here is ended here,
whatever ends the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from host.local_server import serving_pages
from host.restoring import refuse_unfinished
from host.state_format import settle_format
from pki import enrolment_decisions, store
from pki.invitation import Invitation
from pki.names import site_name
from pki.site_keys import SiteKeys
from protos.errors import ConfigurationError, OperatorError, ProtocolError, RefusedError, UnavailableError
from protos.wire.codec import decode_enrolment_reply, encode_enrolment_request
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_codec import decode_renewed, encode_renewal
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest
from site_agent.agent.connection import Connection, Credentials, call_enrol, call_renew
from site_agent.gate.loop import Agent
from site_agent.gate.mishaps import TrainerFailed
from site_agent.gate.separation import tell_separation
from site_agent.gate.site_log import AuditLog
from site_agent.gate.site_metrics import pages_of
from site_agent.gate.site_reloading import Reloading
from site_agent.gate.site_standing import Standing
from site_agent.gate.site_upkeep import SiteUpkeep, install_renewed, own_certificate_of, renewal_of, write_request
from site_agent.gate.status_socket import Told, telling
from site_agent.hospital import Hospital
from site_agent.trainer_socket import AgentEnd, Check, Failed

ENROLMENT_POLL_SECONDS: Final = 2.0
TRAINER_END_SECONDS: Final = 10.0
TRAINER_RESTART_SECONDS: Final = 15.0
WIDEST_CLOCK_DIFFERENCE_SECONDS: Final = 60.0


def now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


async def join(hospital: Hospital, path: Path, watch: Callable[[Standing], None] = lambda _: None) -> None:
    """Take part until the coordinator says that everything is over.

    Args:
        hospital: the configuration.
        path: its file, which the trainer reads itself, and which is read again on SIGHUP.
        watch: is given what the agent does, for a display.

    Raises:
        OperatorError: this site cannot or must not go on.
    """
    state = hospital.state_path
    refuse_unfinished(state)
    store.make_private_directory(state)
    store.hold_directory(state, "site agent")
    settle_format(state, "site agent")
    standing = Standing(now)
    reloading = Reloading(path, hospital, standing)
    handle_signals(reloading)
    audit = AuditLog(state / "audit.log", site=hospital.site, now=now, limits=hospital.audit.limits)
    standing.may_read_patients = not tell_separation(hospital)
    told = Told(hospital.site, state, standing, version("global-layers"), now)
    watch(standing)
    stopped = "The site agent did not start; nothing left this site."
    metrics = serving_pages(hospital.metrics_listen, pages_of(told, state), consequence=stopped, file="hospital.yaml")
    async with telling(state, told, standing), metrics:
        with _trainer(hospital, path) as start_trainer:
            trainer = await start_trainer()
            await check_table(trainer)
            standing.phase, standing.trainer = "enrolling", "idle"
            keys, address = await enrolled_keys(hospital, audit)
            audit.sign_with(keys.identity_key())
            upkeep = SiteUpkeep(site=hospital.site, keys=keys, audit=audit, witness=state / "witness", now=now)
            agent = Agent(
                hospital,
                identity_key=keys.identity_key(),
                trainer=trainer,
                audit=audit,
                connect=lambda: _connection(reloading.hospital.coordinator or address, keys, standing, upkeep),
                software=version("global-layers"),
                renew_trainer=start_trainer,
                standing=standing,
                upkeep=upkeep,
            )
            reloading.tell = agent.adopt
            standing.phase = "connecting"
            try:
                await agent.run()
            except RefusedError as refused:
                raise _put_back(keys, audit, refused) from refused


def _connection(address: str, keys: SiteKeys, standing: Standing, upkeep: SiteUpkeep) -> Connection:
    """A stream to the coordinator with the keys as they are now; whoever waits hears when it is taken."""
    standing.address = address
    credentials = Credentials(
        key=store.read_secret(keys.tls_key_path),
        chain=store.read_public(keys.certificate_path),
        root=store.read_public(keys.root_certificate_path),
    )

    def accepted(their_seconds: float | None) -> None:
        standing.connected()
        upkeep.accepted()
        apart = 0.0 if their_seconds is None else now().timestamp() - their_seconds
        if abs(apart) > WIDEST_CLOCK_DIFFERENCE_SECONDS:
            structlog.get_logger().warning("clock_differs", seconds=round(apart, 1))

    return Connection(address, credentials, accepted)


async def check_table(trainer: AgentEnd) -> None:
    """Have the trainer read the table before anything is sent anywhere."""
    answer = await trainer.ask(Check())
    if isinstance(answer, Failed):
        raise TrainerFailed(answer)


async def enrolled_keys(hospital: Hospital, audit: AuditLog) -> tuple[SiteKeys, str]:
    """The site's keys with a certificate, and the coordinator's address; enrols where need be.

    Raises:
        ConfigurationError: there is neither a certificate nor an invitation.
        RefusedError: the coordinator refuses the invitation.
    """
    directory = hospital.state_path / "keys"
    keys = SiteKeys.load(directory) if SiteKeys.exists(directory) else SiteKeys.create(directory)
    record = directory / "federation.json"
    if not keys.is_enrolled():
        invitation = _invitation(hospital)
        # The address first: a power cut after the certificate would leave a member that cannot call.
        addresses = {"coordinator": str(invitation.coordinator), "enrolment": str(invitation.enrolment)}
        store.write_public(record, json.dumps(addresses).encode())
        await _enrol(keys, invitation, audit)
    if keys.expiry() <= now():
        await _renew_apart(keys, hospital, json.loads(store.read_public(record)), audit)
    return keys, hospital.coordinator or json.loads(store.read_public(record))["coordinator"]


async def renew_now(hospital: Hospital) -> SiteKeys:
    """Get the next certificate at once, with a new key, while no agent of this site runs; the keys as they then are.

    Raises:
        OperatorError: this site has no certificate, an agent runs, or the enrolment port does not answer or refuses.
    """
    state = hospital.state_path
    if not SiteKeys.exists(state / "keys") or not SiteKeys(state / "keys").is_enrolled():
        raise ConfigurationError(
            what="This site has no certificate that could be renewed.",
            consequence="Nothing was sent.",
            remedy="Get the first one with `site-agent join`.",
        )
    held = store.hold_directory(state, "site agent")
    try:
        keys = SiteKeys.load(state / "keys")
        log, key = state / "audit.log", keys.identity_key()
        audit = AuditLog(log, site=hospital.site, now=now, identity_key=key, limits=hospital.audit.limits)
        record = json.loads(store.read_public(state / "keys" / "federation.json"))
        try:
            await _renew_apart(keys, hospital, record, audit)
        finally:
            audit.close()
    finally:
        os.close(held)
    return keys


async def _renew_apart(keys: SiteKeys, hospital: Hospital, record: dict[str, str], audit: AuditLog) -> None:
    """Get the next certificate on the enrolment port: the last one expired over a holiday, say, or a person wants it.

    Raises:
        RefusedError: this site is no member any more.
        UnavailableError: the enrolment port is closed or does not answer.
    """
    address = record.get("enrolment")  # a record of an earlier version does not have it
    if address is None:
        address = str(Invitation.load(Path(hospital.invitation)).enrolment) if hospital.invitation else ""
    asked = own_certificate_of(keys, hospital.site) or renewal_of(keys, hospital.site)
    write_request(audit, keys, asked)
    root = store.read_public(keys.root_certificate_path)
    try:
        answer = decode_renewed(await call_renew(address, root, encode_renewal(asked)))
    except MalformedMessage as malformed:
        raise ProtocolError(
            what=f"The enrolment port answered with something that is no answer: {malformed}.",
            consequence="This site's certificate is as it was; no data was touched.",
            remedy="Tell the federation office; start again when they have found the cause.",
        ) from malformed
    if answer.refusal:
        audit.write("renewal_refused", reason=answer.refusal)
        raise RefusedError(
            what=f"This site's certificate, which ends on {keys.expiry():%Y-%m-%d}, was not renewed: {answer.refusal}",
            consequence="It is as it was; no stream was opened and no data left this site.",
            remedy="Where its own authority issues it: `site-agent request-certificate`, then `site-agent "
            "install-certificate`. Otherwise ask the federation office whether this site is still a member.",
        )
    install_renewed(keys, answer, hospital.site, now(), audit)


def _put_back(keys: SiteKeys, audit: AuditLog, refused: RefusedError) -> OperatorError:
    """Where the coordinator refuses a renewed certificate that has never worked, the one before it counts again."""
    if not keys.has_previous():
        return refused
    keys.restore_previous(lambda sha256: audit.write("certificate_put_back", certificate_sha256=sha256))
    return UnavailableError(
        what="The coordinator does not accept this site's renewed certificate.",
        consequence="Nothing is lost; the certificate before it was put back.",
        remedy="Start the site agent again, and tell the federation office.",
    )


def _invitation(hospital: Hospital) -> Invitation:
    if hospital.invitation is None:
        raise ConfigurationError(
            what="This site has no certificate, and hospital.yaml names no invitation.",
            consequence="Nothing was sent.",
            remedy="Ask the federation office for an invitation and name its file under `invitation`.",
            code="E023",
        )
    invitation = Invitation.load(Path(hospital.invitation))
    invitation.check_not_expired(now())
    if invitation.site != hospital.site:
        raise ConfigurationError(
            what=f"The invitation is for {invitation.site}, hospital.yaml is for {hospital.site}.",
            consequence="Nothing was sent.",
            remedy="Use the invitation for this site, or correct `site`.",
        )
    return invitation


async def _enrol(keys: SiteKeys, invitation: Invitation, audit: AuditLog) -> None:
    """Ask for a certificate until a person at the federation office has approved it."""
    log = structlog.get_logger()
    request = enrolment_decisions.enrolment_request(invitation, keys.signing_request(), keys.identity_key())
    raw = encode_enrolment_request(
        EnrolmentRequest(request.token, request.signing_request, request.identity_public_key, request.signature)
    )
    identity = keys.identity_fingerprint()
    audit.write("enrolment_requested", federation=invitation.federation, identity=identity)
    has_told = False
    while True:
        invitation.check_not_expired(now())
        try:
            reply = await _asked(invitation, raw)
        except UnavailableError as gone:
            log.warning("enrolment_unavailable", what=gone.what)
            await asyncio.sleep(ENROLMENT_POLL_SECONDS)
            continue
        if reply.chain:
            break
        if not has_told:
            log.warning("enrolment_awaits_approval", identity=identity)
            has_told = True
        await asyncio.sleep(ENROLMENT_POLL_SECONDS)
    federation = invitation.federation
    keys.install(
        reply.chain,
        invitation.root_pem,
        site=site_name(invitation.site),
        federation=federation,
        now=now(),
        record=lambda sha256: audit.write(
            "enrolled", federation=federation, identity=identity, certificate_sha256=sha256
        ),
    )
    log.info("enrolled", federation=invitation.federation, identity=identity)


async def _asked(invitation: Invitation, raw: bytes) -> EnrolmentReply:
    """The coordinator's answer to a request, where it is no refusal."""
    try:
        reply = decode_enrolment_reply(await call_enrol(str(invitation.enrolment), invitation.root_pem, raw))
    except MalformedMessage as malformed:
        raise ProtocolError(
            what=f"The enrolment port answered with something that is no answer: {malformed}.",
            consequence="This site has no certificate; no data was touched.",
            remedy="Tell the federation office; start again when they have found the cause.",
        ) from malformed
    if reply.refusal:
        raise RefusedError(
            what=f"The coordinator refused the invitation: {reply.refusal}",
            consequence="This site has no certificate; no data was touched.",
            remedy="Ask the federation office for a new invitation.",
            code="E024",
        )
    return reply


@contextmanager
def _trainer(hospital: Hospital, path: Path) -> Iterator[Callable[[], Awaitable[AgentEnd]]]:
    """What starts a trainer, and another one when that has died: a service of its own where one is configured, else a
    child of this process, which ends with it."""
    children: list[tuple[subprocess.Popen[bytes], AgentEnd]] = []

    async def child() -> AgentEnd:
        _end(children)
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        words = [sys.executable, "-P", "-m", "site_agent.trainer", "--config", str(path), "--socket", str(descriptor)]
        end = AgentEnd(ours)
        # It has no service manager of its own: the agent's would take its words for the agent's.
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        started = subprocess.Popen(words, pass_fds=[descriptor], stdin=subprocess.DEVNULL, env=environment)
        children.append((started, end))
        theirs.close()
        return end

    async def service() -> AgentEnd:
        assert hospital.trainer_socket is not None
        return await _connected(hospital.trainer_socket)

    try:
        yield child if hospital.trainer_socket is None else service
    finally:
        _end(children)


async def _connected(place: str) -> AgentEnd:
    """The end of the socket of a trainer's service; one that has just died is given time to be started again."""
    deadline = asyncio.get_running_loop().time() + TRAINER_RESTART_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(place)
            return AgentEnd(connection)
        except OSError as cause:
            connection.close()
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    what=f"The trainer does not listen on {place}: {cause.strerror}.",
                    consequence="Nothing left this site.",
                    remedy="Start the service site-trainer, then start the site agent again.",
                    code="E027",
                ) from cause
        await asyncio.sleep(0.2)


def _end(children: list[tuple[subprocess.Popen[bytes], AgentEnd]]) -> None:
    """Hang up, so that they end by themselves; nobody waits for ever."""
    while children:
        child, end = children.pop()
        end.close()
        try:
            child.wait(TRAINER_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def handle_signals(reload: Callable[[], None]) -> None:
    """SIGTERM and SIGINT cancel what is running, so that every context is left in order; SIGHUP reloads."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, reload)
