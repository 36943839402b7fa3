"""Detects columns of this site that may have a wrong unit or swapped codes, only from the sums that sites receive.

The announced sums minus this site's own describe the other sites together. This site compares its own training rows
with them (docs/researcher.md, "Methods"). The rules:

* a column is compared only if the others' numbers are sums of two sites or more;
* no message is needed, and the findings stay at this site;
* a difference proves nothing, because hospitals differ and the mistake may be at the others. A person decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.numbers.newton_sums import NewtonSums
from protos.plan.concepts import ConceptColumn, NumberConcept
from site_agent.trainer.prior.concept_columns import Float64, Mapped, MappedNumber

Found: TypeAlias = tuple[str, str]  # a suspicion's kind and words
# Factors between units of common measurements, in both directions. A conversion of the plan is preferred.
KNOWN_FACTORS: Final = {
    "a factor of 10": 10.0,
    "a factor of 100": 100.0,
    "a factor of 1000": 1000.0,
    "mg/dl and mmol/l of cholesterol": 38.67,
    "mg/dl and mmol/l of triglycerides": 88.57,
    "mg/dl and mmol/l of glucose": 18.016,
    "mg/dl and mmol/l of urea": 6.006,
    "mg/dl and mmol/l of urea nitrogen": 2.8011,
    "mg/dl and mmol/l of calcium": 4.008,
    "mg/dl and µmol/l of creatinine": 88.42,
    "mg/dl and µmol/l of bilirubin": 17.104,
    "mg/dl and µmol/l of uric acid": 59.48,
    "mmHg and kPa": 7.50062,
    "inches and centimetres": 2.54,
    "pounds and kilograms": 2.20462,
}
_FAR: Final = 2.5  # if the distance is at least this large, we search for a known conversion factor
_NEAR: Final = 1.0  # largest distance after a known factor
_ODD: Final = 4.0  # if the distance is at least this large, a column is reported even without an explanation
_MOST_OUTSIDE: Final = 0.2  # largest share of values beyond the concept's range
_FEWEST: Final = 10  # the least number of values of a column, at this site and at the other sites
_SHARES: Final = 1.0  # standard deviation, between sites, of the logit of a code's frequency
_RELATIONS: Final = 0.15  # standard deviation between sites of a correlation
_SWAPPED: Final = 3.0  # swapped codes are reported if the logarithm of the likelihood ratio is at least this large


@dataclass(frozen=True, kw_only=True)
class OwnColumn:
    """One column of the regression at this site, with the present values of its training rows: float64.

    They are in the concept's unit and not cut at its range; for a code 0 and 1. For a number, `other_units` has its
    values if they were in another unit of the plan, by that unit.
    """

    place: int
    feature: str
    values: Float64
    other_units: dict[str, Float64]


@dataclass(frozen=True, kw_only=True)
class OthersColumns:
    """Counts, means and deviations of each column at the other sites together: the announced sums minus this site's.

    All have shape (columns,). Means and deviations are in the concept's unit, or shares of a code. `are_enough` is
    whether enough other sites record the column, so that no number is of a single site.
    """

    counts: Float64
    means: Float64
    deviations: Float64
    are_enough: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        columns: Sequence[ConceptColumn],
        counts: Float64,
        means: Float64,
        deviations: Float64,
        are_enough: npt.NDArray[np.bool_],
    ) -> OthersColumns:
        """Convert the other sites' means and deviations from the scale of the sums, 0..1, to the concepts' units."""
        lows, widths = np.zeros(len(columns)), np.ones(len(columns))
        for place, column in enumerate(columns):
            if isinstance(column.concept, NumberConcept):
                lows[place], widths[place] = column.concept.low, column.concept.high - column.concept.low
        return cls(counts=counts, means=lows + widths * means, deviations=widths * deviations, are_enough=are_enough)


def columns_here(
    columns: Sequence[ConceptColumn],
    mapped: Sequence[Mapped],
    features: Mapping[str, Float64],
    units: Mapping[str, str | None],
) -> tuple[OwnColumn, ...]:
    """Return the plan's columns that this site records, with the values of its training rows: float64 (rows,)."""
    found = []
    for place, (column, one) in enumerate(zip(columns, mapped, strict=True)):
        if one is None:
            continue
        raw, concept = features[one.feature], column.concept
        others: dict[str, Float64] = {}
        if isinstance(one, MappedNumber) and isinstance(concept, NumberConcept):
            raw = raw[~np.isnan(raw)]
            values = one.factor * raw + one.offset
            known = {each.unit: each.factor * raw + each.offset for each in concept.conversions}
            others = {unit: moved for unit, moved in known.items() if unit != units.get(one.feature)}
            if concept.unit is not None and concept.unit != units.get(one.feature):
                others[concept.unit] = raw
        else:
            values = one.values(raw)
            values = values[~np.isnan(values)]
        found.append(OwnColumn(place=place, feature=one.feature, values=values, other_units=others))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A column that differs from the other sites so much that a person should check its unit and codes.

    Attributes:
        kind: `unit`, `codes`, `mean` or `range`.
        words: one sentence with the numbers of this site and of the others.
    """

    concept: str
    feature: str
    kind: str
    words: str

    @property
    def sentence(self) -> str:
        """The finding about a suspicious column as sentences for the report and the review, which stay at this site."""
        return (
            f"column {self.feature} ({self.concept}): {self.words}. Check the unit and the codes of this column in the "
            "contract."
        )


def suspicions(
    columns: Sequence[ConceptColumn], own: Sequence[OwnColumn], others: OthersColumns, sums: Relations | None
) -> Iterator[Suspicion]:
    """Yield each column whose difference from the other sites seems a mistake. `sums` is None before round 1 ends."""
    for one in own:
        concept, place = columns[one.place].concept, one.place
        found = None
        if len(one.values) >= _FEWEST and others.are_enough[place] and others.counts[place] >= _FEWEST:
            mean, deviation = float(others.means[place]), float(others.deviations[place])
            if isinstance(concept, NumberConcept):
                found = _number(one, mean, deviation, concept.unit or "")
            elif len(concept.codes) == 2:
                found = _codes(one, mean, float(others.counts[place]), sums)
        if found is None and isinstance(concept, NumberConcept):
            found = _range(concept, one.values)
        if found is not None:
            yield Suspicion(concept=concept.name, feature=one.feature, kind=found[0], words=found[1])


def _range(concept: NumberConcept, values: Float64) -> Found | None:
    """Check whether many values of a column are outside the concept's range, which cannot be seen from sums."""
    outside = float(((values < concept.low) | (values > concept.high)).mean()) if len(values) else 0.0
    if outside <= _MOST_OUTSIDE:
        return None
    limits = f"{concept.low:g} to {concept.high:g} {concept.unit or ''}".rstrip()
    return "range", f"{outside:.0%} of its values are outside the plan's range {limits}"


def _number(one: OwnColumn, mean: float, deviation: float, unit: str) -> Found | None:
    if deviation <= 0.0:
        return None
    distance = _distance(one.values, mean, deviation)
    if distance < _FAR:
        return None
    means = f"the mean is {one.values.mean():.4g} here and {mean:.4g} at the other sites together ({unit or 'no unit'})"
    explained = [
        (f"its unit is {name}", _distance(values, mean, deviation)) for name, values in one.other_units.items()
    ]
    if not any(left <= _NEAR for _, left in explained):
        for name, factor in KNOWN_FACTORS.items():
            moved = min(_distance(values, mean, deviation) for values in (one.values * factor, one.values / factor))
            explained.append((f"its unit differs by {name}", moved))
    best, left = min(explained, key=lambda each: each[1])
    if left <= _NEAR:
        return "unit", f"{means}, as if {best}"
    return ("mean", f"{means}, and no known factor between units explains the difference") if distance >= _ODD else None


def _distance(values: Float64, mean: float, deviation: float) -> float:
    """Return how far this site's mean and deviation of a column differ from those of the other sites."""
    own = max(float(values.std()), 1e-12)
    return abs(float(values.mean()) - mean) / deviation + abs(log(own / deviation))


@dataclass(frozen=True, kw_only=True, eq=False)
class Relations:
    """Correlations of the columns with each other and with the outcomes, at this site and at the other sites.

    Each is float64 of shape (columns, columns + outputs); a column that does not vary has zeros.
    """

    own: Float64
    others: Float64
    own_rows: int
    other_rows: int

    @classmethod
    def of(cls, own: NewtonSums, others: NewtonSums, own_rows: int, other_rows: int) -> Relations:
        """Compute correlations of columns from the first Newton sums, where H and g are covariances up to factors."""
        return cls(
            own=_correlations(own, own_rows),
            others=_correlations(others, other_rows),
            own_rows=own_rows,
            other_rows=other_rows,
        )

    def for_swapped(self, place: int) -> float:
        """Return the log likelihood ratio for swapped codes in a column. They reverse the sign of correlations."""
        own, others = (np.delete(each[place], place) for each in (self.own, self.others))
        variance = 1.0 / self.own_rows + 1.0 / self.other_rows + _RELATIONS**2
        return float(-2.0 * (own * others).sum() / variance)


def _correlations(sums: NewtonSums, rows: int) -> Float64:
    hessian = sums.hessian[0]
    spread = np.sqrt(np.maximum(np.diagonal(hessian), 0.0))
    is_varied = spread > 1e-9
    scale = np.where(is_varied, spread, 1.0)
    among = hessian / np.outer(scale, scale)
    outcomes = -sums.gradient.T / scale[:, None] / sqrt(max(rows, 1))
    found = np.concatenate([among, outcomes], axis=1)
    found[~is_varied] = 0.0
    found[:, : len(hessian)][:, ~is_varied] = 0.0
    return np.asarray(np.clip(found, -1.0, 1.0))


def _codes(one: OwnColumn, share: float, count: float, relations: Relations | None) -> Found | None:
    own, rows = float(one.values.mean()), len(one.values)
    here, there = _logit(own, rows), _logit(share, count)
    noise = 1.0 / (rows * _inner(own, rows)) + 1.0 / (count * _inner(share, count))
    ratio = -2.0 * here * there / (_SHARES**2 + noise)
    ratio += 0.0 if relations is None else relations.for_swapped(one.place)
    if ratio < _SWAPPED:
        return None
    return "codes", f"the share is {own:.0%} here and {share:.0%} at the other sites together, as if codes were swapped"


def _inner(share: float, count: float) -> float:
    kept = (share * count + 0.5) / (count + 1.0)
    return kept * (1.0 - kept)


def _logit(share: float, count: float) -> float:
    return log((share * count + 0.5) / (count - share * count + 0.5))
