"""Computes from a site's table the columns of a plan's concepts, which a network or a regression reads.

A contract names the concept of a column. The rules:

* a number is converted to the concept's unit by the factor that the plan declares, never by a guess. A code is the
  concept's code of the same name, or the code that the contract gives for it;
* values are scaled from 0 to 1 within the concept's range, and values beyond the range become the nearer limit;
* a network's inputs are standardised by the plan's declaration, never by this site's rows. Under federated-prior, means
  and deviations are those of all sites;
* a concept that this site does not record is 0 in every row. So is a missing value: 0 is the mean over all sites, or
  the typical value that the plan declares;
* a number with fewer than ten values that differ from its most frequent value could identify a patient, and so could a
  code with fewer rows, or two numbers with fewer rows in common. In a regression such a column is void, by this site's
  own rows (docs/researcher.md, "Methods");
* some networks also read columns of a site's own. These are the features that are mapped to no concept of the plan;
* the encoding is saved with the model, so a prediction needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import log, log10
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from protos.errors import ConfigurationError
from protos.plan.architecture import ColumnsNetwork, ParallelNetwork
from protos.plan.concepts import CodedConcept, Concept, ConceptColumn, NumberConcept, columns_of
from protos.plan.documents import Document
from protos.plan.network_plan import NetworkPlan
from protos.plan.prior_sums import FEWEST_ROWS, Standard
from protos.statistics.binned_values import beside_commonest
from site_agent.trainer.data.cell_rules import folded
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, FollowUpColumn, NumericFeature
from site_agent.trainer.data.contract import BinaryTarget, Contract, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.dataset import Dataset, Examples, SplitRows
from site_agent.trainer.data.preprocessing import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.failures import unfit

Float64: TypeAlias = npt.NDArray[np.float64]


class MappedNumber(Document):
    """One column of the regression, computed from a number that the site records."""

    feature: str
    factor: float
    offset: float
    low: float
    high: float

    def converted(self, own: Float64) -> Float64:
        """Return numbers in the concept's unit, rounded if converted: digits of a sum would show this site's part."""
        found = self.factor * own + self.offset
        if not self.rounding:
            return found
        rounded = np.round(found, round(-log10(2 * self.rounding)))
        return np.where((found > 0.0) & (rounded == 0.0), 2 * self.rounding, rounded)  # a time above 0 stays so

    @property
    def rounding(self) -> float:
        """Return how far `converted` moves a number at most."""
        is_same = (self.factor, self.offset) == (1.0, 0.0)
        return 0.0 if is_same else 10.0 ** (Decimal(self.high - self.low).adjusted() - 3) / 2

    def values(self, own: Float64, *, is_summed: bool = False) -> Float64:
        """Return the values of a column of numbers, scaled to 0..1, NaN if missing. `own` has shape (rows,)."""
        found = self.converted(own) if is_summed else self.factor * own + self.offset
        return np.asarray(np.clip((found - self.low) / (self.high - self.low), 0.0, 1.0))


class MappedCode(Document):
    """One column of the regression: whether the site's own code is one of several.

    The own codes at the positions `ones` are 1, those at the other positions in `known` are 0. All others are missing.
    """

    feature: str
    ones: tuple[int, ...]
    known: tuple[int, ...]

    def values(self, own: Float64, *, is_summed: bool = False) -> Float64:  # noqa: ARG002
        """Return 0 or 1 for each row, or NaN if the value is missing. `own` has positions of codes, shape (rows,)."""
        return np.where(np.isin(own, self.known), np.isin(own, self.ones).astype(np.float64), np.nan)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A column that records a concept. `codes` are None for a number."""

    name: str
    concept: str
    codes: tuple[str, ...] | None = None
    concept_codes: tuple[str | None, ...] | None = None
    unit: str | None = None

    def own(self, table: Table) -> Float64:
        """Return the column as the table has it, float64 (rows,): a feature, the target or the time of follow-up."""
        follow_up = table.contract.follow_up
        if follow_up is not None and self.name == follow_up.name:
            found = table.follow_up
        else:
            found = table.features.get(self.name, table.target)
        assert found is not None
        return found.astype(np.float64)


Mapped: TypeAlias = MappedNumber | MappedCode | None  # None if the site does not record the concept


def mapped_columns(concepts: Sequence[Concept], contract: Contract, site: str | None) -> tuple[Mapped, ...]:
    """Return for each of the plan's common columns the column of this site, or None.

    `site` is None for a site that only receives, which may lack any concept. Raises as `recording_columns`.
    """
    return tuple(one for pair in recording_columns(concepts, contract.features, site) for one in _mapped(*pair))


def recorded_concepts(columns: Iterable[object]) -> dict[str, Recorded]:
    """Return the columns that record a concept, by its name: the first of two, which `recording_columns` refuses."""
    found: dict[str, Recorded] = {}
    for one in _columns(columns):
        found.setdefault(one.concept, one)
    return found


def recording_columns(
    concepts: Sequence[Concept], columns: Sequence[object], site: str | None
) -> list[tuple[Concept, Recorded | None]]:
    """Return each concept with the column that records it, or None. `site` is as in mapped_columns.

    Raises:
        ConfigurationError: concepts that this site records are not mapped, have a unit without a conversion, or two
            columns or one of another kind. It names all of them.
    """
    recorded, found, wrong = recorded_concepts(columns), list[tuple[Concept, Recorded | None]](), list[str]()
    for concept in concepts:
        try:
            found.append((concept, one := _recording_column(concept, recorded, site)))
            _mapped(concept, one)
        except ConfigurationError as error:
            wrong.append(error.what)
    pairs = ((recorded[one.concept].name, one) for one in _columns(columns))
    wrong += [f"The contract maps {name} and {one.name} to {one.concept}." for name, one in pairs if name != one.name]
    if wrong:
        raise wrong_mapping(" ".join(wrong))
    return found


def _recording_column(concept: Concept, recorded: Mapping[str, Recorded], site: str | None) -> Recorded | None:
    is_left_out = site is not None and concept.recorded_by is not None and site not in concept.recorded_by
    one = recorded.get(concept.name)
    if is_left_out or (site is None and one is None):
        return None
    # Without `recorded_by` the plan counts every site for this concept. A site that lacks the concept must not be
    # counted. Otherwise a sum could be of fewer sites than the plan allows.
    if one is None:
        raise wrong_mapping(f"The plan says that this site records {concept.name}, and no column of the contract does.")
    if isinstance(concept, NumberConcept) != (one.codes is None):
        kinds = ("codes", "a number") if one.codes is None else ("a number", "codes")
        raise wrong_mapping(f"{concept.name} has {kinds[0]}, and the column {one.name} has {kinds[1]}.")
    return one


def _mapped(concept: Concept, one: Recorded | None) -> Sequence[Mapped]:
    if one is None:
        return [None] * (1 if isinstance(concept, NumberConcept) else len(concept.codes) - 1)
    if isinstance(concept, NumberConcept):
        return [mapped_number(concept, one)]
    means = meanings_of(concept, one)
    known = tuple(place for place, code in enumerate(means) if code is not None)
    return [
        MappedCode(feature=one.name, ones=tuple(p for p in known if means[p] in column.ones), known=known)
        for column in columns_of((concept,))
    ]


def mapped_number(concept: NumberConcept, one: Recorded) -> MappedNumber:
    """Return how a column becomes the concept's numbers. Raises ConfigurationError: the plan has no conversion."""
    known = {conversion.unit: (conversion.factor, conversion.offset) for conversion in concept.conversions}
    known[concept.unit or ""] = 1.0, 0.0
    if (one.unit or "") not in known:
        alike = [unit for unit in known if folded(unit) == folded(one.unit or "")]
        hint = f" If {alike[0]} is the same unit, write it so in the contract." if alike else ""
        others = " or ".join(each.unit for each in concept.conversions)
        told = f"converts only {others}" if others else "declares no conversion"
        raise wrong_mapping(
            f"{one.name} is in {one.unit or 'no unit'}, {concept.name} in {concept.unit or 'no unit'}, and the plan "
            f"{told}.{hint}"
        )
    factor, offset = known[one.unit or ""]
    return MappedNumber(feature=one.name, factor=factor, offset=offset, low=concept.low, high=concept.high)


def meanings_of(concept: CodedConcept, one: Recorded) -> tuple[str | None, ...]:
    """Return the concept's code for each code of a column, or None. Raises ConfigurationError for another concept's."""
    means = tuple(one.concept_codes or (code if code in concept.codes else None for code in one.codes or ()))
    strangers = {code for code in means if code is not None and code not in concept.codes}
    if strangers or not any(means):
        what = ", ".join(sorted(strangers)) or "none of its codes"
        raise wrong_mapping(
            f"The column {one.name} maps {what} to {concept.name}, which has {', '.join(concept.codes)}."
        )
    return means


def _columns(columns: Iterable[object]) -> Iterator[Recorded]:
    for one in columns:
        match one:
            case CategoricalFeature(codes=codes) | BinaryTarget(classes=codes) | MultiClassTarget(codes=codes):
                if one.concept is not None:
                    yield Recorded(name=one.name, concept=one.concept, codes=codes, concept_codes=one.concept_codes)
            case NumericFeature() | DateFeature() | RegressionTarget() | FollowUpColumn() if one.concept is not None:
                yield Recorded(name=one.name, concept=one.concept, unit=one.unit)


def without_rare(
    mapped: Sequence[Mapped], features: Mapping[str, Float64], fewest: int = FEWEST_ROWS
) -> tuple[Mapped, ...]:
    """Return the mapping without columns that have too few different values or too rare codes at this site.

    `features` are the training rows, float64 (rows,) by the site's own names. `fewest` is the least number of values
    that differ from the most frequent one, of rows of a code, and of rows that two numbers share if they share any.
    """
    codes: dict[str, dict[int, MappedCode]] = {}
    kept: list[Mapped] = [None] * len(mapped)
    numbers: dict[int, Float64] = {}
    for place, one in enumerate(mapped):
        if isinstance(one, MappedCode):
            codes.setdefault(one.feature, {})[place] = one
        elif one is not None:
            numbers[place] = one.values(features[one.feature], is_summed=True)
    for place in sorted(numbers, key=lambda place: np.count_nonzero(np.isnan(numbers[place]))):
        others = [numbers[other] for other in numbers if kept[other] is not None]
        own = numbers[place][~np.isnan(numbers[place])]
        if beside_commonest(own, np.arange(len(own))) >= fewest and not _share_few(numbers[place], others, fewest):
            kept[place] = mapped[place]
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


def values_of(
    mapped: Sequence[Mapped], features: Mapping[str, Float64], rows: int, *, is_summed: bool = False
) -> Float64:
    """Return each regression column in 0..1, float64 (rows, columns), NaN if missing, from own features (rows,)."""
    columns = [
        np.full(rows, np.nan) if one is None else one.values(features[one.feature], is_summed=is_summed)
        for one in mapped
    ]
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0))


def _share_few(values: Float64, others: Sequence[Float64], fewest: int) -> bool:
    """Return whether too few rows have a value in a column and in one of the others, but not none. Shapes (rows,)."""
    return any(0 < np.count_nonzero(~np.isnan(values + other)) < fewest for other in others)


def wrong_mapping(what: str) -> ConfigurationError:
    """Return the error about a contract that does not fit the plan's concepts."""
    remedy = "Correct `concept`, `unit` or `concept_codes` in the contract, or ask for a new version of the plan."
    return unfit(what=what, remedy=remedy)


class ConceptEncoding(Document):
    """Converts a site's own columns to the common columns of a plan. Each attribute has one entry per common column.

    `mapped` is the site's own column, None if it has none. Means and deviations are over all sites or as the plan
    declares, of values scaled to 0..1. `used` is whether the column varies and enough sites record it.
    """

    names: tuple[str, ...]
    mapped: tuple[MappedNumber | MappedCode | None, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    used: tuple[bool, ...]

    @model_validator(mode="after")
    def _check(self) -> ConceptEncoding:
        if len({len(self.names), len(self.mapped), len(self.means), len(self.deviations), len(self.used)}) != 1:
            raise ValueError("one entry for each column")
        if any(deviation <= 0 for deviation in self.deviations):
            raise ValueError("a deviation is above 0")
        return self

    @classmethod
    def of(cls, names: tuple[str, ...], mapped: tuple[Mapped, ...], standard: Standard) -> ConceptEncoding:
        """Return an encoding with the means and deviations of all sites, or those that the plan declares."""
        return cls(
            names=names,
            mapped=mapped,
            means=tuple(standard.means.tolist()),
            deviations=tuple(standard.deviations.tolist()),
            used=tuple(standard.is_used.tolist()),
        )

    def encode(self, table: Table, rows: Rows | None = None) -> npt.NDArray[np.float32]:
        """Return the standardised columns, float32 (rows, columns), of the given rows, int64. None means all rows."""
        features = {name: values if rows is None else values[rows] for name, values in table.features.items()}
        values = values_of(self.mapped, features, table.rows if rows is None else len(rows))
        used = np.array(self.used)
        standardised = (values - np.array(self.means)) / np.array(self.deviations)
        return np.where(np.isnan(values) | ~used, 0.0, standardised).astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConceptInputs:
    """A site's data set with the features and columns that a network on concepts reads, and their encoding."""

    encoding: ConceptEncoding
    dataset: Dataset


def concept_inputs(plan: NetworkPlan, site: str, table: Table, rows: SplitRows, own: Dataset) -> ConceptInputs:
    """Encode a site's rows as columns of the concepts. Raise ConfigurationError if contract and concepts differ."""
    columns = columns_of(plan.concepts)
    mapped = mapped_columns(plan.concepts, table.contract, site)
    encoding = ConceptEncoding.of(tuple(column.name for column in columns), mapped, Standard.declared(columns))
    places = list(read_places(plan, table.contract))

    def read(part: Examples, numbers: Rows) -> Examples:
        wide = np.concatenate([part.features, encoding.encode(table, numbers)], axis=1)
        return replace(part, features=np.ascontiguousarray(wide[:, places]))

    dataset = replace(
        own,
        training=read(own.training, rows.training),
        validation=read(own.validation, rows.validation),
        test=read(own.test, rows.test),
        columns=read_columns(plan, table.contract),
    )
    return ConceptInputs(encoding=encoding, dataset=dataset)


def read_places(plan: NetworkPlan, contract: Contract) -> tuple[int, ...]:
    """Return the positions of the network's columns in one list: all encoded columns, then the concepts' columns."""
    first = len(contract.encoded_columns)
    shared = range(first, first + len(plan.shared_columns))
    return (*shared, *_own_places(plan, contract))


def read_columns(plan: NetworkPlan, contract: Contract) -> tuple[str, ...]:
    """Return the names of the columns that the network reads."""
    own: Sequence[str] = contract.encoded_columns
    return (*plan.shared_columns, *(own[place] for place in _own_places(plan, contract)))


def shared_count(plan: NetworkPlan) -> int | None:
    """Return how many of the network's columns all sites have, or None if the network reads only shared columns."""
    has_own = isinstance(plan.architecture, ParallelNetwork | ColumnsNetwork)
    return len(plan.shared_columns) if has_own else None


def _own_places(plan: NetworkPlan, contract: Contract) -> list[int]:
    if shared_count(plan) is None:
        return []
    names = {concept.name for concept in plan.concepts}
    places: list[int] = []
    start = 0
    for feature in contract.features:
        width = len(feature.encoded_columns)
        if feature.concept not in names:
            places += range(start, start + width)
        start += width
    return places


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

    `features` are this site's training rows, float64 (rows,) by its own names; `others` is of the other sites: the
    announced sums minus this site's own, of two sites or more. So no message is needed, and the findings stay here. A
    difference proves nothing, because hospitals differ: a person looks at the column, and no unit is guessed.
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
