"""Sums of 32 bits: the scale, what one patient changes, that no sum is beyond its place, and which plans have them."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from functools import cache
from math import isqrt, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator.rounds.aggregation import RunningSum
from protos.masking.mask_stream import Masker
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.noisy_results import mean_change
from protos.plan.patient_privacy import noise_multiplier
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE, delta_of
from protos.privacy.private_ring import LARGEST_NARROW, Ring
from protos.wire.messages import Stage
from site_agent.gate.door import Builder
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, private_sums
from tests.for_each import for_each
from tests.protos.privacy.private_plans import local_plan, private_network_plan, private_plan

NARROW: dict[str, Any] = {"bits": 32}


def training_of(plan: Plan) -> PrivateTraining:
    """The private training of the plan."""
    assert plan.private_training is not None
    return plan.private_training


def exchange_of(plan: Plan) -> Exchange:
    """The first round of a plan."""
    return Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")


def built(plan: Plan, sums: list[int], random_bytes: Any) -> memoryview:
    """What a site's gate makes of its trainer's sums, before masking."""
    payload = memoryview(np.array(sums, "<i8").tobytes())
    builder = Builder(plan, trains=True, smallest_rows=1)
    noise = lambda numbers: with_noise(plan, numbers, random_bytes)  # noqa: E731
    return builder.build(bytes(32), exchange_of(plan), payload, rows=0, noise=noise).buffer


def drawn_plan(generator: np.random.Generator, **promise: Any) -> Plan:
    """A private network with drawn sites, colluders, layers, promise and rounds."""
    plain = json.loads(private_network_plan().canonical)
    count = int(generator.integers(3, 60))
    sites = [plain["sites"][0] | {"name": f"s{place}", "identity": _identity(place)} for place in range(count)]
    colluders = int(generator.integers(1, max(2, count // 4)))
    fewest = max(3, colluders + 2)
    drawn = {
        "epsilon": float(np.exp(generator.uniform(np.log(0.05), np.log(20)))),
        "delta": float(10.0 ** generator.integers(-9, -3)),
        "patients": int(np.exp(generator.uniform(np.log(10), np.log(50_000)))),
    }
    kind = private_network_plan if generator.random() < 0.7 else local_plan
    hidden = tuple(generator.integers(1, 30, generator.integers(0, 3)).tolist())
    keys = {"sites": sites[: generator.integers(fewest, count + 1)], "assumed_colluders": colluders}
    return kind(drawn | promise, rounds=int(generator.integers(1, 60)), hidden=hidden, **keys)


def has_room(plan: Plan) -> bool:
    """Whether the declared patients of a plan fit into 32 bits, by hand, if all of them are at one site."""
    training, sites = training_of(plan), len(plan.site_names)
    scale = Ring(32, training.ring.numbers).scale
    noise = 64 * sqrt(training.steps * training.share_variance) * scale / PRIVATE_SCALE
    return sites * (training.steps * training.promise.patients * scale + noise) <= LARGEST_NARROW


def _identity(place: int) -> str:
    letters = hashlib.sha256(str(place).encode()).hexdigest()[:32].translate(str.maketrans("0189", "wxyz"))
    return "-".join(letters[start : start + 4] for start in range(0, 32, 4))


DRAWN = range(40)


@cache
def wide_plan(seed: int) -> Plan:
    """A drawn plan with sums of 64 bits."""
    return drawn_plan(np.random.default_rng(seed))


@pytest.mark.parametrize("numbers", [1, 2, 3, 4, 5, 18, 153, 609, 4096, 4097, 1 << 20])
def test_the_scale_is_the_smallest_that_loses_at_most_a_thousandth(numbers: int) -> None:
    """A power of two of at least 1,000 times the root of the numbers, and less than twice that."""
    scale = Ring(32, numbers).scale

    assert scale.bit_count() == 1
    assert scale**2 >= 1000**2 * numbers > (scale // 2) ** 2
    assert 0.999 <= Ring(32, numbers).room < 1.0
    assert (Ring(64, numbers).scale, Ring(64, numbers).room) == (PRIVATE_SCALE, 1.0)


@pytest.mark.parametrize("numbers", [1, 7, 153])
@for_each("seed", range(20))
def test_two_rounded_sums_differ_by_at_most_the_scale(seed: int, numbers: int) -> None:
    """Sums that differ by a term of the longest norm in any direction, also where a step is taken in every number."""
    ring, generator = Ring(32, numbers), np.random.default_rng(seed)
    step, largest = PRIVATE_SCALE // ring.scale, int(generator.integers(1, 1 << 30))
    exact = generator.integers(-(1 << 45), 1 << 45, numbers)
    directions = [generator.standard_normal(numbers), np.ones(numbers), np.eye(numbers)[0]]
    # One less than a step above the place where rounding turns, so that every number moves by a whole step more.
    turning = exact // step * step + step // 2 - 1

    for start in (exact, turning):
        for direction in directions:
            way = direction / np.linalg.norm(direction) * ring.room * PRIVATE_SCALE
            moved = start + np.trunc(way).astype(np.int64)
            apart = ring.rounded(moved, largest) - ring.rounded(start, largest)
            assert sum(int(number) ** 2 for number in apart) <= ring.scale**2
            assert np.abs(ring.rounded(start, largest)).max() <= largest


def test_without_the_shortening_one_patient_could_change_more_than_the_noise_is_made_for() -> None:
    """The test above can fail: a term of the whole norm 1 moves a sum by more than the scale."""
    ring = Ring(32, 153)
    step = PRIVATE_SCALE // ring.scale
    start = np.full(153, step // 2 - 1)
    way = np.full(153, int(PRIVATE_SCALE / sqrt(153)))

    apart = ring.rounded(start + way, LARGEST_NARROW) - ring.rounded(start, LARGEST_NARROW)

    assert sum(int(number) ** 2 for number in apart) > ring.scale**2


@for_each("seed", DRAWN)
def test_a_drawn_plan_has_room_for_all_its_patients_or_is_refused(seed: int) -> None:
    """With room no sum of all sites is beyond 31 bits, noise included, and the noise is enough for the scale."""
    wide = wide_plan(seed)
    if not has_room(wide):
        with pytest.raises(ValidationError, match="one site can have at most"):
            drawn_plan(np.random.default_rng(seed), **NARROW)
        return
    plan = drawn_plan(np.random.default_rng(seed), **NARROW)
    training, steps = training_of(plan), training_of(plan).steps * training_of(plan).inner

    sent = steps * training.largest_sum + 64 * (isqrt(steps * training.share_variance) + 1)

    assert training.largest_sum >= training.promise.patients * training.scale
    assert sent <= training.bound
    assert len(plan.site_names) * training.bound <= LARGEST_NARROW
    assert sqrt(training.ring.numbers) / training.scale <= 1e-3
    honest = training.honest * (training.share_variance - 4)
    deviation = Fraction(noise_multiplier(training.promise, training.sums)) * training.scale
    assert Fraction(0.999999) < Fraction(honest) / deviation**2
    mu = sqrt(training.sums) * training.scale / sqrt(honest)
    assert delta_of(training.promise.epsilon, mu) <= training.promise.delta


@pytest.mark.parametrize("sign", [-1, 1])
def test_no_sum_wraps_at_the_extreme(sign: int) -> None:
    """Each of four sites sends the longest sum that it may have, with noise: the sum of all has every bit."""
    plan = private_network_plan(NARROW, hidden=(8,))
    training, exchange = training_of(plan), exchange_of(plan)
    total, running = np.zeros(len(training.names), np.int64), RunningSum(manifest_of(plan).parameters)
    running.reset(exchange.layout, plan.site_names)

    for place, site in enumerate(plan.site_names):
        sums = [sign * training.largest_sum] * len(training.names)
        running.add(site, 0, built(plan, sums, np.random.default_rng(place).bytes))
        total += with_noise(plan, sums, np.random.default_rng(place).bytes)

    assert np.abs(total).max() > 0.9 * LARGEST_NARROW
    np.testing.assert_array_equal(running.updates, total)
    assert running.is_consistent


@for_each("seed", range(5))
def test_masks_take_no_bit_from_a_sum_of_32_bits(seed: int) -> None:
    """Each gate's encoding and masks over four sites: the sum has exactly the terms and the drawn noise."""
    plan = private_network_plan(NARROW, hidden=(3,))
    sites, layout = plan.site_names, exchange_of(plan).layout
    generator, running = np.random.default_rng(seed), RunningSum(manifest_of(plan).parameters)
    running.reset(layout, sites)
    expected = np.zeros(len(training_of(plan).names), np.int64)

    for place, site in enumerate(sites):
        sums = generator.integers(-(1 << 27), 1 << 27, len(expected)).tolist()
        buffer = built(plan, sums, np.random.default_rng([seed, place]).bytes)
        keys = {peer: hashlib.sha256(f"{min(site, peer)}|{max(site, peer)}".encode()).digest() for peer in sites}
        del keys[site]
        masker = Masker(own=site, contributors=sites, pair_keys=keys, context=bytes(32), layout=layout)
        masked = bytes(masker.masked(layout.body(buffer, 0), 0))
        assert masked != bytes(buffer)
        running.add(site, 0, masked)
        expected += with_noise(plan, sums, np.random.default_rng([seed, place]).bytes)

    np.testing.assert_array_equal(running.updates, expected)
    assert running.is_consistent


@pytest.mark.parametrize("epsilon", [1.0, 20.0])
def test_the_noise_of_a_gate_is_normal_with_the_smaller_scale(epsilon: float) -> None:
    """Kolmogorov and Smirnov against the normal law of the promised variance, at both ends of it."""
    plan = private_network_plan(NARROW | {"epsilon": epsilon, "delta": 1e-3}, rounds=1)
    training, count = training_of(plan), 200_000

    drawn = np.sort(with_noise(plan, [0] * count, np.random.default_rng(7).bytes))

    share = Fraction(training.share_variance - 4) / training.scale**2  # of one of three honest sites
    assert float(3 * share) == pytest.approx(noise_multiplier(training.promise, 1) ** 2, rel=1e-3)
    normal = NormalDist(0.0, sqrt(training.share_variance))
    expected = np.array([normal.cdf(number + 0.5) for number in drawn.tolist()])
    distance = np.abs(expected - np.arange(1, count + 1) / count).max()
    assert distance < 1.95 / sqrt(count)  # of one in a thousand draws larger


def test_a_site_with_more_patients_than_fit_sends_clipped_sums_and_stops_nothing() -> None:
    """Two sums of too many equal patients are equal: not even the number of patients above the limit is seen."""
    training = training_of(private_network_plan(NARROW | {"patients": 1}))
    enough = training.patients_that_fit + 1
    sums = np.full(training.ring.numbers, enough * PRIVATE_SCALE, np.int64)

    clipped = training.rounded(sums)

    assert set(clipped.tolist()) == {training.largest_sum}
    np.testing.assert_array_equal(clipped, training.rounded(sums + PRIVATE_SCALE))


@pytest.mark.parametrize("kind", ["shared", "private layers", "local", "local and private layers", "several steps"])
def test_a_site_with_more_patients_than_a_bound_of_64_bits_has_stops_nothing_either(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would tell that there is one patient more. The gate takes every number that the trainer has clipped.

    All 500 patients move the bias by the norm 1 in each step. The bound has room for three of them, or in several steps
    for one step of all of them and not for two.
    """
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
    assert max(map(abs, sums)) >= room * training.scale - 64 * isqrt(training.own_variance)


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
    plan = kind(NARROW | {"clip": 0.01}, hidden=(8, 8), method={"name": method}, outputs=outputs, **keys)
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
        norms.append(sqrt(sum(int(number) ** 2 for number in apart)) / training.scale)

    assert len(everybody) == training.is_own.size
    assert 0.99 < max(norms) <= 1.0


@pytest.mark.parametrize("make", [private_network_plan, local_plan])
def test_a_round_of_32_bits_ends_where_one_of_64_bits_ends(make: Any) -> None:
    """A step differs by the rounding of each site and by a thousandth of each term, with the same rows and no noise."""
    steps = {}
    for bits in (32, 64):
        training = training_of(make({"bits": bits, "clip": 0.5, "patients": 400}))
        layer = Layer(np.zeros((1, training.tensors[0].shape[1])), np.zeros(1))
        generator = np.random.default_rng(0)
        features = generator.standard_normal((400, layer.weight.shape[1])).astype(np.float32)
        rows = PrivateRows.of(features, (features[:, 0] > 0).astype(float), None)
        quiet = make({"bits": bits, "epsilon": 20.0, "delta": 1e-3, "clip": 0.5, "patients": 400}, rounds=1)
        sums = private_sums(training_of(quiet), [layer.weight, layer.bias], rows, np.random.default_rng(1).bytes)
        steps[bits] = mean_change(training_of(quiet), np.array(sums, float))

    np.testing.assert_allclose(steps[32], steps[64], atol=0.02)


def test_a_plan_without_room_is_refused_with_both_figures() -> None:
    """The sentence names the room, the declared patients and the key to leave out."""
    with pytest.raises(
        ValidationError, match=r"4 sites, one site can have at most 130636 patients, but patients .* 131000. Remove"
    ):
        private_network_plan(NARROW | {"patients": 131_000})


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
