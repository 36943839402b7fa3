"""Prepares a site's table: splits and encodes its rows, and keeps the names of the columns.

Rows are split by a seed, by patient if declared. Each part has its share of every outcome (systematic sampling,
Cochran 1977, chapter 8). `steady_split` is for plans with `privacy`: a patient who joins or leaves must not move
another patient to another part.

`align` arranges the columns of sites with different tables in one common order, with zeros for absent columns: the
padded FedAvg of the paper. One difference: the authors' experiment shifted one site's columns by one. Here each column
is placed by its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError, DataError
from protos.plan.architecture import ColumnsNetwork, ImageSize, ParallelNetwork
from protos.plan.documents import nearest_name
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from site_agent.hospital import Split
from site_agent.trainer.data.column_profile import Profile, profile_of
from site_agent.trainer.data.columns import UNKNOWN
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.preprocessing import Features, Preprocessing, Rows, Targets, fit
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import array_digest


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """The row numbers, counted from 0, of the training, validation and test part: int64, in random order."""

    training: Rows
    validation: Rows
    test: Rows


def split_rows(table: Table, split: Split) -> SplitRows:
    """Return training, validation and test rows, each patient in one of them. Raise DataError if one is empty."""
    outcomes = np.zeros(table.rows) if table.target is None else table.target
    if table.patients is None:
        return _deal(table.rows, split, "rows", outcomes)
    # The identifiers are sorted, so that the result does not depend on the order of the file's rows.
    numbers = {patient: number for number, patient in enumerate(sorted(set(table.patients)))}
    owner = np.array([numbers[patient] for patient in table.patients], dtype=np.int64)
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


def _deal(count: int, split: Split, unit: str, outcomes: npt.NDArray[np.float64]) -> SplitRows:
    test_count = math.ceil(split.test_share * count)
    validation_count = math.ceil(split.validation_share * (count - test_count))
    if min(test_count, validation_count, count - test_count - validation_count) < 1:
        raise _too_few(count, unit)
    everyone = np.arange(count, dtype=np.int64)
    generator = np.random.default_rng(split.seed)
    test = _systematic(everyone, outcomes, test_count, generator)
    remaining = np.setdiff1d(everyone, test)
    validation = _systematic(remaining, outcomes, validation_count, generator)
    training = generator.permutation(np.setdiff1d(remaining, validation))
    return SplitRows(training=training, validation=validation, test=test)


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Examples:
    """Encoded rows of one part: training, validation or test.

    Attributes:
        features: float32, shape (rows, columns), C-contiguous.
        targets: shape (rows,): float32 of 0 and 1, int64, or float64, by task.
    """

    features: Features
    targets: Targets

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        """Return a text without a value of any patient."""
        return f"Examples(rows={len(self)})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """The encoded rows of a site for training, validation and test.

    Attributes:
        classes: empty for regression.
        training_patients, test_patients: int64 of shape (rows,), equal for rows of one patient;
            None if the contract declares no patient column.
        profile: the limits of the training rows, which are saved with the model.
        test_groups: for each group column the group of each test row, as text; "unknown" without a value.
        rows_without_outcome: the number of rows that are in no part, because the contract has `missing: drop`.
        rows_put_aside: the number of rows that are left out because they cannot be read, which a person accepted.
        image: the size of the images whose pixels are the columns.
    """

    training: Examples
    validation: Examples
    test: Examples
    columns: tuple[str, ...]
    task: Task
    classes: tuple[str, ...]
    training_patients: npt.NDArray[np.int64] | None = None
    test_patients: npt.NDArray[np.int64] | None = None
    profile: Profile = field(default_factory=lambda: Profile(columns=()))
    test_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows_without_outcome: int = 0
    rows_put_aside: int = 0
    image: ImageSize | None = None

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: one, or one for each of several classes."""
        return len(self.classes) if self.task == "multi-class" else 1

    @cached_property
    def digest(self) -> str:
        """The BLAKE3 digest of columns and arrays. Only this site uses the digest, to compare the data of two runs."""
        parts = (self.training, self.validation, self.test)
        names = np.array(self.columns, dtype=np.str_)
        arrays = [(str(i), array) for i, part in enumerate(parts) for array in (part.features, part.targets)]
        return array_digest("global-layers dataset 1", [("columns", names), *arrays])


def prepare_rows(table: Table, rows: SplitRows) -> tuple[Dataset, Preprocessing]:
    """Encode the three parts, fitted to training. Raise DataError if it has one class, or an empty column."""
    preprocessing = fit(table.contract, table, rows.training)
    targets = preprocessing.targets(table)
    target = table.contract.target
    if target.classes and len(np.unique(targets[rows.training])) < 2:
        raise DataError(
            what=f"All training rows have the same outcome in {target.name}, although the table has other outcomes.",
            consequence="Training did not start and nothing was sent.",
            remedy=(
                "In hospital.yaml, choose another seed, or a smaller test_share or validation_share. Or use a table "
                "with more rows."
            ),
        )
    training, validation, test = (
        Examples(features=preprocessing.encode(table, part), targets=targets[part])
        for part in (rows.training, rows.validation, rows.test)
    )
    dataset = Dataset(
        training=training,
        validation=validation,
        test=test,
        columns=preprocessing.columns,
        task=target.task,
        classes=target.classes,
        training_patients=_patients(table, rows.training),
        test_patients=_patients(table, rows.test),
        profile=profile_of(table.contract, table, rows.training),
        test_groups=_groups(table, rows.test),
        rows_without_outcome=len(table.dropped),
        rows_put_aside=len(table.put_aside),
        image=None if table.contract.image is None else table.contract.image.image,
    )
    return dataset, preprocessing


def _groups(table: Table, rows: Rows) -> dict[str, tuple[str, ...]]:
    found = {}
    for column in table.contract.groups:
        if (positions := table.features.get(column.name, table.group_positions.get(column.name))) is not None:
            names = np.array((*(column.labels or column.codes), UNKNOWN), dtype=object)
            found[column.name] = tuple(names[np.nan_to_num(positions[rows], nan=-1.0).astype(np.int64)])
    return found


def _patients(table: Table, rows: Rows) -> npt.NDArray[np.int64] | None:
    if table.patients is None:
        return None
    return np.unique([table.patients[row] for row in rows], return_inverse=True)[1].astype(np.int64)


def input_columns(plan: Plan, own: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Return the columns that a plan's network reads at this site, and how many of them all sites have.

    The number is None if the network treats all columns alike.
    """
    if not isinstance(plan, NetworkPlan) or not plan.columns:
        return tuple(own), None
    if not isinstance(plan.architecture, ParallelNetwork | ColumnsNetwork):
        return plan.column_names, None
    return (*plan.column_names, *(column for column in own if column not in plan.column_names)), len(plan.column_names)


def align(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the same rows with the columns in `columns`, in this order. A column that this site lacks is zero."""

    def aligned(part: Examples) -> Examples:
        return replace(part, features=place_columns(part.features, dataset.columns, columns))

    return replace(
        dataset,
        training=aligned(dataset.training),
        validation=aligned(dataset.validation),
        test=aligned(dataset.test),
        columns=tuple(columns),
    )


def place_columns(features: Features, own: Sequence[str], columns: Sequence[str]) -> Features:
    """Copy features (rows, len(own)) to float32 (rows, len(columns)), in the order of `columns`, without others."""
    places = {name: place for place, name in enumerate(columns)}
    placed = np.zeros((len(features), len(columns)), dtype=np.float32)
    read = [place for place, name in enumerate(own) if name in places]
    placed[:, [places[own[place]] for place in read]] = features[:, read]
    return placed


def check_columns(own: Sequence[str], columns: Sequence[str]) -> None:
    """Raise ConfigurationError if a column of this site is not in the plan's list, and suggest similar ones."""
    agreed, mine = set(columns), set(own)
    if strangers := [name for name in own if name not in agreed]:
        free = [name for name in columns if name not in mine]
        near = [(name, nearest_name(name, free)) for name in strangers[:5]]
        names = ", ".join(name if like is None else f"{name} (did you mean {like}?)" for name, like in near)
        raise ConfigurationError(
            what=f"These columns of this site are not in the plan's list of columns: {names}.",
            consequence="Training did not start and nothing was sent.",
            remedy=(
                "Ask the federation office to add them to the plan's list. Or set `role: ignore` for these columns in "
                "the contract."
            ),
        )
