"""Local noise: a site's steps, the whole noise in each, and no step that reads a patient without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.plan.noisy_results import local_change
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import discrete_gaussian
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients, private_sums
from tests.for_each import for_each
from tests.protos.privacy.private_plans import local_plan, private_network_plan


def training_of(**keys: Any) -> PrivateTraining:
    """A private regression with local noise."""
    training = local_plan({"epsilon": 8.0}, **keys).private_training
    assert training is not None
    return training


def _arrays_of(training: PrivateTraining, generator: np.random.Generator) -> list[np.ndarray]:
    return [np.round(generator.standard_normal(tensor.shape), 3) for tensor in training.tensors]


def rows_of(count: int, columns: int, generator: np.random.Generator) -> PrivateRows:
    """Rows of a site, two for each patient."""
    features = generator.standard_normal((count, columns)).astype(np.float32)
    outcomes = generator.integers(0, 2, count).astype(np.float64)
    return PrivateRows.of(features, outcomes, np.arange(count) // 2)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
@for_each("seed", range(5))
def test_a_round_is_so_many_steps_each_from_values_with_noise(seed: int, steps: int, strength: float) -> None:
    """By hand: each step adds the clipped sum at the values so far and a draw of noise, and the pull of FedProx."""
    method = {"name": "fedprox", "strength": strength} if strength else {"name": "fedavg"}
    training = training_of(steps=steps, method=method)
    generator = np.random.default_rng(seed)
    arrays = _arrays_of(training, generator)
    columns, given, drawn = arrays[0].shape[1], np.random.default_rng(99), np.random.default_rng(99)
    rows = rows_of(40, columns, generator)

    found = np.array(private_sums(training, arrays, rows, given.bytes), np.float64)

    start = np.concatenate([array.ravel() for array in arrays])
    values, each = start.copy(), 300 / 4  # declared patients of one site
    for _ in range(steps):
        here = [Layer(values[:columns].reshape(1, columns), values[columns:])]
        sums = np.array(clipped_gradients(here, 2.0, rows), np.float64)
        noisy = sums + discrete_gaussian(len(sums), training.share_variance, drawn.bytes)
        values = values - 1.0 * (2.0 * noisy / (each * PRIVATE_SCALE) + strength * (values - start))
    moved = start + local_change(training, found)
    np.testing.assert_allclose(moved, values, atol=1e-6)


@for_each("seed", range(5))
def test_the_inner_steps_of_pfedme_have_noise_and_the_shared_model_follows(seed: int) -> None:
    """By hand: t takes noisy steps near w, w follows t after each step, and the site sends w."""
    method = {"name": "pfedme", "strength": 0.5, "inner_steps": 3, "rate": 0.8}
    training, generator = training_of(steps=2, method=method), np.random.default_rng(seed)
    arrays = _arrays_of(training, generator)
    columns, given, drawn = arrays[0].shape[1], np.random.default_rng(98), np.random.default_rng(98)
    rows = rows_of(40, columns, generator)

    found = np.array(private_sums(training, arrays, rows, given.bytes), np.float64)

    start = np.concatenate([array.ravel() for array in arrays])
    inner, shared = start.copy(), start.copy()
    for _ in range(2):
        for _ in range(3):
            here = [Layer(inner[:columns].reshape(1, columns), inner[columns:])]
            sums = np.array(clipped_gradients(here, 2.0, rows), np.float64)
            noisy = sums + discrete_gaussian(len(sums), training.share_variance, drawn.bytes)
            inner = inner - (2.0 * noisy / (75 * PRIVATE_SCALE) + 0.5 * (inner - shared))
        shared = shared + 0.8 * 0.5 * (inner - shared)
    np.testing.assert_allclose(start + local_change(training, found), shared, atol=1e-6)


def test_one_local_step_is_the_shared_sum_with_the_whole_noise() -> None:
    """Less its noise it is the sum under shared noise, to the bit."""
    generator = np.random.default_rng(1)
    training, shared = training_of(steps=1), private_network_plan({"epsilon": 8.0}, rounds=5).private_training
    assert shared is not None
    arrays = _arrays_of(training, generator)
    rows, given = rows_of(60, arrays[0].shape[1], generator), np.random.default_rng(5)
    noise = discrete_gaussian(len(training.names), training.share_variance, np.random.default_rng(5).bytes)

    local, plain = (private_sums(kind, arrays, rows, given.bytes) for kind in (training, shared))

    assert [one - int(drawn) for one, drawn in zip(local, noise, strict=True)] == list(plain)
    assert training.share_variance > 2.9 * shared.share_variance  # three honest sites of four make up the whole


@for_each("seed", range(5))
def test_private_layers_take_every_local_step(seed: int) -> None:
    """By hand: all layers take three noisy steps, and shared sums come first."""
    training = training_of(steps=3, hidden=(2,), method={"name": "lg-fedavg"})
    generator, given, drawn = (np.random.default_rng(number) for number in (seed, 97, 97))
    arrays = [np.round(generator.standard_normal(tensor.shape), 3) for tensor in training.network]
    rows = rows_of(40, arrays[0].shape[1], generator)

    found = private_sums(training, arrays, rows, given.bytes)

    start = np.concatenate([array.ravel() for array in arrays])
    first, moved = arrays[0].size + 2, np.zeros(start.size)
    for _ in range(3):
        weight, bias, head, last = np.split(start + local_change(training, moved), [first - 2, first, first + 2])
        here = [Layer(weight.reshape(arrays[0].shape), bias), Layer(head.reshape(1, 2), last)]
        sums = np.array(clipped_gradients(here, 2.0, rows), np.float64)
        moved = moved + sums + discrete_gaussian(len(sums), training.share_variance, drawn.bytes)
    np.testing.assert_allclose(found, [*moved[first:], *moved[:first]], atol=PRIVATE_SCALE / 1e6)


@for_each("seed", range(10))
def test_a_patient_changes_shared_and_private_sums_together_by_at_most_one(seed: int) -> None:
    """With the same noise, the sums with and without one patient of many rows are at most one term apart."""
    generator = np.random.default_rng(seed)
    plan = private_network_plan({"clip": 0.05}, hidden=(4, 3), method={"name": "global-layers"}, outputs=None)
    training = plan.private_training
    assert training is not None
    arrays = [generator.standard_normal(tensor.shape) / 2 for tensor in training.network]

    def sums(count: int) -> np.ndarray:
        rows = rows_of(40, arrays[0].shape[1], np.random.default_rng(seed + 99))
        assert rows.patients is not None
        fewer = PrivateRows(*(each[: 2 * count] for each in (rows.inputs, rows.outcomes, rows.patients)))
        return np.array(private_sums(training, arrays, fewer, np.random.default_rng(1).bytes), np.float64)

    apart = sums(20) - sums(19)

    assert 0.99 < np.linalg.norm(apart) / PRIVATE_SCALE <= 1.0
    assert np.any(apart[len(training.names) :])


def test_sums_of_private_layers_have_the_whole_noise_and_shared_ones_none() -> None:
    """Without rows the shared sums are 0, because the gate adds their noise. Private sums are the whole noise."""
    plan, generator = (
        private_network_plan(hidden=(4,), method={"name": "fedper"}, outputs=None),
        np.random.default_rng(2),
    )
    training = plan.private_training
    assert training is not None
    arrays = [np.zeros(tensor.shape) for tensor in training.network]
    nobody = rows_of(0, arrays[0].shape[1], generator)

    drawn = np.array([private_sums(training, arrays, nobody, generator.bytes) for _ in range(400)], np.float64)
    shared, own = drawn[:, : len(training.names)], drawn[:, len(training.names) :]

    assert not shared.any()
    assert own.var() / training.own_variance == pytest.approx(1.0, abs=5 * np.sqrt(2 / own.size))


@pytest.mark.parametrize("steps", [1, 5])
def test_every_step_adds_the_whole_noise(steps: int) -> None:
    """Without rows there is nothing but noise, and its variance is that of so many whole draws."""
    training = training_of(steps=steps)
    generator = np.random.default_rng(2)
    arrays = _arrays_of(training, generator)
    nobody = rows_of(0, arrays[0].shape[1], generator)

    drawn = np.array([private_sums(training, arrays, nobody, generator.bytes) for _ in range(200)], np.float64)

    assert drawn.var() / (steps * training.share_variance) == pytest.approx(1.0, abs=0.12)
