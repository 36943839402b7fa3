"""The one exit of a site: it refuses wrong contributions, and writes the log before a byte is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from host.audit_log import AuditLog
from protos.numbers.chunk_layout import Layout
from protos.numbers.short_integers import largest_integer
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import SiteReason, Stage
from site_agent.gate.door import Contribution, Gate
from tests.rehearsal.gates import gate_for
from tests.rehearsal.study import SITES, THREE_CHUNKS, made_up_identities, plan_with

POSITION = bytes(32)
ROWS = {"weighting": {"name": "rows", "largest_rows": 64}}


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    """An empty audit log."""
    log = AuditLog(tmp_path / "audit.log", site="a", now=lambda: datetime(2026, 3, 1, tzinfo=UTC))
    yield log
    log.close()


def exchange_of(plan: Plan, number: int = 0, stage: Stage = Stage.TRAINING, layers: bytes = b"") -> Exchange:
    """Return the data of a round."""
    return Exchanges(plan, manifest_of(plan)).of(number, stage, layers)


def built(gate: Gate, plan: Plan, update: npt.NDArray[np.float32], rows: int = 0) -> Contribution:
    """The contribution for an update in a round without scalars of the trainer's."""
    return gate.build(POSITION, exchange_of(plan), memoryview(update.astype("<f4")).cast("B"), rows=rows)


def answer(update: npt.ArrayLike, scalars: Sequence[int]) -> memoryview:
    """Return the output of a trainer."""
    return memoryview(np.asarray(update, "<f4").tobytes() + np.asarray(scalars, "<i8").tobytes())


def test_a_void_is_random_and_the_same_again(tmp_path: Path, audit: AuditLog) -> None:
    """Its integers follow from the site's secret and the step. Only its check has a form, in every chunk."""
    plan = plan_with(made_up_identities(), parameters=THREE_CHUNKS)
    gate, layout = gate_for(plan, audit, tmp_path), exchange_of(plan).layout
    nothing = np.full(THREE_CHUNKS, np.nan, np.float32)

    void, again = built(gate, plan, nothing), built(gate, plan, -nothing)
    other = gate.build(bytes([1]) * 32, exchange_of(plan), memoryview(b""), rows=0, void=SiteReason.DATA_UNFIT)

    assert void.buffer == again.buffer
    for index in range(layout.chunks):
        (check,) = layout.words(layout.body(void.buffer, index), index).tolist()
        assert (check % 2**32, (check >> 32) % 2) == (1, 1)
        numbers, others = (layout.updates(layout.body(one.buffer, index), index) for one in (void, other))
        # Of n random integers with 32 bits, n * n / 2**33 pairs are equal on average.
        assert len(np.intersect1d(numbers, others)) <= 100
        assert len(np.unique(numbers)) >= len(numbers) - 100


@pytest.mark.parametrize("parameters", [0, 9, 11, 20])
def test_a_change_of_another_length_is_refused_not_padded(tmp_path: Path, audit: AuditLog, parameters: int) -> None:
    """A payload that is not exactly as long as in the manifest is not sent."""
    plan = plan_with(made_up_identities())
    gate = gate_for(plan, audit, tmp_path)

    assert built(gate, plan, np.zeros(parameters, np.float32)).void is SiteReason.NETWORK_DIFFERS


@pytest.mark.parametrize(("clipped", "is_refused"), [(0, False), (100, False), (101, True), (1000, True)])
def test_too_much_clipping_stops_the_round(tmp_path: Path, audit: AuditLog, clipped: int, is_refused: bool) -> None:
    """Up to the agreed share values are clipped and counted; one more stops this site."""
    encoding = {"masking": {"clipping_range": 8.0, "largest_clipped_share": 0.1}}
    plan = plan_with(made_up_identities(), parameters=1000, changes=encoding)
    gate = gate_for(plan, audit, tmp_path)
    update = np.ones(1000, np.float32)
    update[:clipped] = 9.0

    contribution = built(gate, plan, update)

    assert contribution.void is (SiteReason.TOO_MUCH_CLIPPED if is_refused else None)
    assert is_refused or contribution.clipped == clipped


@pytest.mark.parametrize(("largest", "share", "is_void"), [(0, 0.0, False), (1, 0.3, True), (1, 0.4, False),
                                                          (2, 0.4, True), (1, 0.1, True), (3, 0.5, True)])  # fmt: skip
def test_short_integers_leave_as_the_trainer_made_them_or_not_at_all(
    tmp_path: Path, audit: AuditLog, largest: int, share: float, is_void: bool
) -> None:
    """Those at their limit are clipped values. Too many of them in one layer of three numbers are void."""
    masking = {"required": False, "bits": 16, "largest_clipped_share": share}
    plan = plan_with(made_up_identities(), changes={"masking": masking})
    gate, exchange, most = gate_for(plan, audit, tmp_path), exchange_of(plan), largest_integer(16, 3)
    sent = np.array([most if place < largest else 7 for place in range(10)], "<i2")

    found = gate.build(POSITION, exchange, memoryview(sent.tobytes()), rows=0)

    assert found.void is (SiteReason.TOO_MUCH_CLIPPED if is_void else None)
    if not is_void:
        np.testing.assert_array_equal(exchange.layout.updates(found.buffer, 0), sent)
        assert found.clipped == largest


@pytest.mark.parametrize("sent", [np.full(10, largest_integer(16, 3) + 2), -np.full(10, largest_integer(16, 3) + 2)])
def test_short_integers_beyond_their_limit_and_other_lengths_are_void(
    tmp_path: Path, audit: AuditLog, sent: npt.NDArray[np.int64]
) -> None:
    """No honest trainer of this plan sends them."""
    masking = {"required": False, "bits": 16, "largest_clipped_share": 1.0}
    plan = plan_with(made_up_identities(), changes={"masking": masking})
    gate, exchange = gate_for(plan, audit, tmp_path), exchange_of(plan)
    for payload in (sent.astype("<i2").tobytes(), bytes(19), bytes(21), bytes(40)):
        assert gate.build(POSITION, exchange, memoryview(payload), rows=0).void is not None


@pytest.mark.parametrize("seed", range(20))
def test_no_encoded_value_lies_beyond_the_clipping_range(tmp_path: Path, audit: AuditLog, seed: int) -> None:
    """Whatever a trainer computes, the sum over all sites fits into 32 bits."""
    encoding = {"masking": {"clipping_range": 8.0, "largest_clipped_share": 1.0}}
    plan = plan_with(made_up_identities(), parameters=5000, changes=encoding)
    gate = gate_for(plan, audit, tmp_path)
    generator = np.random.default_rng(seed)
    update = (generator.standard_normal(5000) * 10.0 ** generator.integers(-3, 28)).astype(np.float32)
    layout = Layout(5000, 0)

    contribution = built(gate, plan, update)

    values = layout.updates(layout.body(contribution.buffer, 0), 0).astype(np.int64)
    assert np.abs(values).max() * len(SITES) <= 2**31 - 1
    assert contribution.clipped == int((np.abs(update) > 8).sum())


@pytest.mark.parametrize("rows", [-1, 0, 65, 1 << 40])
def test_a_row_count_outside_the_manifest_is_refused(tmp_path: Path, audit: AuditLog, rows: int) -> None:
    """A count above the manifest's bound could overflow the sum, so it is not sent."""
    plan = plan_with(made_up_identities(), changes=ROWS)
    gate = gate_for(plan, audit, tmp_path)

    assert built(gate, plan, np.zeros(10, np.float32), rows=rows).void is SiteReason.TRAINER_FAILED


MEASURING: dict[str, Any] = {"checkpoint": "global"}


def words(contribution: Contribution) -> list[int]:
    """The scalars as they lie in the vector's last chunk."""
    layout = contribution.exchange.layout
    body = layout.body(contribution.buffer, layout.chunks - 1)
    return [int(word) for word in layout.words(body, layout.chunks - 1)[1:]]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 100])
def test_too_few_or_too_many_scalars_are_refused(tmp_path: Path, audit: AuditLog, count: int) -> None:
    """Trainer's output beyond the exchange is not sent, even if its length would fit."""
    plan = plan_with(made_up_identities(), changes=MEASURING)

    contribution = gate_for(plan, audit, tmp_path).build(
        POSITION, exchange_of(plan, number=1), answer(np.ones(10), [0] * count), rows=0
    )

    assert contribution.void is SiteReason.NETWORK_DIFFERS


def test_a_round_that_measures_carries_no_change(tmp_path: Path, audit: AuditLog) -> None:
    """In a validation round even a single number behind the scalars is refused."""
    plan = plan_with(made_up_identities(), changes=MEASURING)
    exchange = exchange_of(plan, number=3, stage=Stage.VALIDATION)
    gate = gate_for(plan, audit, tmp_path)

    contribution = gate.build(POSITION, exchange, answer([], (1, 2)), rows=0)

    assert (words(contribution), len(contribution.buffer)) == ([1, 2], 24)
    assert gate.build(POSITION, exchange, answer([1.0], (1, 2)), rows=0).void is SiteReason.NETWORK_DIFFERS


def test_a_masked_plan_has_no_gate_without_masks(tmp_path: Path, audit: AuditLog) -> None:
    """A gate in the clear cannot be made for a plan that asks for masking, nor the other way round."""
    plan = plan_with(made_up_identities(), changes={"masking": {"required": True}})

    with pytest.raises(ValueError, match="masked"):
        gate_for(plan, audit, tmp_path)
