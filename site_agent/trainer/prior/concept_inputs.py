"""Computes the inputs of a network on concepts from a site's table.

A plan that lists concepts and no columns gives every site the same shared columns: those of the concepts. The rules:

* a value is converted to the concept's unit and standardised by the plan's declaration, never by this site's rows;
* a concept that this site does not record is 0 in every row. So is a missing value;
* some networks also read columns of a site's own. These are the features that are mapped to no concept of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from protos.plan.architecture import ColumnsNetwork, ParallelNetwork
from protos.plan.concepts import columns_of
from protos.plan.plan import Plan
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.data.splits import Rows, SplitRows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_encoding import ConceptEncoding
from site_agent.trainer.prior.concept_mapping import mapped_columns


@dataclass(frozen=True, kw_only=True, eq=False)
class ConceptInputs:
    """A site's rows, encoded for a network that reads concepts.

    Attributes:
        dataset: the site's data set, with the features and columns that the network reads.
    """

    encoding: ConceptEncoding
    dataset: Dataset


def concept_inputs(plan: Plan, site: str, table: Table, rows: SplitRows, own: Dataset) -> ConceptInputs:
    """Return a site's rows as inputs of a network on concepts: mapped to the concepts, then encoded.

    Raises:
        ConfigurationError: the contract does not fit the concepts.
    """
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
