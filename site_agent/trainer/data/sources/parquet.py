"""Reads the rows of a Parquet file, some thousands at a time.

Numbers stay numbers until the declaration of their column is known. Any other value is converted to its spelling in a
text file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.blocks import Block, Opened, texts_of

_BATCH_CELLS: Final = 1 << 19


def opened_parquet(handle: BinaryIO) -> Opened:
    """Open a Parquet file. Return its column names, and blocks of its rows with only the requested columns.

    Raises:
        DataError: the file is damaged, or a column has lists, bytes or other values that cannot be a cell.
    """
    try:
        file = parquet.ParquetFile(handle)
        names = list(file.schema_arrow.names)
    except (arrow.ArrowException, OSError, UnicodeDecodeError):
        file = None
    if file is None:
        refuse(["the file is not a Parquet file, or it is damaged"])
    return Opened(first=(1, names), rest=lambda _, places: _blocks(file, places))


def _blocks(file: parquet.ParquetFile, places: Sequence[int]) -> Iterator[Block]:
    names, row = file.schema_arrow.names, 2
    # Columns with the same name cannot be selected by name.
    wanted = [names[place] for place in places] if len(set(names)) == len(names) else None
    batch_rows = max(1, _BATCH_CELLS // max(1, len(names) if wanted is None else len(wanted)))
    batches = file.iter_batches(batch_size=batch_rows, columns=wanted, use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except (arrow.ArrowException, OSError):
            break
        if batch is None:
            return
        found = {place: batch.column(place if wanted is None else names[place]) for place in places}
        columns = {
            place: column if _is_number(column.type) else _texts(place, column) for place, column in found.items()
        }
        yield Block(rows=np.arange(row, row + batch.num_rows, dtype=np.int64), columns=columns)
        row += batch.num_rows
    refuse(["the Parquet file is damaged"])


def _is_number(kind: arrow.DataType) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_float32(kind) or arrow.types.is_float64(kind))


def _texts(place: int, column: arrow.Array) -> arrow.StringArray:
    try:
        column.validate(full=True)  # a file can declare bytes as text although they are not text
        texts = texts_of(column)
    except arrow.ArrowException:
        texts = None
    if texts is None:
        refuse([f"the column number {place + 1} has a value that is not text, a number or a date"])
    return texts
