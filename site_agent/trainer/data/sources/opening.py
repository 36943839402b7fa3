"""Opens a table of any format, and returns its rows as blocks of text columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import assert_never

from protos.errors import UnavailableError
from site_agent.trainer.data.contract import ExcelFormat, Format, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.mistakes import unusable
from site_agent.trainer.data.sources.blocks import Opened, opened_records


@contextmanager
def open_blocks(path: Path, form: Format) -> Iterator[Opened]:
    """Open a table file. Return its first row, and its rows as blocks of columns. Libraries are loaded if needed.

    Raises:
        OperatorError: the source cannot be read, is damaged, or is not of the declared kind.
    """
    with _telling(path):
        match form:
            case TableFormat():
                from site_agent.trainer.data.sources.text import opened_text

                with path.open("rb") as file:
                    yield opened_text(file, form)
            case ParquetFormat():
                from site_agent.trainer.data.sources.parquet import opened_parquet

                with path.open("rb") as file:
                    yield opened_parquet(file)
            case ExcelFormat():
                from site_agent.trainer.data.sources.excel import excel_records

                with closing(excel_records(path, form)) as records:
                    yield opened_records(records)
            case SqlFormat():
                from site_agent.trainer.data.sources.database import query_records

                with closing(query_records(path, form)) as records:
                    yield opened_records(records)
            case _:
                assert_never(form)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except (PermissionError, IsADirectoryError) as cause:
        raise unusable(
            what=f"The table {path} cannot be read: {cause.strerror}.",
            remedy="Give the path of a file that the user account of the trainer may read.",
        ) from cause
    except OSError as cause:  # a disk or a network drive may be there later
        raise UnavailableError(
            what=f"The table {path} cannot be read now: {cause.strerror or type(cause).__name__}.",
            consequence="The table was not used and nothing was sent.",
            remedy="A service tries again by itself. If the file will not be there, correct its path in hospital.yaml.",
        ) from cause
