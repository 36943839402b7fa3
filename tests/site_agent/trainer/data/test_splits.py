"""Rows are divided once and for all, and a patient is in one part only."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from protos.errors import DataError
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.tables import Table


def _table(contract: Contract, rows: int, patients: tuple[str, ...] | None = None) -> Table:
    return Table(contract=contract, rows=rows, features=MappingProxyType({}), target=None, patients=patients)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rows_of_each", [1, 3])
def test_each_part_has_its_share_of_every_outcome(small_contract: Contract, seed: int, rows_of_each: int) -> None:
    """No part differs from its share by two patients, and no row is lost."""
    outcomes = np.random.default_rng(seed).permutation((np.arange(200) < 23).astype(np.float64))
    target = np.repeat(outcomes, rows_of_each)
    patients = None if rows_of_each == 1 else tuple(f"p{n}" for n in np.repeat(np.arange(200), rows_of_each))
    parts = split_rows(replace(_table(small_contract, len(target), patients), target=target), Split(seed=seed))

    for rows in (parts.training, parts.validation, parts.test):
        assert abs(target[rows].sum() / rows_of_each - 23 * len(rows) / len(target)) < 2
    assert sorted([*parts.training, *parts.validation, *parts.test]) == list(range(len(target)))


@pytest.mark.parametrize("seed", range(20))
def test_no_patient_is_in_two_parts(small_contract: Contract, seed: int) -> None:
    """However many rows a patient has, and in whatever order the rows stand."""
    generator = np.random.default_rng(seed)
    patients = tuple(f"p{number}" for number in generator.integers(0, 40, size=200))

    parts = split_rows(_table(small_contract, 200, patients), Split(seed=seed))
    owners = [{patients[row] for row in part} for part in (parts.training, parts.validation, parts.test)]
    order = generator.permutation(200)
    shuffled = tuple(patients[row] for row in order)
    again = split_rows(_table(small_contract, 200, shuffled), Split(seed=seed))

    assert sum(map(len, owners)) == len(set(patients))
    assert sorted([*parts.training, *parts.validation, *parts.test]) == list(range(200))
    assert {shuffled[row] for row in again.test} == owners[2]


@pytest.mark.parametrize(
    ("rows", "split"),
    [(2, Split(seed=0)), (5, Split(seed=0, test_share=0.9)), (3, Split(seed=0, validation_share=0.9))],
)
def test_an_empty_part_is_refused(small_contract: Contract, rows: int, split: Split) -> None:
    """Too few rows, or shares that leave none."""
    with pytest.raises(DataError, match="too few for training, validation and test"):
        split_rows(_table(small_contract, rows), split)
