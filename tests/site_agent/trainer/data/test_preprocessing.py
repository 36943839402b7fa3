"""Encoders are fitted only to training rows, and lose nothing when saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from protos.errors import DataError
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.preprocessing import fit
from site_agent.trainer.data.tables import Table, read_table

from .conftest import SMALL_ROWS, contract_from

Write = Callable[..., Path]
EVERY_KIND = """
format: {header: true}
columns:
  - {name: plain, role: feature, type: numeric}
  - {name: filled, role: feature, type: numeric, missing: median-and-flag}
  - {name: placed, role: feature, type: categorical, codes: [1, 2, 3, 4]}
  - {name: spread, role: feature, type: categorical, codes: [a, b, c], encoding: one-hot}
  - {name: y, role: target, task: regression}
"""


def _random_table(generator: np.random.Generator, contract: Contract, rows: int) -> Table:
    filled = np.where(generator.random(rows) < 0.3, np.nan, generator.lognormal(size=rows))
    features = {
        "plain": generator.normal(50, 9, size=rows),
        "filled": filled,
        "placed": generator.integers(-1, 4, size=rows).astype(np.float64),
        "spread": generator.integers(-1, 3, size=rows).astype(np.float64),
    }
    target = generator.normal(3, 2, size=rows)
    return Table(contract=contract, rows=rows, features=MappingProxyType(features), target=target, patients=None)


def test_numbers_are_scaled_as_scikit_learn_does(breast_cancer: tuple[Path, Contract]) -> None:
    """Thirty columns of real data: StandardScaler, to float32's last digit."""
    table = read_table(*breast_cancer)
    rows, values = split_rows(table, Split(seed=1)).training, np.stack(list(table.features.values()), axis=1)

    encoded = fit(breast_cancer[1], table, rows).encode(table)

    expected = StandardScaler().fit(values[rows]).transform(values)
    np.testing.assert_allclose(encoded, expected, rtol=1e-5, atol=1e-6)
    assert encoded.dtype == np.float32
    assert encoded.flags.c_contiguous


def test_every_kind_of_column_is_encoded_as_declared(write: Write, small_contract: Contract) -> None:
    """By hand: z-scores, median and flag, positions with unknown at -1, one-hot with unknown last."""
    table = read_table(write(SMALL_ROWS), small_contract)
    fitted = fit(small_contract, table, np.arange(10))
    encoded = fitted.encode(table)

    names = ("age", "chol", "chol is missing", "cp", "smoker=no", "smoker=yes", "smoker=unknown")
    assert fitted.columns == names
    chol = np.array([233, 286, 244.5, 244.5, 236, 268, 354, 254, 203, 192, 211, 244.5])
    chol[[2, 3, 11]] = np.median([233, 286, 236, 268, 354, 254, 203, 192])
    np.testing.assert_allclose(encoded[:, 1], (chol - chol[:10].mean()) / chol[:10].std(), rtol=1e-6)
    assert np.flatnonzero(encoded[:, 2]).tolist() == [2, 3, 11]
    cp = np.array([0, 2, 1, 2, 1, -1, 0, 0, 1, 2, 1, 0])
    np.testing.assert_allclose(encoded[:, 3], (cp - cp[:10].mean()) / cp[:10].std(), rtol=1e-5)
    assert encoded[[0, 1, 10], 4:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_a_constant_column_is_only_centred(value: float) -> None:
    """Its scale is 1, so it becomes zero and no rounding noise is amplified."""
    contract = contract_from(EVERY_KIND)
    table, plain = _random_table(np.random.default_rng(0), contract, 20), np.full(20, value)
    plain[19] = value + 2
    table = replace(table, features=MappingProxyType({**table.features, "plain": plain}))

    encoded = fit(contract, table, np.arange(19)).encode(table)

    assert encoded[:19, 0].tolist() == [0] * 19
    assert encoded[19, 0] == pytest.approx(2)


def test_a_numbers_target_is_standardised_and_comes_back() -> None:
    """Training targets have mean 0 and deviation 1; the inverse restores the unit."""
    contract = contract_from(EVERY_KIND)
    table = _random_table(np.random.default_rng(3), contract, 60)
    assert table.target is not None

    fitted = fit(contract, table, np.arange(40))
    targets = fitted.targets(table)

    assert targets.dtype == np.float64
    assert targets[:40].mean() == pytest.approx(0, abs=1e-12)
    assert targets[:40].std() == pytest.approx(1)
    np.testing.assert_allclose(fitted.in_target_units(targets.astype(np.float64)), table.target)


def test_a_column_without_any_value_in_training_is_refused() -> None:
    """There is no median of nothing."""
    contract = contract_from(EVERY_KIND)
    table = _random_table(np.random.default_rng(0), contract, 20)
    table = replace(table, features=MappingProxyType({**table.features, "filled": np.full(20, np.nan)}))

    with pytest.raises(DataError, match="These columns have no value in any training row: filled"):
        fit(contract, table, np.arange(10))


def test_a_value_float32_cannot_hold_is_refused() -> None:
    """Infinity never reaches a network."""
    contract = contract_from(EVERY_KIND)
    table = _random_table(np.random.default_rng(0), contract, 20)
    plain = table.features["plain"].copy()
    plain[15] = 1e60
    table = replace(table, features=MappingProxyType({**table.features, "plain": plain}))

    with pytest.raises(DataError, match="too far from the values of the training rows: plain"):
        fit(contract, table, np.arange(10)).encode(table)


def test_a_fitted_record_prints_no_statistic(write: Write, small_contract: Contract) -> None:
    """Means and medians are data of the site; a traceback must not show them."""
    fitted = fit(small_contract, read_table(write(SMALL_ROWS), small_contract), np.arange(8))

    assert repr(fitted) == "Preprocessing(columns=7)"
    assert str(fitted) == "columns=7"
