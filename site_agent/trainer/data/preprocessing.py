"""Converts the columns of a checked table to the numbers that a network reads. Training rows determine how.

The same code encodes for training, testing and prediction. It is saved as JSON together with its contract, so a
prediction needs no second file that could have changed. The text keeps every float exactly. Numbers and ordinal
positions are z-scored with the population deviation (scikit-learn's StandardScaler); a column that is constant in
training is only centred. Columns of one-hot and of missing flags stay 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import Field

from protos.errors import DataError
from protos.plan.documents import Document
from site_agent.trainer.data.cell_rules import UNKNOWN_POSITION
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature, Feature, MeasuredFeature
from site_agent.trainer.data.contract import BinaryTarget, Contract, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.image_folder import blocks, reserved
from site_agent.trainer.data.mistakes import unusable
from site_agent.trainer.data.tables import Table


class Scale(Document):
    """Standardises by z = (value - mean) / deviation. The deviation is 1 if the training rows are all equal."""

    mean: float
    deviation: Annotated[float, Field(gt=0)]

    def apply(self, values: Numbers) -> Numbers:
        """Return float64 values, of any shape, standardised: minus the mean, divided by the deviation (z-scores)."""
        return (values - self.mean) / self.deviation


class NumericEncoding(Document):
    """Encodes a number as its z-score. `fill` replaces a missing value, if the contract allows missing values."""

    kind: Literal["numeric"] = "numeric"
    fill: float | None
    scale: Scale


class OrdinalEncoding(Document):
    """Encodes a code as its position. `fill` can replace the positions of codes that are not in `seen`."""

    kind: Literal["ordinal"] = "ordinal"
    seen: tuple[int, ...]
    scale: Scale
    fill: int | None = None


class OneHotEncoding(Document):
    """Encodes a code as one column for each code, and a column for unknown codes unless `fill` replaces these codes."""

    kind: Literal["one-hot"] = "one-hot"
    seen: tuple[int, ...]
    fill: int | None = None


Encoding: TypeAlias = NumericEncoding | OrdinalEncoding | OneHotEncoding


def fit_scale(values: Numbers) -> Scale:
    """Compute mean and standard deviation of float64 values of shape (rows,), at least one."""
    # Rounding gives a constant column a tiny deviation, and a division by it would amplify noise.
    constant = values.min() == values.max()
    deviation = 1.0 if constant else float(values.std())
    return Scale(mean=float(values[0] if constant else values.mean()), deviation=deviation or 1.0)


def fit_measured(feature: MeasuredFeature, values: Numbers) -> Encoding:
    """Fit the encoding of a number to the training rows: float64 of shape (rows,), NaN if missing."""
    fill = None if feature.missing == "refuse" else float(np.nanmedian(values))
    filled = values if fill is None else np.where(np.isnan(values), fill, values)
    return NumericEncoding(fill=fill, scale=fit_scale(filled))


def fit_coded(feature: CategoricalFeature, values: Numbers) -> Encoding:
    """Fit the encoding of a coded feature to training rows: positions, float64 (rows,), -1 if unknown."""
    known = values[values != UNKNOWN_POSITION].astype(np.int64)
    counts = np.bincount(known, minlength=len(feature.codes))
    seen = tuple(np.flatnonzero(counts >= feature.fewest_rows).tolist())
    # argmax takes the first of equally frequent codes, so that the result is always the same.
    fill = None if feature.has_unknown else int(np.argmax(counts))
    match feature.encoding:
        case "ordinal":
            placed = np.where(np.isin(values, seen), values, UNKNOWN_POSITION if fill is None else float(fill))
            return OrdinalEncoding(seen=seen, scale=fit_scale(placed), fill=fill)
        case "one-hot":
            return OneHotEncoding(seen=seen, fill=fill)
        case _:
            assert_never(feature.encoding)


def encode(feature: Feature, encoding: Encoding, values: Numbers) -> Numbers:
    """Encode the values (rows,) of one feature. Return its columns: float64 (rows, columns of the feature)."""
    match encoding:
        case NumericEncoding(fill=fill, scale=scale):
            absent = np.isnan(values)
            columns = scale.apply(values if fill is None else np.where(absent, fill, values))[:, None]
        case OrdinalEncoding() | OneHotEncoding():
            absent = ~np.isin(values, encoding.seen)
            columns = _coded(feature, encoding, np.where(absent, UNKNOWN_POSITION, values))
        case _:
            assert_never(encoding)
    if feature.missing.endswith("-and-flag"):
        return np.concatenate([columns, absent[:, None].astype(np.float64)], axis=1)
    return columns


def _coded(feature: Feature, encoding: OrdinalEncoding | OneHotEncoding, values: Numbers) -> Numbers:
    if encoding.fill is not None:
        values = np.where(values == UNKNOWN_POSITION, encoding.fill, values)
    match encoding:
        case OrdinalEncoding(scale=scale):
            return scale.apply(values)[:, None]
        case OneHotEncoding():
            width = len(feature.encoded_columns) - feature.missing.endswith("-and-flag")
            return np.eye(width)[np.where(values == UNKNOWN_POSITION, width - 1, values).astype(np.int64)]
        case _:
            assert_never(encoding)


Rows: TypeAlias = npt.NDArray[np.int64]
Features: TypeAlias = npt.NDArray[np.float32]
Targets: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.float64]


class Preprocessing(Document):
    """Everything that was fitted to the training rows, with one encoding per feature, in declared order."""

    version: Literal[1] = 1
    contract: Contract
    encodings: tuple[Annotated[Encoding, Field(discriminator="kind")], ...]
    target_scale: Scale | None
    pixel_scales: tuple[Scale, ...] = ()  # for images, one for each channel

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
            DataError: a value is so far from the training rows that float32 cannot store it.
        """
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
        """Return targets, (rows,): float32 0 and 1, int64 classes, or float64 z-scores."""
        if table.target is None:
            raise ValueError("a table read for prediction has no targets")
        match self.contract.target:
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


def fit(contract: Contract, table: Table, training_rows: Rows) -> Preprocessing:
    """Fit the encoding to training rows: int64 (rows,), one or more. Raise DataError if a column has no value."""
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
    encodings = [
        fit_measured(feature, values[feature.name])
        if isinstance(feature, MeasuredFeature)
        else fit_coded(feature, values[feature.name])
        for feature in contract.features
    ]
    has_scale = isinstance(contract.target, RegressionTarget) and table.target is not None
    return Preprocessing(
        contract=contract,
        encodings=tuple(encodings),
        target_scale=fit_scale(table.target[training_rows]) if has_scale and table.target is not None else None,
        pixel_scales=_pixel_scales(contract, table, training_rows),
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
