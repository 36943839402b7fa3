"""From a table to the arrays for training, and to columns that sites share by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError, DataError
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import align, check_columns
from tests.site_agent.trainer.sites import prepared

from .conftest import SMALL, SMALL_ROWS, contract_from

Write = Callable[..., Path]


def test_a_dataset_is_the_same_every_time(breast_cancer: tuple[Path, Contract]) -> None:
    """Same table, contract and split: same digest; another seed or one changed number: another."""
    one, fitted = prepared(*breast_cancer, Split(seed=5))
    again, _ = prepared(*breast_cancer, Split(seed=5))
    other, _ = prepared(*breast_cancer, Split(seed=6))
    features = one.test.features.copy()
    features[0, 0] += 1
    touched = replace(one, test=replace(one.test, features=features))

    assert one.digest == again.digest
    assert len({one.digest, other.digest, touched.digest, replace(one, columns=one.columns[::-1]).digest}) == 4
    assert one.columns == fitted.columns
    assert (len(one.training), len(one.validation), len(one.test)) == (342, 39, 188)


def test_the_rows_of_a_patient_are_known_by_a_number(write: Write) -> None:
    """Equal where the identifiers are, without the identifiers; without a patient column there is none."""
    declared = contract_from(SMALL.replace("{name: note, role: ignore}", "{name: note, role: patient}"))
    rows = [[*row[:4], f"P{number // 2}", row[5]] for number, row in enumerate(SMALL_ROWS)]

    named, _ = prepared(write(rows), declared, Split(seed=0))
    plain, _ = prepared(write(SMALL_ROWS), contract_from(SMALL), Split(seed=0))

    for part, patients in ((named.training, named.training_patients), (named.test, named.test_patients)):
        assert patients is not None
        assert np.unique(patients, return_counts=True)[1].tolist() == [2] * (len(part) // 2)
    assert align(named, named.columns).test_patients is named.test_patients
    assert plain.test_patients is plain.training_patients is None


def test_columns_find_their_places_by_name(breast_cancer: tuple[Path, Contract]) -> None:
    """Every own column is at its name's place, every other place is zero, targets are untouched."""
    dataset, _ = prepared(*breast_cancer, Split(seed=5))
    agreed = ["absent first", *reversed(dataset.columns), "absent last"]

    aligned = align(dataset, agreed)

    assert aligned.columns == tuple(agreed)
    for place, name in enumerate(agreed):
        own = dataset.test.features[:, dataset.columns.index(name)] if name in dataset.columns else 0
        np.testing.assert_array_equal(aligned.test.features[:, place], np.broadcast_to(own, len(dataset.test)))
    np.testing.assert_array_equal(aligned.training.targets, dataset.training.targets)
    assert aligned.training.features.flags.c_contiguous


def test_a_column_without_a_place_is_an_error(breast_cancer: tuple[Path, Contract]) -> None:
    """It is named, and never dropped in silence."""
    dataset, _ = prepared(*breast_cancer, Split(seed=5))

    with pytest.raises(
        ConfigurationError, match="columns of this site are not in the plan's list of columns: mean radius"
    ):
        check_columns(dataset.columns, dataset.columns[1:])


def test_training_rows_of_one_class_are_refused(write: Write, small_contract: Contract) -> None:
    """A table may have both classes while its training rows have one."""
    rows = [[*cells[:5], str(int(i == 0))] for i, cells in enumerate(SMALL_ROWS)]
    table = write(rows)

    refused = 0
    for seed in range(20):
        try:
            prepared(table, small_contract, Split(seed=seed))
        except DataError as error:
            assert "All training rows have the same outcome in sick" in error.what  # noqa: PT017
            refused += 1

    assert 0 < refused < 20


def test_a_dataset_prints_no_value(breast_cancer: tuple[Path, Contract]) -> None:
    """A traceback shows sizes and names only."""
    dataset, _ = prepared(*breast_cancer, Split(seed=5))

    assert "array" not in repr(dataset)
    assert "Examples(rows=342)" in repr(dataset)
