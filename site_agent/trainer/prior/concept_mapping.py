"""Finds for each concept of a plan the column of this site, and converts its values to the plan's units and codes.

A contract names the concept of a column. The rules:

* a number is converted to the concept's unit by the factor that the plan declares, never by a guess;
* a code is the concept's code of the same name, or the code that the contract gives for it;
* values are scaled from 0 to 1 within the concept's range, and values beyond the range become the nearer limit;
* a number with fewer than ten values that differ from its most frequent value could identify a patient. So this site
  treats such a number as missing;
* the columns of a code distinguish only sets of ten or more rows. A rarer code counts as one of the others;
* this site's own rows decide this, because nobody can check an announced count (docs/researcher.md, "Methods").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError
from protos.plan.concepts import CodedConcept, Concept, NumberConcept, columns_of
from protos.plan.documents import Document
from protos.plan.prior_sums import FEWEST_ROWS
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature, Feature, NumericFeature
from site_agent.trainer.failures import unfit

Float64: TypeAlias = npt.NDArray[np.float64]


class MappedNumber(Document):
    """One column of the regression, computed from a number that the site records."""

    feature: str
    factor: float
    offset: float
    low: float
    high: float

    def values(self, own: Float64) -> Float64:
        """Return the values of a column of numbers, scaled to 0..1, NaN if missing. `own` has shape (rows,)."""
        converted = self.factor * own + self.offset
        return np.asarray(np.clip((converted - self.low) / (self.high - self.low), 0.0, 1.0))


class MappedCode(Document):
    """One column of the regression: whether the site's own code is one of several.

    The own codes at the positions `ones` are 1, those at the other positions in `known` are 0. All others are missing.
    """

    feature: str
    ones: tuple[int, ...]
    known: tuple[int, ...]

    def values(self, own: Float64) -> Float64:
        """Return 0 or 1 for each row, or NaN if the value is missing. `own` has positions of codes, shape (rows,)."""
        return np.where(np.isin(own, self.known), np.isin(own, self.ones).astype(np.float64), np.nan)


Mapped: TypeAlias = MappedNumber | MappedCode | None  # None if the site does not record the concept


def mapped_columns(concepts: Sequence[Concept], contract: Contract, site: str | None) -> tuple[Mapped, ...]:
    """Return for each of the plan's common columns the column of this site, or None.

    `site` is None for a site that only receives, which may lack any concept.

    Raises:
        ConfigurationError: a concept that this site records is not mapped, is mapped twice, has a unit without a
            conversion, or a column of another kind.
    """
    own: dict[str, Feature] = {}
    for feature in contract.features:
        if feature.concept is not None and feature.concept in own:
            raise _wrong(f"The contract maps {own[feature.concept].name} and {feature.name} to {feature.concept}.")
        if feature.concept is not None:
            own[feature.concept] = feature
    found: list[Mapped] = []
    for concept in concepts:
        found += _mapped(concept, own.get(concept.name), site)
    return tuple(found)


def _mapped(concept: Concept, feature: Feature | None, site: str | None) -> Sequence[Mapped]:
    width = 1 if isinstance(concept, NumberConcept) else len(concept.codes) - 1
    is_left_out = site is not None and concept.recorded_by is not None and site not in concept.recorded_by
    if is_left_out or (site is None and feature is None):
        return [None] * width
    # Without `recorded_by` the plan counts every site for this concept. A site that lacks the concept must not be
    # counted. Otherwise a sum could be of fewer sites than the plan allows.
    if feature is None:
        raise _wrong(f"The plan says that this site records {concept.name}, and no column of the contract does.")
    if isinstance(concept, NumberConcept):
        return [_mapped_number(concept, feature)]
    return _mapped_codes(concept, feature)


def _mapped_number(concept: NumberConcept, feature: Feature) -> MappedNumber:
    if not isinstance(feature, NumericFeature | DateFeature):
        raise _wrong(f"{concept.name} is a number, and the column {feature.name} has codes.")
    factor, offset = 1.0, 0.0
    if feature.unit != concept.unit:
        known = {conversion.unit: conversion for conversion in concept.conversions}
        if feature.unit is None or feature.unit not in known:
            raise _wrong(
                f"{feature.name} is in {feature.unit or 'no unit'}, {concept.name} in {concept.unit or 'no unit'}, and "
                "the plan declares no conversion."
            )
        factor, offset = known[feature.unit].factor, known[feature.unit].offset
    return MappedNumber(feature=feature.name, factor=factor, offset=offset, low=concept.low, high=concept.high)


def _mapped_codes(concept: CodedConcept, feature: Feature) -> list[Mapped]:
    if not isinstance(feature, CategoricalFeature):
        raise _wrong(f"{concept.name} has codes, and the column {feature.name} is a number.")
    means = feature.concept_codes or tuple(code if code in concept.codes else None for code in feature.codes)
    strangers = {code for code in means if code is not None and code not in concept.codes}
    if strangers or not any(means):
        what = ", ".join(sorted(strangers)) or "none of its codes"
        raise _wrong(f"The column {feature.name} maps {what} to {concept.name}, which has {', '.join(concept.codes)}.")
    known = tuple(place for place, code in enumerate(means) if code is not None)
    return [
        MappedCode(feature=feature.name, ones=tuple(p for p in known if means[p] in column.ones), known=known)
        for column in columns_of((concept,))
    ]


def without_rare(
    mapped: Sequence[Mapped], features: Mapping[str, Float64], fewest: int = FEWEST_ROWS
) -> tuple[Mapped, ...]:
    """Return the mapping without columns that have too few different values or too rare codes at this site.

    `features` are the training rows, float64 (rows,) by the site's own names. `fewest` is the least number of values
    that differ from the most frequent one, and of rows of a code.
    """
    codes: dict[str, dict[int, MappedCode]] = {}
    kept: list[Mapped] = [None] * len(mapped)
    for place, one in enumerate(mapped):
        if isinstance(one, MappedCode):
            codes.setdefault(one.feature, {})[place] = one
        elif one is not None and _beside_commonest(one.values(features[one.feature])) >= fewest:
            kept[place] = one
    for name, columns in codes.items():
        for place in _common(columns, features[name], fewest):
            kept[place] = columns[place]
    return tuple(kept)


def _common(columns: Mapping[int, MappedCode], own: Float64, fewest: int) -> tuple[int, ...]:
    """Return the positions of those columns of one concept that have at least `fewest` rows.

    Rows of the first code, rows of each code with a returned column, and all other rows are then `fewest` or more each.
    So no linear combination of the columns distinguishes fewer rows. By place, the first of `columns` is 1 for every
    code except the concept's first code; the others are single codes. `own` has this site's codes, float64 (rows,).
    """
    rows = {place: int(np.count_nonzero(np.isin(own, one.ones))) for place, one in columns.items()}
    any_other, *single = columns
    others = rows[any_other]
    if min(others, int(np.count_nonzero(np.isin(own, columns[any_other].known))) - others) < fewest:
        return ()
    kept = [any_other]
    for place in sorted(single, key=lambda place: -rows[place]):
        if rows[place] >= fewest and others - rows[place] >= fewest:
            kept.append(place)
            others -= rows[place]
    return tuple(kept)


def values_of(mapped: Sequence[Mapped], features: Mapping[str, Float64], rows: int) -> Float64:
    """Return each regression column in 0..1, float64 (rows, columns), NaN if missing, from own features (rows,)."""
    columns = [np.full(rows, np.nan) if one is None else one.values(features[one.feature]) for one in mapped]
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0))


def _beside_commonest(values: Float64) -> int:
    """Count the values that differ from the most frequent value."""
    present = values[~np.isnan(values)]
    if not len(present):
        return 0
    return int(len(present) - np.unique(present, return_counts=True)[1].max())


def _wrong(what: str) -> ConfigurationError:
    return unfit(
        what=what,
        remedy=(
            "Correct the keys `concept`, `unit` or `concept_codes` in the contract, or ask for a new version of the "
            "plan."
        ),
    )
