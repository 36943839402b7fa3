"""Computes from a site's table the encoded columns of a plan's concepts, which a network reads.

A plan that lists concepts and no columns gives every site the same shared columns: those of the concepts. The rules:

* a value is converted to the concept's unit. A network's inputs are standardised by the plan's declaration, never by
  this site's rows. Under federated-prior, means and deviations are those of all sites;
* a concept that this site does not record is 0 in every row. So is a missing value: 0 is the mean over all sites, or
  the typical value that the plan declares;
* some networks also read columns of a site's own. These are the features that are mapped to no concept of the plan;
* the encoding is saved with the model, so a prediction needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from protos.plan.architecture import ColumnsNetwork, ParallelNetwork
from protos.plan.concepts import ConceptColumn, columns_of, declared_standard
from protos.plan.documents import Document
from protos.plan.plan import Plan
from protos.plan.prior_sums import Standard
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.data.splits import Rows, SplitRows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_mapping import MappedCode, MappedNumber, mapped_columns, values_of


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
    def of(
        cls, names: tuple[str, ...], mapped: tuple[MappedNumber | MappedCode | None, ...], standard: Standard
    ) -> ConceptEncoding:
        """Return an encoding whose means and deviations are computed from the statistics of all sites."""
        return cls(
            names=names,
            mapped=mapped,
            means=tuple(standard.means.tolist()),
            deviations=tuple(standard.deviations.tolist()),
            used=tuple(standard.is_used.tolist()),
        )

    @classmethod
    def declared(cls, columns: Sequence[ConceptColumn], mapped: tuple[MappedNumber | MappedCode | None, ...]) -> Self:
        """Return the encoding with the typical values and spreads that the plan declares. No patient influences it."""
        standards = [declared_standard(column) for column in columns]
        return cls(
            names=tuple(column.name for column in columns),
            mapped=mapped,
            means=tuple(typical for typical, _ in standards),
            deviations=tuple(spread for _, spread in standards),
            used=(True,) * len(columns),
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


def concept_inputs(plan: Plan, site: str, table: Table, rows: SplitRows, own: Dataset) -> ConceptInputs:
    """Encode a site's rows as columns of the concepts. Raise ConfigurationError if contract and concepts differ."""
    columns = columns_of(plan.concepts)
    encoding = ConceptEncoding.declared(columns, mapped_columns(plan.concepts, table.contract, site))
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


def read_places(plan: Plan, contract: Contract) -> tuple[int, ...]:
    """Return the positions of the network's columns in one list: all encoded columns, then the concepts' columns."""
    first = len(contract.encoded_columns)
    shared = range(first, first + len(plan.shared_columns))
    return (*shared, *_own_places(plan, contract))


def read_columns(plan: Plan, contract: Contract) -> tuple[str, ...]:
    """Return the names of the columns that the network reads."""
    own: Sequence[str] = contract.encoded_columns
    return (*plan.shared_columns, *(own[place] for place in _own_places(plan, contract)))


def shared_count(plan: Plan) -> int | None:
    """Return how many of the network's columns all sites have, or None if the network reads only shared columns."""
    has_own = isinstance(plan.architecture, ParallelNetwork | ColumnsNetwork)
    return len(plan.shared_columns) if has_own else None


def _own_places(plan: Plan, contract: Contract) -> list[int]:
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
    terms = sum(len(column.encoded_columns) for column in contract.terms)
    return [*places, *range(start, start + terms)]
