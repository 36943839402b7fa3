"""Reads from a database the rows of the contract's query, without permission to change the database.

The trainer has no network and gets none for a database. So the database is a file (SQLite), or a server behind a Unix
socket on this machine (PostgreSQL, MariaDB, MySQL). If it runs on another machine, its operator must forward it to such
a socket. duck_database.py reads DuckDB. The rules:

* the URL is in a file of its own, which only the trainer's user may read, because it may have a password;
* no word of a driver's error is shown, because it may quote the URL or a patient; its code selects a sentence of ours;
* a server or a lock that is not free yet is no mistake of the configuration: services try again;
* PostgreSQL writes times, intervals and all its rarer types as text, because Python's own types lose some of them;
* rows are read a few thousand at a time, and the transaction is rolled back at the end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from protos.errors import ConfigurationError, OperatorError, UnavailableError
from site_agent.trainer.data import duck_database
from site_agent.trainer.data.contract import SqlFormat
from site_agent.trainer.data.mistakes import not_installed, unusable
from site_agent.trainer.data.table_sources import Row

if TYPE_CHECKING:
    from psycopg.abc import Buffer
    from psycopg.adapt import AdaptersMap

_SQLITE: Final = b"SQLite format 3\0"
_WAL_VERSIONS: Final = b"\2\2"  # bytes 18 and 19 of an SQLite file in WAL mode
_LOCK_SECONDS: Final = 15.0
# The password may have any character, also @ : / # and %, as it is or written %XX.
_SERVER_URL: Final = re.compile(
    r"(?:postgres(?:ql)?(?:\+psycopg)?|(?P<maria>mysql|mariadb))://(?:(?P<user>[^:@/?]*)(?::(?P<password>.*))?@)?(?P<host>[^@:/?]*)(?::(?P<port>\d+))?"
    r"(?:/(?P<database>[^?@/]*))?(?:\?(?P<query>[^@]*))?"
)
# Types whose values Python holds without a loss. All others stay the text that the server writes.
_EXACT_TYPES: Final = frozenset({"bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric"})
_NOTHING: Final = "Nothing was read or changed and nothing was sent."
_BY_HAND: Final = "Run the contract's query by hand, and correct the query or the database."
# The database may answer the same query later: its server starts, ends, is full, or another program holds a lock.
_BUSY: Final = (
    "The database is busy: it starts or ends, it is full, or another program has locked it.",
    "A service tries again by itself. Otherwise wait until the other program has ended its work.",
)
_BUSY_CODES: Final = (
    "08 40 53 55 57P 58 1205 1213 1053 1040 2006 2013 SQLITE_BUSY SQLITE_LOCKED SQLITE_IOERR SQLITE_FULL"
)
# The first codes of an SQLSTATE, or the name of SQLite's error: what happened, and what to do.
_URL: Final = "Correct the URL in the table's file."
_REJECTIONS: Final = {
    code: (what, remedy)
    for codes, what, remedy in (
        (_BUSY_CODES, *_BUSY),
        ("1045", "The database rejects the user or the password.", _URL),
        ("1044 1049", "The server has no such database, or its user may not use it.", _URL),
        ("1146 42P01", "The query names a table that the database does not have.", _BY_HAND),
        ("1054 42703", "The query names a column that the database does not have.", _BY_HAND),
        ("1060", "The query gives two columns the same name.", _BY_HAND),
        ("1064 42601", "The query has a mistake in its syntax, or writes a file.", _BY_HAND),
        ("1142 1143 1370 42501", "The database's user may not read what the query names.", "Ask its administrator."),
        ("1792 25006", "The query writes, and it may only read.", "Let the contract's query only read."),
        ("57014", "The database stopped the query, for example after a time limit.", "Ask its administrator."),
        ("22", "The query computes with a value that its type cannot have, as in casts or dates.", _BY_HAND),
        (
            "SQLITE_NOTADB SQLITE_CORRUPT",
            "The SQLite file is encrypted or damaged.",
            "Make a new copy, without a password, with the program that writes it.",
        ),
        (
            "SQLITE_READONLY",
            "The query writes, or the SQLite file has an unfinished transaction.",
            "Let the query only read. Open and close the file once with the program that writes it, or make a copy "
            "with: sqlite3 FILE '.backup COPY'",
        ),
        ("SQLITE_CANTOPEN", "The SQLite file cannot be opened.", "Let the trainer's user read it and its folder."),
        ("SQLITE_ERROR", "The query names a table or column that the file does not have, or has a mistake.", _BY_HAND),
    )
    for code in codes.split()
}


def query_records(path: Path, form: SqlFormat) -> Generator[Row, None, None]:
    """Yield the query's column names as row 1, and then the rows of its result, numbered from 2.

    Raises:
        DataError: the database rejects the query, or is damaged.
        UnavailableError: the database cannot be reached, or is locked. It may answer later.
        ConfigurationError: the file is not SQLite and has no PostgreSQL URL. Other databases are not known to be
            read-only.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(4096)
    if duck_database.reads(path, start):
        yield from duck_database.duck_records(path, form, start)
        return
    is_wal = start.startswith(_SQLITE) and start[18:20] == _WAL_VERSIONS
    engine = _sqlite(path) if start.startswith(_SQLITE) else _server(start)
    is_connected = False
    try:
        with engine.connect() as connection:
            is_connected = True
            if engine.dialect.name == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            yield from _rows(connection, form)
        return
    except SQLAlchemyError as error:  # its text quotes the query, and can quote a value
        is_lost = getattr(error, "connection_invalidated", False)
        failure = _failure_of(getattr(error, "orig", None), is_lost, is_connected=is_connected, is_wal=is_wal)
    finally:
        engine.dispose()
    raise failure


def lacks_its_log(path: Path) -> bool:
    """Whether an SQLite file is in WAL mode, and the file with its newest rows is not beside it, or is empty."""
    with path.open("rb") as file:
        start = file.read(20)
    log = Path(f"{path}-wal")
    return start.startswith(_SQLITE) and start[18:] == _WAL_VERSIONS and not (log.exists() and log.stat().st_size)


def _rows(connection: Connection, form: SqlFormat) -> Generator[Row, None, None]:
    words = form.query.replace(":", r"\:")
    # Inside another query, MariaDB and MySQL refuse INTO OUTFILE, which a transaction that can only read does not.
    inside = f"SELECT * FROM ({words}\n) AS result"  # noqa: S608  # the contract's own query
    is_maria = connection.dialect.name == "mysql"
    query = text(inside if is_maria else words)
    result = connection.execution_options(stream_results=True, yield_per=5000).execute(query)
    yield 1, list(result.keys())
    yield from enumerate(result, start=2)
    # MariaDB and MySQL read an 'x' as 0 and 1/0 as NULL, and only warn.
    if is_maria and any(warning[0] != "Note" for warning in connection.exec_driver_sql("SHOW WARNINGS")):
        what, remedy = _REJECTIONS["22"]
        raise unusable(what=what, remedy=remedy)
    connection.rollback()


def _sqlite(path: Path) -> Engine:
    place = f"{path.resolve().as_uri()}?mode=ro"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(place, uri=True, timeout=_LOCK_SECONDS), poolclass=NullPool
    )

    def only_read(handle: sqlite3.Connection, _: object) -> None:
        handle.execute("PRAGMA query_only = ON")
        handle.text_factory = lambda cell: cell.decode("utf-8", "surrogateescape")  # its cell can then be named

    event.listen(engine, "connect", only_read)
    return engine


def _server(line: bytes) -> Engine:
    try:
        found = _SERVER_URL.fullmatch(line.decode("utf-8").strip())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise ConfigurationError(
            what="The contract declares a query, but the table is neither an SQLite or DuckDB file nor a server's URL.",
            consequence="Nothing was read and nothing was sent.",
            remedy="Write one line such as postgresql:///hospital?host=/run/postgresql, or "
            "mysql:///hospital?unix_socket=/run/mysqld/mysqld.sock, into a file, and name this file as the table. "
            "Export the rows of other databases, such as SQL Server and Oracle, as Parquet or CSV.",
        )
    user, password, host, database = (
        None if part is None else unquote(part) or None for part in found.group("user", "password", "host", "database")
    )
    query = dict(parse_qsl(found["query"] or ""))
    if found["maria"]:
        return _maria(user, password, host, database, query)
    query["options"] = f"{query.get('options', '')} -c datestyle=ISO -c intervalstyle=iso_8601".strip()
    port = int(found["port"]) if found["port"] else None
    engine = create_engine(
        URL.create("postgresql+psycopg", user, password, host, port, database, query=query), poolclass=NullPool
    )
    event.listen(engine, "connect", lambda handle, _: _keep_texts(handle.adapters))
    return engine


def _maria(
    user: str | None, password: str | None, host: str | None, database: str | None, query: dict[str, str]
) -> Engine:
    """MariaDB or MySQL. All types but numbers stay the text that the server writes, also days such as 0000-00-00."""
    try:
        from pymysql.constants import FIELD_TYPE
        from pymysql.converters import decoders, encoders
    except ImportError as cause:
        raise not_installed("pymysql", "site,databases") from cause
    kinds = ("TINY", "SHORT", "INT24", "LONG", "LONGLONG", "YEAR", "FLOAT", "DOUBLE", "DECIMAL", "NEWDECIMAL")
    numbers = {kind: decoders[kind] for kind in (getattr(FIELD_TYPE, name) for name in kinds)}
    numbers[FIELD_TYPE.BIT] = lambda cell: int.from_bytes(bytes(cell))  # type: ignore[arg-type]
    engine = create_engine(
        URL.create("mysql+pymysql", user, password, host, database=database, query=query),
        poolclass=NullPool,
        connect_args={"conv": {**encoders, **numbers}, "local_infile": False},
    )

    def only_read(handle: Any, _: object) -> None:
        with handle.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION READ ONLY")

    event.listen(engine, "connect", only_read)
    return engine


def _keep_texts(adapters: AdaptersMap) -> None:
    from psycopg.types.string import TextLoader

    class _Time(TextLoader):
        def load(self, data: Buffer) -> str | bytes:
            found = super().load(data)
            return found.removesuffix(" 00:00:00") if isinstance(found, str) else found

    for kind in adapters.types:
        if kind.name not in _EXACT_TYPES:
            adapters.register_loader(kind.oid, _Time if kind.name == "timestamp" else TextLoader)
        if kind.array_oid:
            adapters.register_loader(kind.array_oid, TextLoader)


def _failure_of(error: BaseException | None, is_lost: bool, *, is_connected: bool, is_wal: bool) -> OperatorError:
    numbered = error.args[0] if error is not None and error.args and isinstance(error.args[0], int) else ""
    code = str(numbered or getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", ""))
    found = next((told for start, told in _REJECTIONS.items() if code.startswith(start)), None)
    if found == _BUSY or (is_lost and not code):  # a server that crashes sends no code
        return UnavailableError(what=_BUSY[0], consequence=_NOTHING, remedy=_BUSY[1])
    if is_wal and code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return unusable(
            what="The SQLite file is in WAL mode, and it can only be read where files may be made beside it.",
            remedy="Make a copy in another mode: sqlite3 FILE \"VACUUM INTO 'COPY'\"",
        )
    if found is not None:
        return unusable(what=found[0], remedy=found[1])
    if not is_connected:
        return UnavailableError(
            what="The database cannot be reached, or it rejects the user, the password or the database's name.",
            consequence=_NOTHING,
            remedy="The server must listen on a Unix socket of this computer. Try what the table's file says by hand, "
            "with `psql`, or with `mariadb` for such a server.",
        )
    return unusable(what="The database rejects the query in the contract.", remedy=_BY_HAND)
