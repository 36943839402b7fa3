"""Splits rows into training, validation and test: by a seed, by patient if declared, always in the same way.

Source: the paper's experiment ("Data of the paper's experiments"): two calls of scikit-learn's `train_test_split` with
one seed, shuffled, not stratified. It differs in two cases. If a patient column is declared, patients are divided
instead of rows. If the hospital's file has `stratified`, each part has its share of every outcome (systematic sampling,
Cochran 1977, chapter 8). `steady_split` is for plans with `privacy`. There a patient who joins or leaves must not move
another patient to another part.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.errors import DataError
from site_agent.hospital import Split
from site_agent.trainer.data.tables import Table

Rows: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """The row numbers, counted from 0, of the training, validation and test part: int64, ordered as by scikit-learn."""

    training: Rows
    validation: Rows
    test: Rows


def split_rows(table: Table, split: Split) -> SplitRows:
    """Return the training, validation and test rows. If patients are identified, no patient is in two of these parts.

    Raises:
        DataError: a part would be empty.
    """
    outcomes = _outcomes(table) if split.stratified else None
    if table.patients is None:
        return _deal(table.rows, split, "rows", outcomes)
    # The identifiers are sorted, so that the result does not depend on the order of the file's rows.
    numbers = {patient: number for number, patient in enumerate(sorted(set(table.patients)))}
    owner = np.array([numbers[patient] for patient in table.patients], dtype=np.int64)
    if outcomes is not None:
        # The outcome of a patient with several rows is their mean.
        outcomes = np.bincount(owner, weights=outcomes) / np.bincount(owner)
    dealt = _deal(len(numbers), split, "patients", outcomes)

    def rows_of(part: Rows) -> Rows:
        return np.flatnonzero(np.isin(owner, part)).astype(np.int64)

    return SplitRows(training=rows_of(dealt.training), validation=rows_of(dealt.validation), test=rows_of(dealt.test))


def steady_split(table: Table, split: Split) -> SplitRows:
    """Split a table. A digest of the patient and the seed decides to which part a row belongs.

    Without a patient column a hash of the row's values decides, so equal rows are in one part. Parts have about the
    declared shares.

    Raises:
        DataError: a part would be empty.
    """
    if table.patients is not None:
        names = [patient.encode("utf-8", "surrogatepass") for patient in table.patients]
    else:
        columns = [*(table.features[name] for name in sorted(table.features)), *table.marks]
        columns += [] if table.target is None else [table.target]
        names = [row.tobytes() for row in np.stack(columns, axis=1).astype("<f8")]
    key = f"steady split 1 {split.seed}".encode()
    digests = b"".join(hashlib.blake2b(name, digest_size=8, key=key).digest() for name in names)
    places = np.frombuffer(digests, "<u8") / 2.0**64
    tests, validates = split.test_share, split.test_share + (1 - split.test_share) * split.validation_share
    edges = (places < tests, (places >= tests) & (places < validates), places >= validates)
    test, validation, training = (np.flatnonzero(part).astype(np.int64) for part in edges)
    if min(len(test), len(validation), len(training)) < 1:
        raise _too_few(table.rows, "rows")
    return SplitRows(training=training, validation=validation, test=test)


def _outcomes(table: Table) -> npt.NDArray[np.float64]:
    return np.zeros(table.rows) if table.target is None else table.target


def _deal(count: int, split: Split, unit: str, outcomes: npt.NDArray[np.float64] | None) -> SplitRows:
    test_count = math.ceil(split.test_share * count)
    validation_count = math.ceil(split.validation_share * (count - test_count))
    if min(test_count, validation_count, count - test_count - validation_count) < 1:
        raise _too_few(count, unit)
    everyone = np.arange(count, dtype=np.int64)
    if outcomes is not None:
        generator = np.random.default_rng(split.seed)
        test = _systematic(everyone, outcomes, test_count, generator)
        remaining = np.setdiff1d(everyone, test)
        validation = _systematic(remaining, outcomes, validation_count, generator)
        return SplitRows(
            training=generator.permutation(np.setdiff1d(remaining, validation)), validation=validation, test=test
        )
    remaining, test = _shuffled(everyone, test_count, split.seed)
    training, validation = _shuffled(remaining, validation_count, split.seed)
    return SplitRows(training=training, validation=validation, test=test)


def _shuffled(rows: Rows, count: int, seed: int) -> tuple[Rows, Rows]:
    """Draw `count` rows as `train_test_split` does. Return all other rows, and the drawn rows.

    scikit-learn takes a second to load with its libraries, and a site's start would wait for it.
    """
    order = np.random.RandomState(seed).permutation(len(rows))  # the generator of scikit-learn
    return rows[order[count:]], rows[order[:count]]


def _systematic(rows: Rows, outcomes: npt.NDArray[np.float64], count: int, generator: np.random.Generator) -> Rows:
    """Draw `count` rows at equal distances in a list that is sorted by outcome. Equal outcomes are in random order."""
    shuffled = generator.permutation(rows)
    ordered = shuffled[np.argsort(outcomes[shuffled], kind="stable")]
    places = (np.arange(count) + generator.random()) * (len(rows) / count)
    return generator.permutation(ordered[places.astype(np.int64)])


def _too_few(count: int, unit: str) -> DataError:
    return DataError(
        what=f"The table has only {count} {unit}: too few for training, validation and test rows.",
        consequence="Training did not start and nothing was sent.",
        remedy=f"Use a table with more {unit}, or a smaller test_share or validation_share in hospital.yaml.",
    )
