"""A release is one transaction: audit record, masked vector, noise and payment are on disk together, or none is."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from host.record_store import Store, StoreError
from protos.masking.answered_sets import Answer
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Chunk, Stage
from site_agent.gate.door import Contribution, Gate
from site_agent.gate.masked_steps import MaskedSteps
from site_agent.gate.privacy_ledger import PrivacyLedger
from tests.for_each import for_each
from tests.protos.privacy.private_plans import PROMISE, private_network_plan
from tests.rehearsal.gates import NOON, gate_for, keys_of, policy_with, sealed

LIMITS = {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.0, "delta": PROMISE["delta"]}
NAMES = ("a", "b", "c", "d")
Keys = dict[str, Ed25519PrivateKey]


def _plan_and_keys() -> tuple[Plan, Keys]:
    keys, identities = keys_of(NAMES)
    sites = [{"name": name, "identity": identity} for name, identity in identities.items()]
    return private_network_plan(rounds=60, sites=sites), keys


@contextmanager
def begun(plan: Plan, keys: Keys, folder: Path) -> Iterator[tuple[Gate, AuditLog]]:
    """The gate of site a in a process that starts, with new masking keys."""
    with closing(AuditLog(folder / "gate.sqlite", site="a", now=lambda: NOON)) as audit:
        others = {name: Store(folder / "others" / name) for name in NAMES[1:]}
        masking = sealed(plan, keys, {"a": audit.store, **others})
        for other in others.values():
            other.close()
        yield gate_for(plan, audit, folder, policy=policy_with(privacy=LIMITS), masking=masking), audit


def built(gate: Gate, plan: Plan, number: int = 0) -> Contribution:
    """What the gate makes of a trainer's zeros in a round."""
    exchange = Exchanges(plan, manifest_of(plan)).of(number, Stage.TRAINING, b"")
    payload = memoryview(np.zeros(len(exchange.scalars), "<i8").tobytes())
    return gate.build(bytes([number + 1]) * 32, exchange, payload, rows=0)


def released(gate: Gate, plan: Plan, number: int = 0, attempt: int = 0) -> list[Chunk]:
    """The chunks that leave in a round."""
    return list(gate.release(built(gate, plan, number), Bind(number, attempt, plan.site_names, 0)))


def _steps_in(path: Path) -> list[tuple[int, int]]:
    with closing(AuditLog(path, site="a", now=lambda: NOON)) as log:
        for _ in log.checked():
            pass
        records = log.records("contribution_released")
        (PrivacyLedger(log), MaskedSteps(log.store, Answer("run", frozenset(), "rule")))  # there may be no tables yet
        masked = log.store.read("SELECT step, attempt, hex(position) FROM masked ORDER BY step, attempt")
        noise = log.store.read("SELECT DISTINCT hex(position) FROM noise")
        assert [(one["round"], one["attempt"], one["position"].upper()) for one in records] == masked
        assert {position for (position,) in noise} == {position for _, _, position in masked}
        assert len(log.records("privacy_spent")) == min(1, len(noise))
        return [(one["round"], one["attempt"]) for one in records]


def test_a_release_is_one_transaction_with_one_sync(tmp_path: Path) -> None:
    """It is complete before the first chunk. The chunks write nothing more."""
    plan, keys = _plan_and_keys()
    with begun(plan, keys, tmp_path) as (gate, audit):
        contribution, said = built(gate, plan), list[str]()
        audit.store._connection.set_trace_callback(said.append)

        chunks = gate.release(contribution, Bind(0, 0, plan.site_names, 0))

        assert [word for word in said if word.startswith(("BEGIN", "COMMIT", "PRAGMA"))] == [
            "PRAGMA synchronous=FULL", "BEGIN IMMEDIATE", "COMMIT",
        ]  # fmt: skip
        said.clear()
        assert list(chunks)
        assert said == []

    assert _steps_in(tmp_path / "gate.sqlite") == [(0, 0)]


@contextmanager
def full(audit: AuditLog) -> Iterator[None]:
    """No page is free for the file."""
    ((pages,),) = audit.store.read("PRAGMA page_count")
    audit.store.read(f"PRAGMA max_page_count = {pages}")
    yield
    audit.store.read("PRAGMA max_page_count = 1000000")


@contextmanager
def locked(audit: AuditLog) -> Iterator[None]:
    """Another program does not end its transaction."""
    audit.store.read("PRAGMA busy_timeout = 100")
    with closing(sqlite3.connect(audit.store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def read_only(audit: AuditLog) -> Iterator[None]:
    """The disk takes no more writes."""
    audit.store.read("PRAGMA query_only = ON")
    yield
    audit.store.read("PRAGMA query_only = OFF")


@pytest.mark.parametrize("fault", [full, locked, read_only])
def test_what_cannot_be_recorded_does_not_leave(
    tmp_path: Path, fault: Callable[[AuditLog], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the release is recorded, and three sentences are given. Without the fault the same bytes leave."""
    plan, keys = _plan_and_keys()
    with begun(plan, keys, tmp_path) as (gate, audit):
        contribution = built(gate, plan)
        monkeypatch.setattr(audit, "_every", {"software": "x" * 5000})  # so that the record needs a page

        with fault(audit), pytest.raises(StoreError) as refused:
            gate.release(contribution, Bind(0, 0, plan.site_names, 0))

        assert refused.value.remedy
        assert audit.head.count == 0
        assert list(gate.release(contribution, Bind(0, 0, plan.site_names, 0)))

    assert _steps_in(tmp_path / "gate.sqlite") == [(0, 0)]


def test_a_store_that_was_cut_is_refused_or_contradicts_itself_nowhere(tmp_path: Path) -> None:
    """Cut at any byte, the file is refused, or it is a beginning of what was there."""
    plan, keys = _plan_and_keys()
    with begun(plan, keys, tmp_path) as (gate, _):
        for number in range(20):
            released(gate, plan, number)
    path, generator = tmp_path / "gate.sqlite", random.Random(1)
    content, whole = path.read_bytes(), _steps_in(path)
    refused = 0
    for cut in (0, 100, 4096, *(generator.randrange(len(content)) for _ in range(30))):
        path.write_bytes(content[:cut])
        try:
            found = _steps_in(path)
        except StoreError:
            refused += 1
        else:
            assert found == whole[: len(found)], cut

    assert len(whole) == 20
    assert refused


@for_each("seed", range(4))
def test_a_copy_of_a_running_gate_is_refused_or_contradicts_itself_nowhere(tmp_path: Path, seed: int) -> None:
    """The documented copy is made after a stop. Another one is never wrong in silence."""
    plan, keys = _plan_and_keys()
    generator, copy = random.Random(seed), tmp_path / "copy" / "gate.sqlite"
    copy.parent.mkdir()
    with begun(plan, keys, tmp_path) as (gate, _):
        for number in range(generator.randrange(3, 20)):
            released(gate, plan, number)
        shutil.copy(tmp_path / "gate.sqlite", copy)
        released(gate, plan, 30)
        if generator.random() < 0.7:
            shutil.copy(tmp_path / "gate.sqlite-wal", copy.with_name("gate.sqlite-wal"))

    with suppress(StoreError):
        found = _steps_in(copy)
        assert found == _steps_in(tmp_path / "gate.sqlite")[: len(found)]


def test_a_process_that_starts_again_masks_a_step_only_for_the_same_vector(tmp_path: Path) -> None:
    """It sends the recorded noise again, and pays once. A vector with other noise is refused."""
    plan, keys = _plan_and_keys()
    with begun(plan, keys, tmp_path) as (gate, _):
        other = built(gate, plan)
        (first,) = released(gate, plan)

    with begun(plan, keys, tmp_path) as (gate, _):
        with pytest.raises(MaskingRefused) as refused:
            gate.release(other, Bind(0, 1, plan.site_names, 0))
        (second,) = released(gate, plan, attempt=1)

    assert refused.value.reason is Reason.OTHER_VECTOR
    assert bytes(first.body) != bytes(second.body)
    assert _steps_in(tmp_path / "gate.sqlite") == [(0, 0), (0, 1)]
