"""Reads from a database the rows of the contract's query, without permission to change the database.

The trainer has no network and gets none for a database. So the database is a file (SQLite), or a server behind a Unix
socket on this machine (PostgreSQL). If it runs on another machine, its operator must forward it to such a socket. The
rules:

* the URL is in a file of its own, which only the trainer's user may read, because it may have a password;
* no word of a driver's error is shown, because it may quote the URL or a patient;
* rows are read a few thousand at a time, and the transaction is rolled back at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from protos.errors import ConfigurationError, DataError
from site_agent.trainer.data.contract import SqlFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.blocks import Record, text_of

_SQLITE: Final = b"SQLite format 3\0"
_ROWS_AT_ONCE: Final = 5000
_LARGEST_URL_BYTES: Final = 4096


def query_records(path: Path, form: SqlFormat) -> Generator[Record, None, None]:
    """Yield the query's column names as row 1, and then the rows of its result, numbered from 2.

    Raises:
        DataError: the query fails, or returns a value that cannot be a cell.
        ConfigurationError: the file is not SQLite and has no PostgreSQL URL. Other databases are not known to be
            read-only.
        OSError: the file cannot be read.
    """
    engine = _engine(path)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            yield from _rows(connection, form)
        return
    except SQLAlchemyError:
        pass  # the error's text quotes the query, and can quote a value
    finally:
        engine.dispose()
    raise DataError(
        what="The database cannot be reached, or it rejects the query in the contract.",
        consequence="Nothing was read or changed and nothing was sent.",
        remedy=(
            "Run the contract's query by hand to test it. The database server must listen on a Unix socket of this "
            "computer."
        ),
    )


def _rows(connection: Connection, form: SqlFormat) -> Generator[Record, None, None]:
    query = text(form.query.strip().removesuffix(";").replace(":", r"\:"))
    result = connection.execution_options(stream_results=True, yield_per=_ROWS_AT_ONCE).execute(query)
    yield 1, list(result.keys())
    for row, values in enumerate(result, start=2):
        cells = [text_of(value) for value in values]
        texts = [cell for cell in cells if cell is not None]
        if len(texts) < len(cells):
            refuse([f"row {row}: the query returns a value that is not text, a number or a date"])
        yield row, texts
    connection.rollback()


def _engine(path: Path) -> Engine:
    with path.open("rb") as file:
        start = file.read(_LARGEST_URL_BYTES)
    if start.startswith(_SQLITE):
        place = f"{path.resolve().as_uri()}?mode=ro"
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(place, uri=True), poolclass=NullPool)
        event.listen(engine, "connect", lambda handle, _: handle.execute("PRAGMA query_only = ON"))
        return engine
    try:
        url = make_url(start.decode("ascii").strip())
        if url.drivername in ("postgresql", "postgresql+psycopg"):
            return create_engine(url.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    except (ArgumentError, UnicodeDecodeError):
        pass
    raise ConfigurationError(
        what="The contract declares a database query, but the table is not an SQLite file and has no PostgreSQL URL.",
        consequence="Nothing was read and nothing was sent.",
        remedy="Write one line such as postgresql:///hospital?host=/run/postgresql into a file, and name this file as "
        "the table.",
    )
