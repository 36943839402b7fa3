"""Finds numbers that seem wrong: two units in one column, values far from all others, and marks for "not known".

A column has mixed units, such as cholesterol in mg/dl for some patients and in mmol/l for others, if the logarithms of
its values form two groups of about the same width with a gap between them. A known factor between two clinical units
needs less evidence than another factor.

A number such as a cholesterol of 0 or a weight of 999 is reported if people use it as a marker and it is far from all
other numbers. A person then looks at the rows, or states the number's meaning in the contract.

Whole numbers of which nearly all differ can be numbers of patients, see `seem_identifiers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.examined_outcome import auroc
from site_agent.trainer.data.cells import Numbers

FEWEST_VALUES: Final = 40
FEWEST_IN_A_UNIT: Final = 10
SMALLEST_SHARE: Final = 0.04
_FEWEST_DIFFERENT: Final = 12
_SMALLEST_FACTOR: Final = 1.5
_TOLERANCE: Final = 0.12
# The width of the middle 60% of a normal distribution in standard deviations, and an error for rounded values.
_DEVIATIONS_ACROSS: Final = 1.683
_ROUNDING: Final = 0.01
_STEPS_IN_VALLEY: Final = 3.0
_WIDEST_RATIO: Final = 2.5
# The largest ratio of values in the gap to values in the smaller group, and the least difference of these two numbers
# in standard deviations.
_KNOWN: Final = (0.6, 2.6)
_ANY: Final = (0.35, 4.0)
_SEPARATES: Final = 0.9
# About ten standard deviations of a normal distribution on the logarithmic scale, in units of the distance from the
# median to the first or last decile (1.28 standard deviations).
_FAR_LOGS: Final = 8.0
_FAR_BELOW: Final = 3.0
_FAR_SIGNED: Final = 40.0
_FEW_NEGATIVE: Final = 0.01
CANDIDATES: Final = (
    *(-1.0, -2.0, -3.0, -7.0, -8.0, -9.0, -77.0, -88.0, -99.0, -777.0, -888.0, -999.0, -9999.0, -99999.0),
    *(0.0, 77.0, 88.0, 96.0, 97.0, 98.0, 99.0, 99.9, 777.0, 888.0, 996.0, 997.0, 998.0, 999.0, 999.9),
    *(7777.0, 8888.0, 9996.0, 9997.0, 9998.0, 9999.0, 99999.0, 999999.0),
)
TEXT_MARKERS: Final = frozenset(
    {
        "?",
        "na",
        "n/a",
        "#n/a",
        "#null!",
        "nan",
        "null",
        ".",
        "-",
        "--",
        "unknown",
        "missing",
        "not known",
        "unk",
        "k.a.",
    }
)
# These words can also be an answer, so they are markers only among numbers and dates.
ANSWERS: Final = frozenset({"none", "nil", "nd", "keine", "normal"})
_FEWEST_OTHERS: Final = 5
_FAR: Final = 10.0
# Of a patient's number: the least number of different values, and their least share, because patients come again. The
# smallest number with as many digits as a hospital uses, and the largest share of round numbers.
_FEWEST_IDENTIFIERS: Final = 20
_DIFFERENT: Final = 0.7
_LONG: Final = 10_000
_ROUND: Final = 0.5
_SURPRISE: Final = 5.0


@dataclass(frozen=True)
class Conversion:
    """Two units of one measurement. A value in the first unit, times `factor` plus `offset`, is in the second unit."""

    first: str
    second: str
    factor: float
    offset: float = 0.0


CONVERSIONS: Final = (
    Conversion("mmol/l", "mg/dl of cholesterol", 38.67),
    Conversion("mmol/l", "mg/dl of triglycerides", 88.57),
    Conversion("mmol/l", "mg/dl of glucose", 18.02),
    Conversion("mmol/l", "mg/dl of urea", 6.006),
    Conversion("mmol/l", "mg/dl of urea nitrogen", 2.801),
    Conversion("mmol/l", "mg/dl of calcium", 4.008),
    Conversion("mmol/l", "mg/dl of magnesium", 2.431),
    Conversion("mmol/l", "mg/dl of phosphate", 3.097),
    Conversion("mmol/l", "mg/dl of lactate", 9.008),
    Conversion("mg/dl", "\N{MICRO SIGN}mol/l of creatinine", 88.42),
    Conversion("mg/dl", "\N{MICRO SIGN}mol/l of bilirubin", 17.1),
    Conversion("mg/dl", "\N{MICRO SIGN}mol/l of uric acid", 59.48),
    Conversion("mmol/l", "g/dl of haemoglobin", 1.611),
    Conversion("g/dl", "g/l, or mg/dl and mg/l", 10.0),
    Conversion("one unit", "another that is a hundredth of it, such as m and cm", 100.0),
    Conversion("one unit", "another that is a thousandth of it, such as g and mg", 1000.0),
    Conversion("inch", "cm", 2.54),
    Conversion("kg", "pounds", 2.2046),
    Conversion("kPa", "mmHg", 7.5006),
    Conversion("ng/ml", "nmol/l of vitamin D", 2.496),
    Conversion("months", "days", 30.44),
    Conversion("years", "months", 12.0),
    Conversion("years", "days", 365.25),
    Conversion("degrees Celsius", "degrees Fahrenheit", 1.8, 32.0),
    Conversion("% of HbA1c", "mmol/mol of HbA1c", 10.93, -23.5),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedUnits:
    """The finding that the values of one column have two scales, as with two units.

    Attributes:
        is_minority: bool of shape (rows,): rows at the scale with fewer values.
        share: the minority's share of the present values.
        factor: the median of the larger scale divided by the median of the smaller scale.
        minority_is_larger: whether the minority has the larger values.
        conversions: the known pairs of units that explain the two medians within their uncertainty, the best first.
    """

    is_minority: npt.NDArray[np.bool_]
    share: float
    factor: float
    minority_is_larger: bool
    conversions: tuple[Conversion, ...]

    @property
    def words(self) -> str:
        """The finding about two units in one column as text for a person. The text has no value of a single patient."""
        size = "larger" if self.minority_is_larger else "smaller"
        pairs = [f"between {one.first} and {one.second}" for one in self.conversions]
        known = f" (as {', or '.join(pairs)})" if pairs else ""
        factor = f"{float(f'{self.factor:.2g}'):g}"
        return f"{self.share:.0%} of the values are about {factor} times {size} than the other values{known}"


def mixed_units(values: Numbers, others: Sequence[Numbers] = ()) -> MixedUnits | None:
    """Return the finding that a column seems to have two units. Return None if its positive values have one scale.

    Args:
        values: float64 of shape (rows,), NaN if missing. A column with many negative numbers is skipped.
        others: further columns of these rows, including the outcome. If one of them separates the two scales, the
            scales are two kinds of patients and not two units.
    """
    is_there = values > 0
    few = _FEW_NEGATIVE * is_there.sum()
    found = _two_heaps(np.log(values[is_there])) if (values < 0).sum() <= few else None
    if found is None:
        return None
    is_upper_there, factor, medians = found
    is_upper = np.zeros(len(values), dtype=bool)
    is_upper[is_there] = is_upper_there
    if any(_tells_apart(column, is_there, is_upper) for column in others):
        return None
    minority_is_larger = bool(is_upper_there.mean() <= 0.5)
    return MixedUnits(
        is_minority=is_upper if minority_is_larger else is_there & ~is_upper,
        share=float(min(is_upper_there.mean(), 1 - is_upper_there.mean())),
        factor=factor,
        minority_is_larger=minority_is_larger,
        conversions=_conversions(*medians, _uncertainty(values[is_there], is_upper_there)),
    )


def unit_hint(column: str, inside: Numbers, outside: Numbers) -> str | None:
    """Return advice if numbers outside the range seem to have another unit. `inside` is NaN if missing or outside."""
    found = mixed_units(np.concatenate([inside, outside])) if len(outside) >= FEWEST_IN_A_UNIT else None
    if found is None:
        return None
    return f"In the column {column}, {found.words}. Convert these values to the unit of the other values."


def far_values(values: Numbers) -> npt.NDArray[np.bool_]:
    """Return which values, bool (rows,), are so far from all others that a decimal point may be missing.

    `values` are float64 (rows,), NaN if missing. Distances are those of logarithms; in a column where more than one in
    a hundred values is negative they are those of the values.
    """
    has_signs = bool((values < 0).sum() > _FEW_NEGATIVE * (~np.isnan(values)).sum())
    is_there, nothing = ~np.isnan(values) if has_signs else values > 0, np.zeros(len(values), dtype=bool)
    there = values[is_there]
    if len(there) < FEWEST_VALUES or len(np.unique(there)) < _FEWEST_DIFFERENT:
        return nothing
    low, middle, high = np.quantile(there, [0.1, 0.5, 0.9])
    if not low < middle < high:
        return nothing
    if has_signs:
        is_far = (values - middle > _FAR_SIGNED * (high - middle)) | (middle - values > _FAR_SIGNED * (middle - low))
        return np.asarray(is_far)
    logs = np.log(np.where(is_there, values, middle) / middle)
    is_above = logs > _FAR_LOGS * math.log(high / middle)
    # Near zero, logarithms of ordinary small amounts differ much, so the difference itself must be large too.
    is_below = (logs < -_FAR_LOGS * math.log(middle / low)) & (middle - values > _FAR_BELOW * (middle - low))
    return np.asarray(is_above | (is_below & is_there))


def _two_heaps(logs: Numbers) -> tuple[npt.NDArray[np.bool_], float, tuple[float, float]] | None:
    """Return which values are in the upper of two groups, the ratio of their medians, and these; None for one group."""
    ordered = np.sort(logs)
    if len(ordered) < FEWEST_VALUES or len(np.unique(ordered)) < _FEWEST_DIFFERENT:
        return None
    place = _parting(ordered)
    lower, upper = ordered[:place], ordered[place:]
    low, high = float(np.median(lower)), float(np.median(upper))
    distance = high - low
    fewer = min(len(lower), len(upper))
    if distance < math.log(_SMALLEST_FACTOR) or fewer < max(FEWEST_IN_A_UNIT, SMALLEST_SHARE * len(ordered)):
        return None
    widths = sorted((_width(lower), _width(upper)))
    if widths[1] > _WIDEST_RATIO * widths[0]:
        return None  # on a logarithmic scale, the same measurement in another unit has the same spread
    steps = np.diff(np.unique(np.exp(ordered)))
    middle, quarter = (low + high) / 2, distance / 4
    if math.exp(middle) * quarter < _STEPS_IN_VALLEY * float(steps.min()):
        return None  # the values are rounded so much that the gap can be the step between two neighbouring values
    heaps = min(_within(ordered, low, quarter), _within(ordered, high, quarter))
    valley = _within(ordered, middle, quarter)
    most, least = _KNOWN if _conversions(math.exp(low), math.exp(high), _TOLERANCE) else _ANY
    # How much emptier the valley is than the smaller group, in standard deviations.
    surprise = (heaps - valley) / math.sqrt(heaps + valley) if heaps + valley else 0.0
    if valley > most * heaps or surprise < least:
        return None
    return logs >= (lower[-1] + upper[0]) / 2, math.exp(distance), (math.exp(low), math.exp(high))


def _parting(ordered: Numbers) -> int:
    """Return how many of the sorted values are in the lower group if they are split in two (Otsu 1979, equation 18)."""
    counts = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    means = sums / counts, (ordered.sum() - sums) / (len(ordered) - counts)
    between = counts * (len(ordered) - counts) * (means[1] - means[0]) ** 2
    return int(np.argmax(between)) + 1


def _width(ordered: Numbers) -> float:
    low, high = np.quantile(ordered, [0.2, 0.8])
    return max(float(high - low), 1e-3)


def _within(ordered: Numbers, middle: float, width: float) -> int:
    low, high = np.searchsorted(ordered, [middle - width / 2, middle + width / 2])
    return int(high - low)


def _conversions(low: float, high: float, tolerance: float) -> tuple[Conversion, ...]:
    """Return the known pairs of units that explain two medians, the best first. `tolerance` is for the logarithm."""

    def distance(one: Conversion) -> float:
        wanted = one.factor * low + one.offset
        return abs(math.log(high / wanted)) if wanted > 0 else math.inf

    return tuple(sorted((one for one in CONVERSIONS if distance(one) <= tolerance), key=distance))


def _uncertainty(values: Numbers, is_upper: npt.NDArray[np.bool_]) -> float:
    """Return three standard errors of the logarithm of the ratio of two medians, with an allowance for rounding.

    A median of n values has the standard error of the mean times sqrt(pi / 2) if the logarithms are normal (Kendall
    and Stuart 1977, "The Advanced Theory of Statistics", volume 1, section 10.10). Values are positive, float64 (n,).
    """
    errors = []
    for group in (values[is_upper], values[~is_upper]):
        deviation = _width(np.sort(np.log(group))) / _DEVIATIONS_ACROSS
        errors.append(math.sqrt(math.pi / 2 / len(group)) * deviation)
    return 3 * math.hypot(*errors) + _ROUNDING


def _tells_apart(column: Numbers, is_there: npt.NDArray[np.bool_], is_upper: npt.NDArray[np.bool_]) -> bool:
    """Return whether another column nearly determines a value's scale: area under the ROC curve at least 0.9."""
    both = is_there & ~np.isnan(column)
    if is_upper[both].all() or not is_upper[both].any():
        return False
    area = auroc(column[both], is_upper[both])
    return max(area, 1 - area) >= _SEPARATES


def disguised_numbers(values: Numbers) -> tuple[float, ...]:
    """Return the numbers of a column that probably mean "not known", as float64 in rising order.

    A candidate is reported if it is far from the other values: by ten times the usual step between neighbouring
    values and a fifth of their span. Zero is reported only if the other values are far above it, by such steps or by
    their span. A column whose values are all one candidate is reported too.
    """
    present = np.unique(values[~np.isnan(values)])
    candidates = present[np.isin(present, CANDIDATES)]
    others = present[~np.isin(present, CANDIDATES)]
    if not len(others):
        return (float(present[0]),) if len(present) == 1 and len(candidates) else ()
    if len(others) < _FEWEST_OTHERS or not len(candidates):
        return ()
    low, high = float(others[0]), float(others[-1])
    step = float(np.median(np.diff(others)))
    far = max(_FAR * step, 0.2 * (high - low))
    found = []
    for value in map(float, candidates):
        if value > 0:
            is_found = value > high + far
        elif value < 0:
            is_found = low - value > far or (low >= 0 and value <= -7)
        else:
            is_found = low >= 0.2 * float(np.median(others)) and low >= min(_FAR * step, high - low)
        if is_found:
            found.append(value)
    return tuple(found)


def seem_identifiers(values: Numbers) -> bool:
    """Return whether the numbers of a column, float64 (rows,), NaN if missing, seem to be numbers of patients.

    These are whole numbers of which most differ, and which also are long (all with at least five digits, the largest
    less than ten times the smallest, and most not round) or running numbers. Running numbers differ more often than
    random draws from all whole numbers between the smallest and the largest. A measurement differs less often than
    such draws, because some of its values are frequent.
    """
    there = values[~np.isnan(values) & ~np.isin(values, disguised_numbers(values))]
    if len(there) < _FEWEST_IDENTIFIERS or (there < 0).any() or (there != np.floor(there)).any():
        return False
    different = len(np.unique(there))
    if different < max(_FEWEST_IDENTIFIERS, _DIFFERENT * len(there)):
        return False
    low, high = float(there.min()), float(there.max())
    is_long = low >= _LONG and high < 10 * low and float((there % 10 == 0).mean()) < _ROUND
    return is_long or _differ_surprisingly(different, len(there), high - low + 1)


def _differ_surprisingly(different: int, draws: int, span: float) -> bool:
    """Return whether random draws from `span` whole numbers would rarely have so many different values.

    Source: the mean and the variance of the number of occupied cells, Johnson and Kotz 1977, "Urn Models", section 3.2.
    """
    none, neither = (1 - 1 / span) ** draws, (1 - 2 / span) ** draws
    mean = span * (1 - none)
    variance = span * none + span * (span - 1) * neither - (span * none) ** 2
    return different - mean > _SURPRISE * math.sqrt(max(variance, 1.0))
