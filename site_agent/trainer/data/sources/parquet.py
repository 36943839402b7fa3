"""Rows of a Parquet file, some thousands at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pyarrow as arrow
import pyarrow.parquet as parquet

from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.records import Record, text_of

_BATCH_CELLS: Final = 1 << 19


def parquet_records(path: Path) -> Generator[Record, None, None]:
    """The names of the columns as row 1, then the rows, counted from 2.

    Raises:
        DataError: the file is damaged, or a column holds lists, bytes or other things that are no cell.
        OSError: the file cannot be read.
    """
    with path.open("rb") as handle:
        try:
            file = parquet.ParquetFile(handle)
        except (arrow.ArrowException, OSError):
            file = None
        if file is None:
            refuse(["the file is no Parquet file, or it is damaged"])
        names = file.schema_arrow.names
        yield 1, list(names)
        row = 2
        batches = file.iter_batches(batch_size=max(1, _BATCH_CELLS // max(1, len(names))), use_threads=False)
        for columns in _columns(batches):
            for cells in zip(*columns, strict=True):
                yield row, list(cells)
                row += 1


def _columns(batches: Iterator[arrow.RecordBatch]) -> Iterator[list[list[str]]]:
    while True:
        try:
            batch = next(batches, None)
        except (arrow.ArrowException, OSError):
            break
        if batch is None:
            return
        yield [_texts(place, column) for place, column in enumerate(batch.columns, start=1)]
    refuse(["the Parquet file is damaged"])


def _texts(place: int, column: arrow.Array) -> list[str]:
    try:
        values = column.to_pylist()
    except (arrow.ArrowException, ValueError, OverflowError):
        values = [b""]  # such as a time before the year 1; told as the others
    texts = [text_of(value) for value in values]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        refuse([f"the column number {place} holds something that is neither text, number nor date"])
    return known
