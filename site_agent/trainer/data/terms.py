"""Counts the terms of a table's lists and notes, and weights the counts for a network.

The weights are TF-IDF, then MaxAbs, as in FENDA-FL's GEMINI tasks (Tavakoli et al. 2024, appendix E), with the formulas
of scikit-learn's TfidfTransformer and MaxAbsScaler. They are fitted to the training rows and stay at the site. No cell
of such a column is stored, shown or logged, because a note may name its patient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from protos.errors import DataError
from protos.plan.documents import Document
from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.mistakes import Mistakes
from site_agent.trainer.data.terms_column import TermsFeature

# The limit is the same as for images. After encoding, this number of values needs 1 GiB.
LARGEST_TABLE_COUNTS: Final = 1 << 28

Counts: TypeAlias = npt.NDArray[np.uint16]


class TermsReader:
    """Reads the lists and notes of a table, block by block."""

    def __init__(self, columns: Sequence[TermsFeature], markers: tuple[str, ...]) -> None:
        self._rules = {column.name: column.rule(markers) for column in columns}
        self._width = sum(rule.width for rule in self._rules.values())
        self._blocks: dict[str, list[Counts]] = {name: [] for name in self._rules}

    def reserve(self, rows: int) -> None:
        """Refuse a table that needs more memory than this program reserves. `rows` counts all rows so far.

        Raises:
            DataError: the table has too many rows.
        """
        if rows * self._width > LARGEST_TABLE_COUNTS:
            raise DataError(
                what=f"The lists and notes become {self._width} columns, and the table has at least {rows} rows. With "
                f"this number of columns, this program reads at most {LARGEST_TABLE_COUNTS // self._width} rows.",
                consequence="The table was not used and nothing was sent.",
                remedy="Declare fewer buckets or codes in the contract, or use fewer rows.",
            )

    def take(self, name: str, cells: Sequence[str], rows: npt.NDArray[np.int64], mistakes: Mistakes) -> None:
        """Count the terms in cells of a column, and record mistakes. `rows` has the row number of each cell."""
        rule = self._rules[name]
        counts = np.zeros((len(cells), rule.width), dtype=np.uint16)  # a cell has fewer terms than uint16 can count
        flaws: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            found = rule.read(cell)
            if isinstance(found, Flaw):
                flaws.setdefault(found.words, []).append(int(rows[place]))
            else:
                counts[place, list(found)] = list(found.values())
        self._blocks[name].append(counts)
        for words, numbers in flaws.items():
            mistakes.add(words, numbers, column=name)

    def counts(self, rows: int) -> dict[str, Counts]:
        """Return the counts of each column, uint16 of shape (rows, columns). A missing column has zeros."""
        found = {}
        for name, blocks in self._blocks.items():
            width = self._rules[name].width
            found[name] = np.concatenate(blocks) if blocks else np.zeros((rows, width), dtype=np.uint16)
            found[name].flags.writeable = False
        return found


class TermWeights(Document):
    """The rarity of each term in the training rows, and the largest weight of each column.

    Attributes:
        rarity: ln((1 + rows) / (1 + rows with the term)) + 1, for each column.
        largest: the largest weight of a training row in each column, 1 if no training row has the term.
    """

    rarity: tuple[Annotated[float, Field(ge=1)], ...]
    largest: tuple[Annotated[float, Field(gt=0)], ...]


def fit_terms(counts: Counts) -> TermWeights:
    """Fit the weights to `counts` of at least one training row. The counts are uint16 of shape (rows, columns)."""
    rows, has_term = len(counts), np.count_nonzero(counts, axis=0)
    rarity = np.log((1 + rows) / (1 + has_term)) + 1
    ones = np.ones(counts.shape[1])
    largest = weighted(counts, TermWeights(rarity=tuple(rarity.tolist()), largest=tuple(ones.tolist()))).max(axis=0)
    largest = np.where(largest > 0, largest, ones)
    return TermWeights(rarity=tuple(rarity.tolist()), largest=tuple(largest.astype(np.float64).tolist()))


def weighted(counts: Counts, weights: TermWeights) -> npt.NDArray[np.float32]:
    """Return the weights of counted terms, TF-IDF and then MaxAbs: float32 of the counts' shape.

    A weight is count times rarity, scaled so that each row has length one, then divided by the column's largest weight.
    """
    found = counts.astype(np.float32)
    found *= np.array(weights.rarity, dtype=np.float32)
    # Every rarity is at least 1. So only an empty row has a length below 1, and this row stays zero.
    found /= np.maximum(np.sqrt(np.einsum("ij,ij->i", found, found)), np.float32(1))[:, None]
    found /= np.array(weights.largest, dtype=np.float32)
    return found


def in_order(codes: Counts, buckets: int) -> npt.NDArray[np.float32]:
    """Return the hash buckets of a note's words as fractions, 0 to 1, in word order: float32 of the shape of `codes`.

    As shares they are no larger than other columns, for models that read them as numbers. 0 means no word.
    """
    return codes.astype(np.float32) / np.float32(buckets)
