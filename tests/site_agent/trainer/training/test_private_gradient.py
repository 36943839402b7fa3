"""The largest effect of one patient on a site's sum of gradients. No patient's term depends on the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from protos.plan.patient_privacy import SMALLEST_CLIP
from protos.privacy.accounting import PRIVATE_SCALE
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients
from tests.for_each import for_each

WIDTHS = ((3, 1), (7, 5, 1), (17, 32, 1), (4, 9, 6, 1), (40, 3, 1))


def layers_of(widths: tuple[int, ...], generator: np.random.Generator, size: float = 1.0) -> list[Layer]:
    """Layers with normal weights of a size."""
    return [
        Layer(
            size * generator.standard_normal((outer, inner)) / np.sqrt(inner), size * generator.standard_normal(outer)
        )
        for inner, outer in pairwise(widths)
    ]


def table_of(rows: int, columns: int, generator: np.random.Generator, size: float = 1.0) -> tuple[Any, Any]:
    """Features, float32, and outcomes, float64."""
    features = (size * generator.standard_normal((rows, columns))).astype(np.float32)
    return features, generator.integers(0, 2, rows).astype(np.float64)


def clipped(
    layers: list[Layer], clip: float, features: Any, outcomes: Any, patients: Any, shared: int | None = None
) -> tuple[int, ...]:
    """The sum over rows that were prepared by themselves."""
    return tuple(clipped_gradients(layers, clip, PrivateRows.of(features, outcomes, patients), shared=shared).tolist())


def norm_of(numbers: Any) -> float:
    """In units of what one patient may change; computed without floating-point sums."""
    return float(np.sqrt(float(sum(int(number) ** 2 for number in numbers)))) / PRIVATE_SCALE


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@for_each("seed", range(6))
def test_a_patient_who_leaves_takes_their_own_term_away_and_nothing_else(seed: int, widths: tuple[int, ...]) -> None:
    """The sum without a patient differs by the patient's own term, to the last bit, and this has at most the norm 1."""
    generator = np.random.default_rng(seed)
    layers, clip = layers_of(widths, generator), float(np.exp(generator.uniform(-3, 3)))
    features, outcomes = table_of(int(generator.integers(20, 120)), widths[0], generator, 10.0 ** generator.integers(3))
    patients = np.minimum(generator.integers(0, 30, len(outcomes)), 12)

    everybody = np.array(clipped(layers, clip, features, outcomes, patients))

    order = generator.permutation(len(patients))
    np.testing.assert_array_equal(everybody, clipped(layers, clip, features[order], outcomes[order], patients[order]))
    for patient in set(patients.tolist()):
        mine = patients == patient
        without = np.array(clipped(layers, clip, features[~mine], outcomes[~mine], patients[~mine]))
        alone = np.array(clipped(layers, clip, features[mine], outcomes[mine], patients[mine]))
        np.testing.assert_array_equal(everybody - without, alone)
        assert norm_of(alone) <= 1.0


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 31, 64, 257, 1000])
def test_a_row_has_the_same_term_wherever_it_stands(rows: int) -> None:
    """Alone, first, last or among any number of others: libraries that add in another order change no bit."""
    generator = np.random.default_rng(rows)
    layers = layers_of((17, 32, 1), generator)
    features, outcomes = table_of(rows, 17, generator)

    together = np.array(clipped(layers, 0.5, features, outcomes, None))

    alone = [clipped(layers, 0.5, features[row : row + 1], outcomes[row : row + 1], None) for row in range(rows)]
    np.testing.assert_array_equal(together, np.sum(np.array(alone), axis=0))
    order = generator.permutation(rows)
    np.testing.assert_array_equal(together, clipped(layers, 0.5, features[order], outcomes[order], None))


@pytest.mark.parametrize("clip", [SMALLEST_CLIP, 1000.0])
def test_a_patient_without_a_gradient_adds_nothing_with_any_clip_of_a_plan(clip: float) -> None:
    """A coordinator may choose parameters with which a derivative is exactly 0: no clip makes this no number."""
    layers, features = [Layer(np.zeros((1, 2)), np.array([64.0]))], np.ones((4, 2), np.float32)
    patients = np.array([0, 0, 1, 2])

    nobody = clipped(layers, clip, features, np.ones(4), patients)
    somebody = clipped(layers, clip, features, np.array([1.0, 1.0, 1.0, 0.0]), patients)

    assert nobody == (0, 0, 0)
    assert 0 < norm_of(somebody) <= 1.0


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_what_need_not_be_shortened_is_the_gradient(widths: tuple[int, ...], rows: int) -> None:
    """With a wide clip the sum is that of torch's gradients, to the steps of the grids, with so many rows a patient."""
    generator, clip = np.random.default_rng(1), 20.0 * max(5, rows)
    layers = layers_of(widths, generator)
    features, outcomes = table_of(200, widths[0], generator)
    modules = [nn.Linear(inner, outer, dtype=torch.float64) for inner, outer in pairwise(widths)]
    for module, layer in zip(modules, layers, strict=True):
        module.weight.data, module.bias.data = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)

    said = torch.from_numpy(features).double()
    for module in modules[:-1]:
        said = functional.relu(module(said))
    logits = modules[-1](said)[:, 0]
    functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(outcomes), reduction="sum").backward()
    found = np.array(clipped(layers, clip, features, outcomes, np.arange(200) // rows)) * (clip / PRIVATE_SCALE)

    wanted = np.concatenate([one.grad.numpy().ravel() for module in modules for one in (module.weight, module.bias)])
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_a_patient_with_ten_thousand_rows_counts_once() -> None:
    """The term of 10,000 equal rows has the norm 1 and not more, in whatever blocks they are added up."""
    generator = np.random.default_rng(3)
    layers = layers_of((17, 32, 1), generator)
    features, _ = table_of(40, 17, generator)
    wide = np.concatenate([np.repeat(features[:1], 10_000, axis=0), features])
    patients = np.concatenate([np.zeros(10_000, np.int64), np.arange(1, 41)])

    together = np.array(clipped(layers, 0.1, wide, np.ones(10_040), patients))
    alone = np.array(clipped(layers, 0.1, features, np.ones(40), None))

    assert 0.99 < norm_of(together - alone) <= 1.0


@pytest.mark.parametrize("rows", [1, 2047, 2048, 2049, 4096])
@pytest.mark.parametrize("last", [1, 2, 17])
def test_no_patient_is_divided_where_many_rows_are_summed_in_parts(rows: int, last: int) -> None:
    """Wherever the last patient's rows lie, the sum is that of the others and the patient's own."""
    generator = np.random.default_rng(rows)
    layers, count = layers_of((3, 2, 1), generator), rows + last
    features, outcomes = table_of(count, 3, generator)
    patients = np.minimum(np.arange(count), rows)

    together = np.array(clipped(layers, 0.1, features, outcomes, patients))

    others = clipped(layers, 0.1, features[:rows], outcomes[:rows], None)
    alone = clipped(layers, 0.1, features[rows:], outcomes[rows:], patients[rows:])
    np.testing.assert_array_equal(together, np.array(others) + np.array(alone))


@pytest.mark.parametrize("rows", [2, 3, 16])
@pytest.mark.parametrize("clip", [SMALLEST_CLIP, 1e-3, 1.0])
@pytest.mark.parametrize("apart", [0.0, 1e-4, 1.0])
def test_rows_of_a_patient_that_nearly_cancel_make_one_exact_term(rows: int, clip: float, apart: float) -> None:
    """Rows with opposite outcomes have long gradients and a short sum. Its term is exact and has at most the norm 1."""
    generator = np.random.default_rng(rows)
    layers = [Layer(apart * layer.weight, apart * layer.bias) for layer in layers_of((17, 9, 1), generator)]
    once = 60.0 * generator.standard_normal((1, 17))
    features = (once + apart * generator.standard_normal((3000, 17))).astype(np.float32)
    outcomes, patients = np.arange(3000) % 2.0, np.arange(3000) // rows

    everybody = np.array(clipped(layers, clip, features, outcomes, patients))

    for patient in (0, 40, patients[-1]):
        mine = patients == patient
        without = np.array(clipped(layers, clip, features[~mine], outcomes[~mine], patients[~mine]))
        alone = np.array(clipped(layers, clip, features[mine], outcomes[mine], patients[mine]))
        np.testing.assert_array_equal(everybody - without, alone)
        assert norm_of(alone) <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e38])
@pytest.mark.parametrize("is_of_rows", [True, False])
def test_no_value_makes_a_term_that_is_none(value: float, *, is_of_rows: bool) -> None:
    """Rows or parameters that are infinite, huge or no number give a term of at most the norm 1."""
    generator = np.random.default_rng(5)
    layers = layers_of((4, 6, 1), generator)
    features, outcomes = table_of(10, 4, generator)
    if is_of_rows:
        features[3] = value
    else:
        layers[0].weight[2, 1] = layers[1].bias[0] = value

    everybody = np.array(clipped(layers, 0.3, features, outcomes, None))
    without = np.array(clipped(layers, 0.3, np.delete(features, 3, 0), np.delete(outcomes, 3), None))

    assert norm_of(everybody - without) <= 1.0


def test_sums_that_nearly_cancel_change_no_other_term() -> None:
    """With large weights that cancel, another order of adding would change a term by more than its rounding hides."""
    generator = np.random.default_rng(11)
    half = np.clip(40.0 * generator.standard_normal((6, 240)), -63, 63)
    weight = np.concatenate([half, -half + 1e-3 * generator.standard_normal((6, 240))], axis=1)
    layers = [Layer(weight, np.zeros(6)), Layer(8.0 * generator.standard_normal((1, 6)), np.zeros(1))]
    once = np.clip(20.0 * generator.standard_normal((400, 240)), -60, 60).astype(np.float32)
    features, outcomes = np.concatenate([once, once], axis=1), generator.integers(0, 2, 400).astype(np.float64)

    together = np.array(clipped(layers, 1000.0, features, outcomes, None))
    alone = [clipped(layers, 1000.0, features[row : row + 1], outcomes[row : row + 1], None) for row in range(400)]

    np.testing.assert_array_equal(together, np.sum(np.array(alone), axis=0))


@pytest.mark.parametrize("has_patients", [False, True])
def test_the_gradient_of_the_first_layers_alone_is_clipped_alone(has_patients: bool) -> None:
    """With a wide clip it is a part of the whole gradient. With a narrow one each term has the norm 1 by itself."""
    generator = np.random.default_rng(8)
    layers = layers_of((5, 6, 1), generator)
    features, outcomes = table_of(30, 5, generator)
    patients = generator.integers(0, 9, 30) if has_patients else None
    numbers = layers[0].number_count

    whole = clipped(layers, 500.0, features, outcomes, patients)
    first = clipped(layers, 500.0, features, outcomes, patients, shared=1)
    alone = clipped(layers, 1e-3, features[:1], outcomes[:1], None, shared=1)

    np.testing.assert_allclose(first, whole[:numbers], atol=2e5)  # of 2**30: rounding to steps depends on the norm
    assert 0.99 < norm_of(np.array(alone)) <= 1.0
