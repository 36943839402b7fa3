"""Runs the coordinator as a service: opens network ports and sockets, and reacts to signals of the operating system.

Everything runs on one event loop. However the program ends, it stops all that it started.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import sdnotify
import structlog

from coordinator.commands.configuration import CoordinatorConfiguration
from coordinator.network.control_socket import control_path, control_server
from coordinator.network.coordinator_upkeep import SiteUpkeep
from coordinator.network.enrolment_calls import Membership
from coordinator.network.service import FederationService, enrolment_server, federation_server
from coordinator.rounds.engine import Engine
from coordinator.storage.history import store_path
from host.address_checks import taken_addresses
from host.audit_log import AuditLog
from host.durable import unusable_state
from host.secret_files import hold_directory
from host.starting_files import starting_values
from pki.authority import Authority
from pki.register import Register
from protos.errors import ConfigurationError, OperatorError
from protos.plan.plan import Plan

REGISTER_POLL_SECONDS: Final = 0.5
_CERTIFICATE_SECONDS: Final = 3600.0  # how often the coordinator checks whether its own certificate is due
_STOPPING_SECONDS: Final = 3.0


@dataclass(frozen=True)
class _Parts:
    authority: Authority
    membership: Membership
    engine: Engine
    upkeep: SiteUpkeep
    service: FederationService
    servers: tuple[Any, ...]


def _require_free(configuration: CoordinatorConfiguration) -> None:
    for listen in (configuration.listen, configuration.enrolment_listen):
        if listen is not None and (taken := taken_addresses(listen)):
            raise ConfigurationError(
                what=f"Another program already uses the address {listen}, at {' and '.join(taken)}.",
                consequence="The coordinator did not start. No site was contacted.",
                remedy="Find the other program with `ss -ltnp` and stop that program, or choose another address in "
                "coordinator.yaml.",
                code="E028",
            )


def _put_together(
    configuration: CoordinatorConfiguration, plans: tuple[Plan, ...], state: Path, stack: ExitStack
) -> _Parts:
    _require_free(configuration)
    authority = Authority.load(Path(configuration.authority))
    register = stack.enter_context(Register(authority.register_path))
    log = AuditLog(store_path(state), site=None, now=lambda: datetime.now(UTC))
    stack.enter_context(closing(log))
    log.write("coordinator_started", plans=[plan.digest.hex() for plan in plans])
    membership = Membership(authority, register, lambda: datetime.now(UTC), log.write)
    starts = partial(starting_values, Path(configuration.starting_files))
    identity_of, revoked = membership.identity_of, membership.revoked
    engine = Engine(plans=plans, log=log, identity_of=identity_of, clock=time.monotonic, revoked=revoked, starts=starts)
    upkeep = SiteUpkeep(log, renew=membership.renew, confirm=membership.confirm)
    service = FederationService(engine, identify=membership.identify, is_accepted=membership.is_accepted, upkeep=upkeep)
    fetch, most = membership.credentials, max((len(plan.sites) for plan in plans), default=1)
    servers = [federation_server(service, fetch, configuration.listen, sites=most)]
    if (listen := configuration.enrolment_listen) is not None:
        servers.append(enrolment_server(membership.enrol, membership.renew_raw, fetch, listen))
    return _Parts(authority, membership, engine, upkeep, service, tuple(servers))


async def serve(configuration: CoordinatorConfiguration, plans: tuple[Plan, ...]) -> bool:
    """Run all plans of the coordinator. Return whether each plan was completed or ended by a person.

    Raises:
        OperatorError: an address, a key or a directory is wrong or has wrong content.
    """
    state = make_state_directory(configuration)
    hold_directory(state, "coordinator")
    with ExitStack() as stack:
        parts = _put_together(configuration, plans, state, stack)
        engine, servers = parts.engine, parts.servers
        control = await control_server(engine, partial(_told, engine, parts.authority), state)
        notifier = sdnotify.SystemdNotifier()
        try:
            for server in servers:
                await server.start()
            if plans:
                engine.start()
            stop = _stop_on_signals()
            structlog.get_logger().info("coordinator_listening", address=configuration.listen)
            notifier.notify("READY=1")
            watch = asyncio.create_task(_watch(parts, notifier))
            try:
                await _until_over(engine, stop, watch, configuration.stay_seconds)
            finally:
                watch.cancel()
        finally:
            notifier.notify("STOPPING=1")
            engine.stop()
            # Also if the start fails: a server that is not stopped prints a traceback when Python ends.
            await asyncio.gather(*(server.stop(_STOPPING_SECONDS) for server in servers))
            control.close()
            control_path(state).unlink(missing_ok=True)
    return _ended_well(engine)


def _ended_well(engine: Engine) -> bool:
    if engine.failure is not None:
        raise engine.failure
    if not engine.finished.is_set():  # a request to stop; nothing failed
        kept = "The run's records, its snapshots and the register are kept."
        structlog.get_logger().info("coordinator_stopped", kept=kept, remedy="`coordinator start` continues the run.")
        return True
    if any(outcome.is_void for outcome in engine.outcomes):
        raise OperatorError(
            what=f"The study is void: {engine.outcomes[-1].reason}.",
            consequence="This sum is random and was not used. It does not show which site it was, or why.",
            remedy="Ask every hospital to read the reason in its trainer's log (`journalctl -u site-trainer`, or the "
            "terminal of `site-agent join`), and agree on a new version of the plan. `site-agent audit show` has only "
            "the kind of reason.",
            code="E034",
        )
    return all(outcome.is_complete or outcome.is_by_person for outcome in engine.outcomes)


async def _until_over(engine: Engine, stop: asyncio.Task[bool], watch: asyncio.Task[None], stay_seconds: float) -> None:
    """Wait until all runs are over or a person ends this program. Then wait until all sites are informed."""
    await _first_of(engine.finished, stop, watch, None)
    if stop.done() or engine.failure is not None:
        return
    ending = engine.ending
    if not ending.all_heard.is_set():
        structlog.get_logger().info("end_to_be_told", sites=ending.awaited, longest_seconds=stay_seconds)
    await _first_of(ending.all_heard, stop, watch, stay_seconds)


async def _first_of(
    event: asyncio.Event, stop: asyncio.Task[bool], watch: asyncio.Task[None], seconds: float | None
) -> None:
    """Wait for an event, a request to stop, the end of the watching task, or the end of this time."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, stop, watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if watch.done():
        watch.result()


async def _watch(parts: _Parts, notifier: sdnotify.SystemdNotifier) -> None:
    looked_at = -math.inf
    while True:
        if time.monotonic() - looked_at > _CERTIFICATE_SECONDS:
            looked_at = time.monotonic()
            parts.membership.renew_own()
        await asyncio.sleep(REGISTER_POLL_SECONDS)
        if parts.membership.has_changed():
            parts.service.recheck()
        parts.upkeep.tick()
        parts.membership.tick()
        status = parts.engine.status()
        run = status["run"]
        text = f"{run['run']}: round {run['rounds_made']} of {run['rounds']}, {run['phase']}" if run else "idle"
        if unaware := parts.engine.ending.unaware:
            text = f"all studies are over, not informed yet: {', '.join(unaware)}"
        text = status["trouble"] or text
        notifier.notify(f"WATCHDOG=1\nSTATUS={text}")


def _stop_on_signals() -> asyncio.Task[bool]:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return asyncio.create_task(stop.wait())


# Any: every type that JSON has
def _told(engine: Engine, authority: Authority) -> dict[str, Any]:
    facts, now = engine.status(), datetime.now(UTC)
    try:
        with Register(authority.register_path) as register:
            newest, own = register.newest_certificates(), authority.coordinator_leaf().not_valid_after_utc
    except OperatorError:  # a file is being replaced, or the disk has an error; `coordinator doctor` finds it
        return facts | {"coordinator_certificate_days": None}
    for name, site in facts["sites"].items():
        site["certificate_days"] = _days(newest[name].not_valid_after_utc - now) if name in newest else None
    return facts | {"coordinator_certificate_days": _days(own - now)}


def _days(left: timedelta) -> float:
    return round(left.total_seconds() / 86400, 2)


def make_state_directory(configuration: CoordinatorConfiguration) -> Path:
    """Create the coordinator's state directory, which only its own user account can open (mode 0700).

    Raises:
        ConfigurationError: the directory cannot be created or written, or a restore of it is unfinished.
        UnavailableError: its disk is full.
    """
    state = Path(configuration.state)
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(state, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as cause:
        what = f"The state directory {state} cannot be used: {cause.strerror}."
        stopped = "The coordinator did not start."
        raise unusable_state(cause, what=what, consequence=stopped, file="coordinator.yaml") from cause
    return state
