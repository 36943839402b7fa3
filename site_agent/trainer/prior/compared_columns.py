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
from dataclasses import dataclass
from math import log

import numpy as np

from protos.plan.concepts import ConceptColumn, NumberConcept
from protos.plan.prior_sums import Standard
from site_agent.trainer.prior.concept_columns import Float64, Mapped, MappedNumber

_FAR = 4.0  # the least distance of a column that is reported: in deviations, plus the logarithm of their ratio
_MOST_OUTSIDE = 0.2  # largest share of values beyond the concept's range
_FEWEST = 10  # the least number of values of a column at this site


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A column that differs from the other sites so much that a person should check its unit and codes.

    Attributes:
        kind: `mean` or `range`.
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
    columns: Sequence[ConceptColumn], mapped: Sequence[Mapped], features: Mapping[str, Float64], others: Standard
) -> Iterator[Suspicion]:
    """Yield each column of numbers that is far from the other sites, or outside of the plan's range.

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
        unit, own = concept.unit or "no unit", max(float(values.std()), 1e-12)
        is_compared = others.is_used[place] and deviation > 0.0
        if is_compared and abs(float(values.mean()) - mean) / deviation + abs(log(own / deviation)) >= _FAR:
            words = f"the mean is {values.mean():.4g} here and {mean:.4g} at the other sites together ({unit})"
            yield Suspicion(concept=concept.name, feature=one.feature, kind="mean", words=words)
        elif outside > _MOST_OUTSIDE:
            limits = f"{concept.low:g} to {concept.high:g} ({unit})"
            words = f"{outside:.0%} of its values are outside the plan's range {limits}"
            yield Suspicion(concept=concept.name, feature=one.feature, kind="range", words=words)
