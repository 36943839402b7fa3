"""An attacker who controls a trainer, or a coordinator that passed the agent's checks, at the one exit of a site. The
gate checks each contribution again: limits, contributors, numbers, rows. The attacker wants a chunk that must not
leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from host.audit_log import AuditLog
from host.record_store import StoreError
from protos.errors import OperatorError
from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Chunk, SiteReason, Stage
from site_agent.approving import withdraw
from site_agent.gate.consent import Consent
from site_agent.gate.door import Builder
from site_agent.gate.permission import GateRefusal, Permission
from tests.hostile.attack import Attack, Weakened, in_copy, patched, scratch
from tests.logged import lines_of
from tests.rehearsal.gates import NOON, gate_for, policy_with
from tests.rehearsal.study import SITES, made_up_identities, plan_with

ALL = tuple(SITES)
BIND = Bind(0, 0, ALL, 0)
NAMES = made_up_identities()


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The output of a trainer, and the request to the gate; by default, both are correct."""

    plan: Plan = field(default_factory=lambda: plan_with(NAMES))
    bind: Bind = BIND
    policy: Mapping[str, Any] = field(default_factory=dict)
    value: float = 1.0
    number: int = 0
    rows: int = 16


def contributed(folder: Path, made: Contribution, between: Callable[[int], None] = lambda index: None) -> list[Chunk]:
    """Return the chunks that leave through a gate; `between` acts after each of them. Raise GateRefusal for a void."""
    plan, bind = made.plan, made.bind
    log = AuditLog(folder / "audit.log", site="a", now=lambda: NOON)
    try:
        gate = gate_for(plan, log, folder, policy=policy_with(**made.policy))
        exchange = Exchanges(plan, manifest_of(plan)).of(bind.round, Stage.TRAINING, b"")
        scalars = sum(scalar.name != "rows" for scalar in exchange.scalars)
        updates = np.full(exchange.layout.parameters, made.value, "<f4").tobytes()
        payload = memoryview(updates + np.full(scalars, made.number, "<i8").tobytes())
        built = gate.build(bytes(32), exchange, payload, rows=made.rows)
        if built.void is not None:
            raise GateRefusal(what="a void", reason=built.void)
        chunks = []
        for chunk in gate.release(built, bind):
            chunks.append(chunk)
            between(chunk.index)
        return chunks
    finally:
        log.close()


def _without_limits_at_the_gate() -> AbstractContextManager[None]:
    return patched(Permission, forbidden=lambda *facts: ())


BEYOND: Mapping[str, tuple[Contribution, str]] = {
    "no masks": (Contribution(policy={"secure_aggregation": "required"}), "turns it off"),
    "fewer sites": (
        Contribution(policy={"smallest_sites": 3}, bind=Bind(0, 0, ("a", "b"), 0)),
        "not exactly the sites of the plan",
    ),
    "without this site": (Contribution(bind=Bind(0, 0, ("b", "c"), 0)), "not exactly the sites of the plan"),
    "an unlisted site": (Contribution(bind=Bind(0, 0, ("a", "b", "c", "d"), 0)), "not exactly the sites of the plan"),
    "more rounds": (Contribution(policy={"largest_rounds": 1}), "the policy allows 1"),
    "more bytes": (Contribution(policy={"largest_megabytes": 90e-6}), "MB would be sent"),
    "a wider range": (Contribution(policy={"largest_clipping_range": 4.0}), "clipping range"),
    "no training here": (Contribution(policy={"tier": "evaluation"}), "the policy allows at most evaluation"),
}


def beyond_the_limits(weakened: bool, kind: str) -> bool:
    """Release a contribution that breaks the policy, as if no earlier check existed."""
    made, reason = BEYOND[kind]
    with scratch() as folder, in_copy(weakened, _without_limits_at_the_gate):
        try:
            return bool(contributed(folder, made))
        except OperatorError as error:
            refused = error
        assert reason in refused.what
        log = "\n".join(lines_of(folder / "audit.log"))
        assert log.count('"release_refused"') == 1
        assert "contribution_released" not in log
        return False


def refused_at_the_gate(
    weakened: bool, made: Contribution, without: Callable[[], AbstractContextManager[None]], reason: SiteReason
) -> bool:
    """Release data that must not leave; the gate makes a void instead, for this reason."""
    with scratch() as folder, in_copy(weakened, without):
        try:
            return bool(contributed(folder, made))
        except GateRefusal as error:
            refused = error
        assert refused.reason is reason
        return False


def without_checked_values() -> AbstractContextManager[None]:
    """The gate encodes everything from the trainer, and does not count clipped values."""
    honest = FixedPoint.encode

    def encode(self: FixedPoint, update: npt.NDArray[np.float32], weight: float, out: npt.NDArray[np.int32]) -> int:
        honest(self, np.nan_to_num(update), weight, out)
        return 0

    return patched(FixedPoint, encode=encode)


def without_bounds_of_numbers() -> AbstractContextManager[None]:
    """The gate takes every number that the trainer has measured."""

    def scalars(self: Builder, exchange: Any, payload: memoryview, rows: int) -> list[int]:
        given = iter(np.frombuffer(payload, "<i8", offset=4 * exchange.layout.parameters).tolist())
        return [rows if scalar.name == "rows" else next(given) for scalar in exchange.scalars]

    return patched(Builder, _scalars=scalars)


def without_fewest_rows() -> AbstractContextManager[None]:
    """The gate takes every row count."""
    return patched(Builder, _weigh=lambda self, exchange, rows: 1.0)


def without_the_tier() -> AbstractContextManager[None]:
    """The gate lets a site that only evaluates train."""
    honest = Builder.__init__

    def of_a_trainer(self: Builder, plan: Plan, *, trains: bool, smallest_rows: int) -> None:
        honest(self, plan, trains=True, smallest_rows=smallest_rows)

    return patched(Builder, __init__=of_a_trainer)


def _evaluating() -> Plan:
    sites = [
        {"name": name, "identity": text, "tier": "evaluation" if name == "a" else "training"}
        for name, text in made_up_identities("abcd").items()
    ]
    return plan_with({}, changes={"sites": sites, "checkpoint": "global"})


def upload_after_a_withdrawal(weakened: bool) -> bool:
    """Go on with an upload of three chunks after the persons have withdrawn in its middle."""
    made = Contribution(plan=plan_with(NAMES, parameters=600_000))

    @contextmanager
    def without_the_approval() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Consent, "why_not", lambda self: None)
            yield

    with scratch() as folder, in_copy(weakened, without_the_approval):
        sent: list[int] = []

        def take_back(index: int) -> None:
            sent.append(index)
            if index == 0:
                withdraw(folder, made.plan, by="A. Jones", at=NOON)

        try:
            return len(contributed(folder, made, take_back)) == 3
        except OperatorError:
            assert sent == [0]  # the chunks that left, not the error
            return False


def release_without_a_record(weakened: bool) -> bool:
    """Send a contribution while the audit log cannot be written."""
    honest = AuditLog.write

    def full(self: AuditLog, event: str, **facts: Any) -> Any:
        if event != "contribution_released":
            return honest(self, event, **facts)
        raise StoreError(what="The audit log cannot be written: full.", consequence="Nothing left.", remedy="Room.")

    def lenient(self: AuditLog, event: str, **facts: Any) -> None:
        return None

    with scratch() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuditLog, "write", lenient if weakened else full)
        try:
            return bool(contributed(folder, Contribution()))
        except StoreError:
            return False


FAILED = SiteReason.TRAINER_FAILED
_ROWS = {"weighting": {"name": "rows", "largest_rows": 64}}


def _refused(
    name: str, what: str, made: Contribution, without: Weakened, missing: str, reason: SiteReason = FAILED
) -> Attack:
    run = partial(refused_at_the_gate, made=made, without=without, reason=reason)
    return Attack(f"gate-{name}", missing, run, f"a taken-over trainer hands out {what}")


ATTACKS = (
    *(
        Attack(
            name=f"gate-{kind.replace(' ', '-')}",
            tries=f"what got past all checks before the gate asks it for a release beyond the policy: {kind}",
            without="the gate's own look at the policy",
            run=partial(beyond_the_limits, kind=kind),
        )
        for kind in BEYOND
    ),
    Attack("gate-upload-after-a-withdrawal", "the approval", upload_after_a_withdrawal),
    Attack("gate-release-without-a-record", "the rule that a record comes before the act", release_without_a_record),
    _refused(
        "values-not-finite",
        "values that are not numbers",
        Contribution(value=float("nan")),
        without_checked_values,
        "the check of each value",
        SiteReason.VALUE_NOT_FINITE,
    ),
    _refused(
        "values-beyond-the-range",
        "values beyond the clipping range",
        Contribution(value=1e6),
        without_checked_values,
        "the check of each value",
        SiteReason.TOO_MUCH_CLIPPED,
    ),
    _refused(
        "numbers-beyond-their-bounds",
        "a measured number far beyond its bound",
        Contribution(plan=plan_with(NAMES, changes={"checkpoint": "global"}), bind=Bind(1, 0, ALL, 0), number=1 << 62),
        without_bounds_of_numbers,
        "the bounds of numbers",
    ),
    _refused(
        "too-few-rows",
        "an update of fewer rows than the policy allows",
        Contribution(plan=plan_with(NAMES, changes=_ROWS), policy={"smallest_training_rows": 16}, rows=1),
        without_fewest_rows,
        "the fewest rows",
    ),
    _refused(
        "update-of-an-evaluating-site",
        "an update at a site that only evaluates",
        Contribution(plan=_evaluating(), bind=Bind(0, 0, ("a", "b", "c", "d"), 0)),
        without_the_tier,
        "the tier",
    ),
)
