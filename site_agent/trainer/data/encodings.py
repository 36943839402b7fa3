"""Encodes a feature as columns of numbers. The encoding is fitted to the training rows and then used for all rows.

Numbers and ordinal positions are z-scored with the population deviation (scikit-learn's StandardScaler); a column that
is constant in training is only centred. Columns of one-hot and of missing flags stay 0 and 1. All fitted values are a
few plain numbers, so they can be read, compared and saved as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated, Final, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import Field

from protos.plan.documents import Document
from site_agent.trainer.data.cell_rules import UNKNOWN_POSITION
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract_columns import CategoricalFeature, Feature, MeasuredFeature

_KNOTS: Final = 101


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


class QuantileEncoding(Document):
    """Encodes a number by its rank among the training rows, as a normal score.

    `scores` has the scores at `values`, with straight lines between them. Beyond them the score is constant.
    """

    kind: Literal["quantile"] = "quantile"
    fill: float | None
    values: tuple[float, ...] = Field(min_length=1)
    scores: tuple[float, ...] = Field(min_length=1)


class PiecewiseEncoding(Document):
    """Encodes a number as one fraction for each bin: how much of the bin is below it.

    `ends` has the bins' ends, rising.

    Source: Gorishniy, Rubachev, Babenko 2022, "On Embeddings for Numerical Features in Tabular Deep Learning",
    equation 1 and section 3.2.1. Differs in one thing: a bin of width 0 keeps its column, which is then zero, so that
    the number of columns follows from the contract.
    """

    kind: Literal["piecewise-linear"] = "piecewise-linear"
    fill: float | None
    ends: tuple[float, ...] = Field(min_length=3)


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


class EmbeddingEncoding(Document):
    """Encodes a code as a vector. `vectors` has a row for each code, and a last row for unknown codes."""

    kind: Literal["embedding"] = "embedding"
    seen: tuple[int, ...]
    vectors: tuple[tuple[float, ...], ...]
    fill: int | None = None


Encoding: TypeAlias = (
    NumericEncoding | QuantileEncoding | PiecewiseEncoding | OrdinalEncoding | OneHotEncoding | EmbeddingEncoding
)


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
    match feature.encoding:
        case "standard":
            return NumericEncoding(fill=fill, scale=fit_scale(filled))
        case "quantile":
            shares = np.linspace(0.0, 1.0, _KNOTS)
            knots, place = np.unique(np.quantile(filled, shares), return_inverse=True)
            # If many rows have the same value, the score is that of the middle one of these rows.
            middle = np.bincount(place, weights=shares) / np.bincount(place)
            scores = [NormalDist().inv_cdf(float(np.clip(share, 0.001, 0.999))) for share in middle]
            return QuantileEncoding(fill=fill, values=tuple(map(float, knots)), scores=tuple(scores))
        case "piecewise-linear":
            ends = np.quantile(filled, np.linspace(0.0, 1.0, feature.bins + 1))
            return PiecewiseEncoding(fill=fill, ends=tuple(map(float, ends)))
        case _:
            assert_never(feature.encoding)


def fit_coded(feature: CategoricalFeature, values: Numbers, others: Sequence[Numbers]) -> Encoding:
    """Fit the encoding of a coded feature to training rows: positions, float64 (rows,), -1 if unknown.

    Embeddings need `others`: the other features' columns for the same rows, of mean 0 and deviation 1.
    """
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
        case "embedding":
            placed = np.where(np.isin(values, seen), values, len(feature.codes)).astype(np.int64)
            vectors = _points(placed, len(feature.codes) + 1, others, feature.width)
            return EmbeddingEncoding(seen=seen, vectors=tuple(map(tuple, vectors.tolist())), fill=fill)
        case _:
            assert_never(feature.encoding)


def _points(positions: npt.NDArray[np.int64], codes: int, others: Sequence[Numbers], width: int) -> Numbers:
    """Return a vector for each code, (codes, width): its rows' mean, projected on the axes of the largest differences.

    These are the principal axes of the means of the other features, each code weighted by its rows. Codes without
    rows lie at the origin, where the mean patient is.
    """
    counts = np.bincount(positions, minlength=codes).astype(np.float64)
    sums = [np.bincount(positions, weights=column, minlength=codes) for column in others]
    means = np.stack(sums, axis=1) / np.maximum(counts, 1.0)[:, None] if sums else np.zeros((codes, 1))
    root = np.sqrt(counts / counts.sum())[:, None]
    axes = np.linalg.svd(root * means, full_matrices=False)[2][:width]
    # An axis can have either sign. The sign is chosen so that the largest entry is positive. So the result is always
    # the same.
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    points = means @ axes.T
    spread = np.sqrt((root**2 * points**2).sum(axis=0))
    points = np.where(spread > 1e-9, points / np.where(spread > 1e-9, spread, 1.0), 0.0)
    return np.pad(points, ((0, 0), (0, width - points.shape[1])))


def encode(feature: Feature, encoding: Encoding, values: Numbers) -> Numbers:
    """Encode the values (rows,) of one feature. Return its columns: float64 (rows, columns of the feature)."""
    match encoding:
        case NumericEncoding() | QuantileEncoding() | PiecewiseEncoding():
            absent = np.isnan(values)
            columns = _measured(encoding, values if encoding.fill is None else np.where(absent, encoding.fill, values))
        case OrdinalEncoding() | OneHotEncoding() | EmbeddingEncoding():
            absent = ~np.isin(values, encoding.seen)
            columns = _coded(feature, encoding, np.where(absent, UNKNOWN_POSITION, values))
        case _:
            assert_never(encoding)
    if feature.missing.endswith("-and-flag"):
        return np.concatenate([columns, absent[:, None].astype(np.float64)], axis=1)
    return columns


def _measured(encoding: NumericEncoding | QuantileEncoding | PiecewiseEncoding, values: Numbers) -> Numbers:
    match encoding:
        case NumericEncoding(scale=scale):
            return scale.apply(values)[:, None]
        case QuantileEncoding(values=knots, scores=scores):
            return np.interp(values, knots, scores)[:, None]
        case PiecewiseEncoding(ends=ends):
            return shares_of_bins(values, np.array(ends))
        case _:
            assert_never(encoding)


def _coded(
    feature: Feature, encoding: OrdinalEncoding | OneHotEncoding | EmbeddingEncoding, values: Numbers
) -> Numbers:
    if encoding.fill is not None:
        values = np.where(values == UNKNOWN_POSITION, encoding.fill, values)
    match encoding:
        case OrdinalEncoding(scale=scale):
            return scale.apply(values)[:, None]
        case OneHotEncoding():
            width = len(feature.encoded_columns) - feature.missing.endswith("-and-flag")
            return np.eye(width)[np.where(values == UNKNOWN_POSITION, width - 1, values).astype(np.int64)]
        case EmbeddingEncoding(vectors=vectors):
            return np.array(vectors)[values.astype(np.int64)]  # unknown, -1, is the last one
        case _:
            assert_never(encoding)


def shares_of_bins(values: Numbers, ends: Numbers) -> Numbers:
    """Return for each value how much of each bin it covers, 0 to 1, by equation 1 of Gorishniy et al. 2022.

    From values (rows,) and rising `ends` (bins + 1,), not necessarily strictly, to (rows, bins): 1 in the bins below a
    value, 0 in those above, the reached share in its own. For values beyond those of the training rows, the first open
    bin falls below 0 and the last rises above 1.
    """
    low, width = ends[:-1], np.diff(ends)
    is_open = width > 0
    share = (values[:, None] - low) / np.where(is_open, width, 1.0)
    floor, ceiling = np.zeros(len(width)), np.ones(len(width))
    if is_open.any():
        floor[np.flatnonzero(is_open)[0]], ceiling[np.flatnonzero(is_open)[-1]] = -np.inf, np.inf
    return np.where(is_open, np.clip(share, floor, ceiling), 0.0)
