"""The integers of private sums: what one patient changes, that none is beyond its bound, and that masks lose no bit."""

from __future__ import annotations

import hashlib
from math import isqrt, sqrt
from typing import Any

import numpy as np
import pytest

from protos.masking.mask_stream import Masker
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.privacy.accounting import PRIVATE_SCALE
from protos.wire.messages import Stage
from site_agent.gate.door import Builder
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.training.private_gradient import PrivateRows, private_sums
from tests.for_each import for_each
from tests.protos.privacy.private_plans import local_plan, private_network_plan, private_plan
from tests.protos.privacy.test_private_training import training_of


def exchange_of(plan: Plan) -> Exchange:
    """The first round of a plan."""
    return Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")


def built(plan: Plan, sums: list[int], random_bytes: Any) -> memoryview:
    """What a site's gate makes of its trainer's sums, before masking."""
    payload = memoryview(np.array(sums, "<i8").tobytes())
    builder = Builder(plan, trains=True, smallest_rows=1)
    noise = lambda numbers: with_noise(plan, numbers, random_bytes)  # noqa: E731
    return builder.build(bytes(32), exchange_of(plan), payload, rows=0, noise=noise).buffer


@pytest.mark.parametrize("kind", ["shared", "private layers", "local", "local and private layers", "several steps"])
def test_a_site_with_more_patients_than_a_bound_has_stops_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal would tell that there is one patient more. The gate takes every number that the trainer has clipped.
    All 500 patients move the bias by the norm 1 in each step. The bound has room for three of them, or in several steps
    for one step of all of them and not for two."""
    room = 600 if kind == "several steps" else 3
    monkeypatch.setattr("protos.plan.private_training.LARGEST_PATIENTS", room)
    make = private_network_plan if kind in ("shared", "private layers") else local_plan
    keys: dict[str, Any] = {"method": {"name": "fedper"}, "outputs": None} if "layers" in kind else {}
    keys |= {} if make is private_network_plan else {"steps": 4 if kind == "several steps" else 1, "rounds": 1}
    plan = make({"clip": 1e-6, "epsilon": 20.0, "delta": 1e-3}, hidden=(4,), start={"seed": 5}, **keys)
    training, generator = training_of(plan), np.random.default_rng(0)
    arrays = [np.zeros(tensor.shape) for tensor in training.network]
    arrays[-1][...], arrays[2][...] = -30.0, 0.5  # whatever the steps are, each patient's outcome of 1 is a surprise
    rows = PrivateRows.of(np.zeros((500, arrays[0].shape[1]), np.float32), np.ones(500), None)

    sums = private_sums(training, arrays, rows, generator.bytes)

    buffer = built(plan, list(sums), generator.bytes)
    own = [abs(number) for number, is_own in zip(sums, sorted(training.is_own.tolist()), strict=True) if is_own]
    others = [abs(number) for number, is_own in zip(sums, sorted(training.is_own.tolist()), strict=True) if not is_own]
    assert len(buffer) == exchange_of(plan).layout.total_bytes
    assert max(others, default=0) <= training.bound
    assert max(own, default=0) <= training.own_bound
    assert max(map(abs, sums)) >= room * PRIVATE_SCALE - 64 * isqrt(training.own_variance)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "global-layers"])
@pytest.mark.parametrize("noise", ["shared", "local"])
@for_each("seed", range(4))
def test_no_patient_changes_a_trainers_sums_by_more_than_the_norm_1(
    seed: int, method: str, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From rows to integers, with the noise left out: shared and private layers together, for each of the patients."""
    monkeypatch.setattr(
        "site_agent.trainer.training.private_gradient.discrete_gaussian", lambda count, *_: np.zeros(count, np.int64)
    )
    kind = private_network_plan if noise == "shared" else local_plan
    keys = {"rounds": 3, **({"steps": 1} if noise == "local" else {})}
    outputs = 1 if method == "fedavg" else None
    plan = kind({"clip": 0.01}, hidden=(8, 8), method={"name": method}, outputs=outputs, **keys)
    training, generator = training_of(plan), np.random.default_rng(seed)
    arrays = [np.round(generator.standard_normal(tensor.shape), 3) for tensor in training.network]
    features = (10.0 * generator.standard_normal((60, arrays[0].shape[1]))).astype(np.float32)
    outcomes, patients = generator.integers(0, 2, 60).astype(float), np.minimum(generator.integers(0, 20, 60), 12)

    def sums(kept: Any) -> np.ndarray:
        rows = PrivateRows.of(features[kept], outcomes[kept], patients[kept])
        return np.array(private_sums(training, arrays, rows, generator.bytes))

    everybody, norms = sums(patients >= 0), []
    for patient in set(patients.tolist()):
        apart = everybody - sums(patients != patient)
        norms.append(sqrt(sum(int(number) ** 2 for number in apart)) / PRIVATE_SCALE)

    assert len(everybody) == training.is_own.size
    assert 0.99 < max(norms) <= 1.0


@pytest.mark.parametrize("plan", [private_network_plan(hidden=(3,)), private_plan()], ids=["network", "prior"])
@pytest.mark.parametrize("seed", range(5))
def test_masks_take_no_bit_from_the_noisy_sum(seed: int, plan: Plan) -> None:
    """Each gate's own encoding and masks over four sites: the sum has exactly the terms and the drawn noise."""
    sites, stage = plan.site_names, Stage.STATISTICS if isinstance(plan, PriorPlan) else Stage.TRAINING
    exchange = Exchanges(plan, manifest_of(plan)).of(0, stage, b"")
    layout, generator = exchange.layout, np.random.default_rng(seed)
    terms = {site: generator.integers(0, 1 << 38, len(exchange.scalars)) for site in sites}

    def noisy(site: str) -> list[int]:
        stream = np.random.default_rng([seed, sites.index(site)])
        return with_noise(plan, terms[site].tolist(), stream.bytes)

    total = np.zeros(layout.total_bytes // 8, np.uint64)
    for site in sites:
        builder = Builder(plan, trains=True, smallest_rows=1)
        payload = memoryview(terms[site].astype("<i8").tobytes())
        built = builder.build(bytes(32), exchange, payload, rows=0, noise=lambda _, site=site: noisy(site))
        keys = {peer: hashlib.sha256(f"{min(site, peer)}|{max(site, peer)}".encode()).digest() for peer in sites}
        del keys[site]
        masker = Masker(own=site, contributors=sites, pair_keys=keys, context=bytes(32), layout=layout)
        masked = b"".join(masker.masked(layout.body(built.buffer, index), index) for index in range(layout.chunks))
        assert masked != bytes(built.buffer)
        total += np.frombuffer(masked, "<u8")

    body = layout.body(bytearray(total.tobytes()), 0)
    expected = np.sum([noisy(site) for site in sites], axis=0)
    np.testing.assert_array_equal(np.array(layout.words(body, 0))[1:].astype(np.int64), expected)
