"""Finds a column with two units, such as cholesterol in mg/dl for some patients and in mmol/l for others.

Then the logarithms of its values form two groups of about the same width with a gap between them. A person looks at the
rows. The program knows no units and changes no value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.examined_columns import (
    FEW_NEGATIVE,
    FEWEST_DIFFERENT,
    FEWEST_VALUES,
    unlikely_markers,
)
from site_agent.desk.examination.finding import Finding, row_warning
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import NumericFeature
from site_agent.trainer.data.tables import Table

_FEWEST_IN_A_UNIT: Final = 10
_SMALLEST_SHARE: Final = 0.04
_SMALLEST_FACTOR: Final = 1.5
_STEPS_IN_VALLEY: Final = 3.0
_WIDEST_RATIO: Final = 2.5
# The largest ratio of values in the gap to values in the smaller group, and how much fewer they are at least, in
# standard deviations.
_FULLEST: Final = 0.35
_EMPTIER: Final = 4.0
_SEPARATES: Final = 0.9

Rows = npt.NDArray[np.bool_]


def unit_findings(table: Table) -> Iterator[Finding]:
    """Yield a warning for each column of numbers that seems to have two units."""
    for feature in table.contract.features:
        values = table.features[feature.name]
        if not isinstance(feature, NumericFeature):
            continue
        others = [column for name, column in table.features.items() if name != feature.name]
        others += [] if table.target is None else [table.target]
        markers = unlikely_markers(values)
        found = two_units(np.where(np.isin(values, markers), np.nan, values), others)
        if found is not None:
            is_rarer, factor = found
            words = (
                f"column {feature.name}: {is_rarer.mean():.0%} of the rows have values on another scale, by a factor "
                f"of about {factor:.2g}; is it another unit?; if so, convert them in the table"
            )
            yield from row_warning(table, f"mixed-units:{feature.name}", words, is_rarer)


def two_units(values: Numbers, others: Sequence[Numbers] = ()) -> tuple[Rows, float] | None:
    """Return which rows have the rarer unit, bool (rows,), and the factor between both. Return None for one unit.

    Args:
        values: float64 of shape (rows,), NaN if missing. A column with many negative numbers is skipped.
        others: further columns of these rows, including the outcome. If one of them separates the two groups, they are
            two kinds of patients and not two units.
    """
    is_there = values > 0
    if (values < 0).sum() > FEW_NEGATIVE * is_there.sum():
        return None
    found = _two_groups(np.log(values[is_there]))
    if found is None:
        return None
    border, distance = found
    is_upper = np.log(np.where(is_there, values, 1.0)) >= border
    is_upper &= is_there
    if any(_tells_apart(column, is_there, is_upper) for column in others):
        return None
    is_rarer = is_upper if is_upper.sum() <= is_there.sum() / 2 else is_there & ~is_upper
    return is_rarer, math.exp(distance)


def _two_groups(logs: Numbers) -> tuple[float, float] | None:
    """Return the border between two groups, and the distance of their medians. Return None for one group."""
    ordered = np.sort(logs)
    if len(ordered) < FEWEST_VALUES or len(np.unique(ordered)) < FEWEST_DIFFERENT:
        return None
    # The division with the largest variance between both parts (Otsu 1979, equation 18).
    counts, sums = np.arange(1, len(ordered)), np.cumsum(ordered)[:-1]
    means = sums / counts, (ordered.sum() - sums) / (len(ordered) - counts)
    place = int(np.argmax(counts * (len(ordered) - counts) * (means[1] - means[0]) ** 2)) + 1
    lower, upper = ordered[:place], ordered[place:]
    low, high = float(np.median(lower)), float(np.median(upper))
    distance, fewer = high - low, min(len(lower), len(upper))
    if distance < math.log(_SMALLEST_FACTOR) or fewer < max(_FEWEST_IN_A_UNIT, _SMALLEST_SHARE * len(ordered)):
        return None
    widths = sorted(max(float(np.ptp(np.quantile(part, [0.2, 0.8]))), 1e-3) for part in (lower, upper))
    if widths[1] > _WIDEST_RATIO * widths[0]:
        return None  # on a logarithmic scale, the same measurement in another unit has the same spread
    middle, quarter = (low + high) / 2, distance / 4
    if math.exp(middle) * quarter < _STEPS_IN_VALLEY * float(np.diff(np.unique(np.exp(ordered))).min()):
        return None  # the values are rounded so much that the gap can be the step between two neighbouring values
    below, gap, above = (int((np.abs(ordered - at) <= quarter / 2).sum()) for at in (low, middle, high))
    groups = min(below, above)
    if gap > _FULLEST * groups or groups - gap < _EMPTIER * math.sqrt(groups + gap):
        return None
    return float(lower[-1] + upper[0]) / 2, distance


def _tells_apart(column: Numbers, is_there: Rows, is_upper: Rows) -> bool:
    """Return whether another column nearly determines a value's group: area under the ROC curve at least 0.9."""
    from sklearn.metrics import roc_auc_score

    both = is_there & ~np.isnan(column)
    if is_upper[both].all() or not is_upper[both].any():
        return False
    area = float(roc_auc_score(is_upper[both], column[both]))
    return max(area, 1 - area) >= _SEPARATES
