"""Reads the cells of some columns again, as texts, for rows of a table that was read and checked before.

A table keeps intervals instead of dates and counts instead of lists and notes. Another hospital's model counts in its
own way, so it needs the cells. They stay in memory only as long as that model is tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.sources.blocks import blocks_of
from site_agent.trainer.data.sources.opening import open_blocks


def cells_again(
    path: Path, contract: Contract, names: Collection[str], row_numbers: npt.NDArray[np.int64]
) -> dict[str, list[str]]:
    """Return the cells of columns by name, without those that the table lacks.

    Args:
        path: the table's file.
        contract: what the table was checked against.
        names: of columns.
        row_numbers: int64 of shape (rows,), as in `Table.row_numbers`; the cells are in this order.

    Raises:
        DataError: the file cannot be read.
    """
    found: dict[str, dict[int, str]] = {}
    with open_blocks(path, contract.format) as opened:
        first = opened.first
        assert first is not None  # the table was read before
        has_header, width = contract.format.header, len(first[1])
        header = [cell.strip() for cell in first[1]] if has_header else [column.name for column in contract.columns]
        places = {name: place for place, name in enumerate(header) if name in names}
        own = iter(()) if has_header else blocks_of(iter([first]), width, sorted(places.values()))
        for block in itertools.chain(own, opened.rest(width, sorted(places.values()))):
            kept = np.flatnonzero(np.isin(block.rows, row_numbers)).tolist()
            numbers = block.rows.tolist()
            for name, place in places.items():
                cells = block.texts_at(place)
                found.setdefault(name, {}).update((numbers[row], cells[row]) for row in kept)
    return {name: [cells[number] for number in row_numbers.tolist()] for name, cells in found.items()}
