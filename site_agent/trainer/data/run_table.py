"""Reads the hospital's table for a run, and refuses a table that a run must not use.

Each cell is checked against the contract as always. Before the first run a person also looks at the table:
`site-agent data check` examines it and stores that it has no warning, `site-agent data accept` stores who accepted its
warnings. Both records name one table, by its content, its contract and its split. If `unaccepted_warnings` is `stop`, a
table without such a record is refused. So a table that has changed since then is not used until it is checked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
from pydantic import ValidationError

from protos.errors import DataError
from protos.plan.documents import Document
from site_agent.hospital import Hospital, Split
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature, Feature
from site_agent.trainer.data.contract import SqlFormat, read_contract
from site_agent.trainer.data.dataset import SplitRows, split_rows
from site_agent.trainer.data.mistakes import KEPT_ROWS, Mistake, refuse
from site_agent.trainer.data.tables import Table, read_table
from site_agent.trainer.disk import array_digest, write_whole


def table_for_run(hospital: Hospital, *, logs: bool = False) -> tuple[Table, SplitRows | None]:
    """Return the table and its three parts, None if the site only counts. Raise OperatorError if it can't be used."""
    contract = read_contract(Path(hospital.data.contract))
    table = read_table(Path(hospital.data.table), contract, scratch=hospital.scratch_path)
    rows = None if hospital.policy.tier == "statistics" else split_rows(table, hospital.data.split)
    if mistakes := [mistake.line for mistake in unusable_columns(table, rows)]:
        refuse(mistakes)
    if error := unchecked(hospital, table, logs=logs):
        raise error
    return table, rows


def unchecked(hospital: Hospital, table: Table, *, logs: bool = False) -> DataError | None:
    """Return why a run must not use a table: no person has checked it as it is now. Return None, or log, if it may."""
    check = find_check(hospital.state_path, check_digest(table, hospital.data.split))
    if check is not None and not (check.by is None and table.put_aside):
        return None
    if hospital.data.unaccepted_warnings == "stop" or table.put_aside:
        return DataError(
            what="No person has checked this table, with its contract and its split, as they are now.",
            consequence="Nothing was trained and nothing was sent.",
            remedy="Run `site-agent data check`, correct what it lists or accept it with `site-agent data accept`, and "
            "read `site-agent review` again, because a change can end a run for all.",
        )
    if logs:
        structlog.get_logger().info("table_not_checked")
    return None


def is_missing(feature: Feature, values: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each row whether the feature's value is missing (NaN, or -1 for a code): bool of shape (rows,)."""
    return values < 0 if isinstance(feature, CategoricalFeature) else np.isnan(values)


def unusable_columns(table: Table, rows: SplitRows | None) -> Iterator[Mistake]:
    """Yield the mistakes of whole columns, which no single cell shows. `rows` is None if the table cannot be split."""
    empty = f"no row{' with an outcome' * bool(table.dropped)} has a value. Use `role: ignore`, or a row per patient"
    for feature in table.contract.features:
        values = table.features[feature.name]
        if is_missing(feature, values).all():
            yield Mistake(flaw=empty, column=feature.name)
        elif feature.same_for_patient and table.patients is not None:
            yield from _two_people(table, feature.name, values)
    target = table.contract.target
    if rows is not None and table.target is not None:
        for place, name in enumerate(target.classes):
            if not (table.target[rows.training] == place).any():
                only = "if this hospital only counts, write `tier: statistics` in its policy"
                yield Mistake(flaw=f"no training row has the outcome {name}; {only}", column=target.name)


def _two_people(table: Table, name: str, values: Numbers) -> Iterator[Mistake]:
    first, owner = np.unique(np.array(table.patients), return_index=True, return_inverse=True)[1:]
    usual = values[first][owner]
    wrong = np.flatnonzero((values != usual) & ~np.isnan(values) & ~np.isnan(usual))
    if len(wrong):
        words = "rows with the same patient identifier have different values; two patients may have the same identifier"
        yield Mistake(flaw=words, column=name, rows=row_numbers(table, wrong), count=len(wrong))


def row_numbers(table: Table, places: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the numbers of the first of these rows, as a spreadsheet counts. `places` count from 0."""
    first = places[:KEPT_ROWS]
    return tuple((first + 1 if table.row_numbers is None else table.row_numbers[first]).tolist())


class TableCheck(Document):
    """The record that a table may be used: its digest, the warnings, and who accepted them. None without a warning.

    `put_aside` tells which rows the person left out, or is empty.
    """

    digest: str
    warnings: tuple[str, ...]
    by: str | None
    at: str
    put_aside: str = ""


def keep_check(state: Path, check: TableCheck) -> None:
    """Store, whole or not at all, that a table may be used. Raise UnavailableError if the disk cannot be written."""
    write_whole(_path(state, check.digest), check.model_dump_json(indent=2).encode())


def accepted_rows(state: Path) -> str:
    """Return who accepted last that rows are put aside, and how many, as a sentence. Return nothing if nobody did."""
    try:
        kept = [TableCheck.model_validate_json(one.read_bytes()) for one in (state / "data" / "checked").glob("*.json")]
    except (OSError, ValidationError):
        return ""
    last = max((one for one in kept if one.put_aside), key=lambda one: one.at, default=None)
    return "" if last is None else f"{last.by} accepted at {last.at}: {last.put_aside}."


def put_aside_in_words(table: Table) -> str:
    """Return how many rows are put aside, of how many, and how many may be. Return nothing if none is."""
    count, rows = len(table.put_aside), table.rows + len(table.put_aside)
    share = f"{count} of {rows} rows ({count / max(1, rows):.1%})"
    return f"{share} cannot be read and are put aside (at most {table.contract.put_aside:.1%})" if count else ""


def find_check(state: Path, digest: str) -> TableCheck | None:
    """Return the record about the table with this digest, or None. Raises DataError if the stored file is damaged."""
    try:
        found = TableCheck.model_validate_json(_path(state, digest).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        found = None
    if found is None or found.digest != digest:
        raise DataError(
            what="The file that stores who checked the table cannot be read.",
            consequence="Nothing was trained and nothing was sent.",
            remedy="Check the table again with `site-agent data check`. If it lists warnings, accept them again.",
        )
    return found


def _path(state: Path, digest: str) -> Path:
    return state / "data" / "checked" / f"{digest}.json"


def check_digest(table: Table, split: Split) -> str:
    """Return the digest that a check is stored under: of a table's content, its contract and its split."""
    bound = json.dumps(["table check 1", table_digest(table), split.model_dump()], sort_keys=True)
    return hashlib.sha256(bound.encode()).hexdigest()


def table_digest(table: Table) -> str:
    """Return the BLAKE3 digest of a table's data and of its contract, in hexadecimal. The digest stays at the site."""
    numbers = {**table.features, **{f"group {name}": values for name, values in table.group_positions.items()}}
    arrays: list[tuple[str, npt.NDArray[np.generic]]] = list(numbers.items())
    if table.target is not None:
        arrays.append(("target", table.target))
    if table.follow_up is not None:
        arrays.append(("follow-up", table.follow_up))
    if table.images is not None:
        arrays.append(("images", table.images))
    if table.put_aside:
        is_query = isinstance(table.contract.format, SqlFormat)  # whose rows have new numbers each time
        arrays.append(("put aside", np.array([len(table.put_aside)] if is_query else table.put_aside)))
    patients = "\0".join(table.patients or ()).encode("utf-8", "surrogatepass")
    arrays.append(("patients", np.frombuffer(patients, dtype=np.uint8)))
    return array_digest(f"global-layers table 1 {table.contract.digest}", arrays)
