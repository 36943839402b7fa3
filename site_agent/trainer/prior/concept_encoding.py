"""Encodes the common columns of a table for federated-prior and for networks on concepts.

The encoding is saved with the model, so a prediction needs nothing else. A missing value is 0. This is the mean over
all sites under federated-prior, and the typical value that the plan declares under any other method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from protos.plan.concepts import ConceptColumn, declared_standard
from protos.plan.documents import Document
from protos.plan.prior_sums import Standard
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_mapping import MappedCode, MappedNumber, values_of


class ConceptEncoding(Document):
    """Converts a site's own columns to the common columns of a plan. Each attribute has one entry per common column.

    Attributes:
        names: the names of the common columns.
        mapped: the site's own column for each, None if the site has none.
        means, deviations: over all sites or as the plan declares, of values scaled to 0..1.
        used: whether the column varies and enough sites record it.
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
        """Return the encoding by the plan's declared typical values and spreads. No patient influences the encoding."""
        standards = [declared_standard(column) for column in columns]
        return cls(
            names=tuple(column.name for column in columns),
            mapped=mapped,
            means=tuple(typical for typical, _ in standards),
            deviations=tuple(spread for _, spread in standards),
            used=(True,) * len(columns),
        )

    def encode(self, table: Table, rows: Rows | None = None) -> npt.NDArray[np.float32]:
        """Return standardised columns, float32 of shape (rows, columns).

        `rows` are int64, in order; None takes all.
        """
        features = {name: values if rows is None else values[rows] for name, values in table.features.items()}
        values = values_of(self.mapped, features, table.rows if rows is None else len(rows))
        used = np.array(self.used)
        standardised = (values - np.array(self.means)) / np.array(self.deviations)
        return np.where(np.isnan(values) | ~used, 0.0, standardised).astype(np.float32)
