"""Finds columns of this site that are far from those of the other sites, only from the sums that sites receive.

The announced sums minus this site's own describe the other sites together. This site compares its own training rows
with them (docs/researcher.md, "Methods"). The rules:

* a column is compared only if it is used. Then the others' numbers are sums of two sites or more;
* no message is needed, and the findings stay at this site;
* a difference proves nothing, because hospitals differ and the mistake may be at the others. No unit and no code is
  guessed: a person looks at the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log

import numpy as np

from protos.plan.concepts import ConceptColumn, NumberConcept
from protos.plan.prior_sums import Standard
from site_agent.trainer.prior.concept_columns import Float64, Mapped, MappedNumber

_FAR = 4.0  # the least distance of a column that is reported: in deviations, plus the logarithm of their ratio
_UNIT_RATIO = 5.0  # of means; days are 7 times as many as weeks
_MOST_OUTSIDE = 0.2  # largest share of values beyond the concept's range
_FEWEST = 10  # the least number of values of a column at this site


def compared_means(concept: NumberConcept, own: float, others: float) -> tuple[str, bool]:
    """Return a clause with this site's mean and that of the others, and whether another unit may be the reason."""
    words = f"the mean is {own:.4g} here and {others:.4g} at the other sites together ({concept.unit or 'no unit'})"
    if not (concept.low >= 0.0 and 0.0 < _UNIT_RATIO * min(own, others) <= max(own, others)):
        return words, False
    ratio = f"1/{others / own:.3g} of" if own < others else f"{own / others:.3g} times"
    return f"{words}, {ratio} theirs", True


def suspicions(
    columns: Sequence[ConceptColumn], mapped: Sequence[Mapped], features: Mapping[str, Float64], others: Standard
) -> Iterator[tuple[str, str]]:
    """Yield each column of numbers that is far from the other sites, or outside of the plan's range, with a sentence.

    `features` are this site's training rows, float64 (rows,) by its own names; `others` is of the other sites.
    """
    for place, (column, one) in enumerate(zip(columns, mapped, strict=True)):
        concept = column.concept
        if not isinstance(one, MappedNumber) or not isinstance(concept, NumberConcept):
            continue
        values = one.factor * features[one.feature] + one.offset
        values, width = values[~np.isnan(values)], concept.high - concept.low
        if len(values) < _FEWEST:
            continue
        mean, deviation = concept.low + width * others.means[place], width * others.deviations[place]
        outside = float(((values < concept.low) | (values > concept.high)).mean())
        words, is_far = compared_means(concept, float(values.mean()), mean)
        is_compared = others.is_used[place] and deviation > 0.0
        if is_compared and not is_far:
            spread = log(max(float(values.std()), 1e-12) / deviation)
            is_far = abs(float(values.mean()) - mean) / deviation + abs(spread) >= _FAR
        if not (is_compared and is_far):
            if outside <= _MOST_OUTSIDE:
                continue
            limits = f"{concept.low:g} to {concept.high:g} ({concept.unit or 'no unit'})"
            words = f"{outside:.0%} of its values are outside the plan's range {limits}"
        remedy = "Check the unit and the codes of this column in the contract."
        yield one.feature, f"column {one.feature} ({concept.name}): {words}. {remedy}"
