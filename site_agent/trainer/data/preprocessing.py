"""Converts the columns of a checked table to the numbers that a network reads. Training rows determine how.

The same code encodes for training, testing and prediction. It is saved as JSON together with its contract, so a
prediction needs no second file that could have changed. The text keeps every float exactly. A feature's columns and
their names follow from the contract alone. encodings.py computes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import Field

from protos.errors import ConfigurationError, DataError
from protos.plan.documents import Document
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract import BinaryTarget, Contract, MaskTarget, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.contract_columns import CategoricalFeature, Feature, MeasuredFeature
from site_agent.trainer.data.encodings import Encoding, Scale, encode, fit_coded, fit_measured, fit_scale
from site_agent.trainer.data.mistakes import unusable
from site_agent.trainer.data.pixel_store import blocks, reserved
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.data.terms import TermWeights, fit_terms, in_order, weighted

Features: TypeAlias = npt.NDArray[np.float32]
Targets: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.float64]


class Preprocessing(Document):
    """Everything that was fitted to the training rows, with one encoding per feature, in declared order."""

    version: Literal[1] = 1
    contract: Contract
    encodings: tuple[Annotated[Encoding, Field(discriminator="kind")], ...]
    target_scale: Scale | None
    pixel_scales: tuple[Scale, ...] = ()  # for images, one for each channel
    term_weights: tuple[TermWeights, ...] = ()  # for lists and notes, in declared order

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        """Return what `repr` shows: only fields without means and medians, because a traceback can contain the text."""
        return [("columns", len(self.columns))]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that a network reads, after encoding, in order."""
        return self.contract.encoded_columns

    def encode(self, table: Table, rows: Rows | None = None) -> Features:
        """Return the columns that a network reads for the rows of a table, C-contiguous float32 (rows, columns).

        `rows` are the wanted rows, int64, in order; None takes all.

        Raises:
            ConfigurationError: the table was read under a contract with other features or codes.
            DataError: a value is so far from the training rows that float32 cannot store it.
        """
        self._check_layout(table.contract)
        count = table.rows if rows is None else len(rows)
        encoded = reserved(None if table.images is None else table.scratch, count, len(self.columns))
        place = 0
        too_far = []
        for feature, encoding in zip(self.contract.features, self.encodings, strict=True):
            width = len(feature.encoded_columns)
            values = table.features[feature.name]
            with np.errstate(over="ignore"):
                encoded[:, place : place + width] = encode(feature, encoding, values if rows is None else values[rows])
            if not np.isfinite(encoded[:, place : place + width]).all():
                too_far.append(feature.name)
            place += width
        for column, weights in zip(self.contract.terms, self.term_weights, strict=True):
            counts = table.terms[column.name] if rows is None else table.terms[column.name][rows]
            width, counted = counts.shape[1], len(weights.rarity)
            encoded[:, place : place + counted] = weighted(counts[:, :counted], weights)
            if column.buckets is not None:
                encoded[:, place + counted : place + width] = in_order(counts[:, counted:], column.buckets)
            place += width
        if table.images is not None:
            self._encode_images(table.images, np.arange(count) if rows is None else rows, encoded[:, place:])
        if too_far:
            raise unusable(
                what=(
                    "These columns have values that are too far from the values of the training rows: "
                    f"{', '.join(too_far[:5])}."
                ),
                remedy=(
                    "Declare a range of possible values for these columns in the contract. Then `site-agent data "
                    "check` lists the rows "
                    "with values outside the range."
                ),
            )
        return encoded

    def _encode_images(self, images: Features, rows: Rows, encoded: Features) -> None:
        for block in blocks(len(rows), encoded.shape[1]):
            parts = np.split(images[rows[block]], len(self.pixel_scales), axis=1)
            places = np.split(encoded[block], len(self.pixel_scales), axis=1)
            for scale, part, place in zip(self.pixel_scales, parts, places, strict=True):
                place[:] = (part - np.float32(scale.mean)) / np.float32(scale.deviation)

    def targets(self, table: Table) -> Targets:
        """Return targets: float32 0 and 1, (rows,), or (rows, pixels) for masks; int64 classes; float64 z-scores."""
        if table.target is None:
            raise ValueError("a table read for prediction has no targets")
        match self.contract.target:
            case MaskTarget():
                assert table.masks is not None
                return table.masks
            case BinaryTarget():
                return table.target.astype(np.float32)
            case MultiClassTarget():
                return table.target.astype(np.int64)
            case RegressionTarget():
                return self._scale().apply(table.target)
            case _ as target:
                assert_never(target)

    def in_target_units(self, standardised: Numbers) -> Numbers:
        """Convert a regression's standardised outputs (z-scores), float64 of any shape, to the unit of the outcome."""
        scale = self._scale()
        return standardised * scale.deviation + scale.mean

    def _scale(self) -> Scale:
        if self.target_scale is None:
            raise ValueError("only a regression target has a scale")
        return self.target_scale

    def _check_layout(self, contract: Contract) -> None:
        if contract is self.contract or _layout(contract) == _layout(self.contract):
            return
        raise ConfigurationError(
            what=(
                "The features or codes of the contract differ from those of the contract with which the model was "
                "trained."
            ),
            consequence="The table was not used and nothing was sent.",
            remedy="Use the contract with which the model was trained, or train a new model.",
        )


def fit(contract: Contract, table: Table, training_rows: Rows) -> Preprocessing:
    """Fit the encoding of each column to the training rows of a table: int64 (training rows,), at least one.

    Raises:
        DataError: a column has no value at all in the training rows.
    """
    if not len(training_rows):
        raise ValueError("at least one training row is needed")
    values = {feature.name: table.features[feature.name][training_rows] for feature in contract.features}
    empty = [
        feature.name
        for feature in contract.features
        if isinstance(feature, MeasuredFeature) and np.isnan(values[feature.name]).all()
    ]
    if empty:
        raise DataError(
            what=f"These columns have no value in any training row: {', '.join(empty[:5])}.",
            consequence="Training did not start and nothing was sent.",
            remedy="Set `role: ignore` for these columns in the contract, so that they are not used.",
        )
    encodings = []
    for feature in contract.features:
        if isinstance(feature, MeasuredFeature):
            encodings.append(fit_measured(feature, values[feature.name]))
        else:
            others = [other for other in contract.features if other is not feature]
            is_told = feature.encoding == "embedding"
            context = [column for other in others for column in _context(other, values[other.name])] if is_told else []
            encodings.append(fit_coded(feature, values[feature.name], context))
    has_scale = isinstance(contract.target, RegressionTarget) and table.target is not None
    return Preprocessing(
        contract=contract,
        encodings=tuple(encodings),
        target_scale=fit_scale(table.target[training_rows]) if has_scale and table.target is not None else None,
        pixel_scales=_pixel_scales(contract, table, training_rows),
        term_weights=tuple(
            fit_terms(table.terms[column.name][training_rows, : column.counted]) for column in contract.terms
        ),
    )


def _pixel_scales(contract: Contract, table: Table, training_rows: Rows) -> tuple[Scale, ...]:
    if contract.image is None or table.images is None:
        return ()
    size = contract.image.image
    channels = (slice(first, first + size.pixels) for first in range(0, size.numbers, size.pixels))
    return tuple(_channel_scale(table.images, training_rows, columns) for columns in channels)


def _channel_scale(images: Features, rows: Rows, columns: slice) -> Scale:
    """Fit a channel's mean and deviation as `fit_scale` does, with only a few rows in memory at a time."""

    def parts() -> Iterator[Numbers]:
        for block in blocks(len(rows), columns.stop - columns.start):
            yield images[rows[block], columns].astype(np.float64)

    low, high = min(float(part.min()) for part in parts()), max(float(part.max()) for part in parts())
    if low == high:
        return Scale(mean=low, deviation=1.0)
    numbers = len(rows) * (columns.stop - columns.start)
    mean = math.fsum(float(part.sum()) for part in parts()) / numbers
    variance = math.fsum(float(np.square(part - mean).sum()) for part in parts()) / numbers
    return Scale(mean=mean, deviation=math.sqrt(variance) or 1.0)


def _context(feature: Feature, values: Numbers) -> Sequence[Numbers]:
    """Return a feature as standardised columns, to fit the embeddings of other features. Constant columns are 0."""
    if isinstance(feature, CategoricalFeature):
        columns = [(values == place).astype(np.float64) for place in range(len(feature.codes))]
    else:
        columns = [np.where(np.isnan(values), np.nanmean(values), values)]
    return [fit_scale(column).apply(column) for column in columns]


def _layout(contract: Contract) -> list[tuple[str, tuple[str, ...]]]:
    """Return the parts of a contract that must be equal in training and prediction. Units and ranges can differ."""
    images = [] if contract.image is None else [(contract.image.name, (str(contract.image.image),))]
    terms = [(item.name, (item.type, item.separator, *item.encoded_columns)) for item in contract.terms]
    return [
        *images,
        *terms,
        *(
            (item.name, item.codes if isinstance(item, CategoricalFeature) else (item.missing,))
            for item in contract.features
        ),
    ]
