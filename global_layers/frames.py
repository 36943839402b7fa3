"""Converts data frames to tables of hospitals, with their contracts and common concepts.

Equal names of columns mean the same here, because one researcher made all frames. Between hospitals this is never
assumed: each hospital maps its own columns in its contract.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pandas as pd

from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.tables import Table, read_table

FEWEST_SITES: Final = 3  # sites that record a concept
CORRECT: Final = "Correct the data frames or the plan, and call the function again."
_MOST_CODES: Final = 20  # of a column with another text in each row
_OUTCOME: Final = "outcome of the simulation"


def tables_of(sites: Mapping[str, pd.DataFrame], outcome: str) -> tuple[dict[str, Table], list[dict[str, Any]]]:
    """Convert each site's data frame of numbers, texts and truth values to a hospital's table.

    Return the tables, and the concepts that at least three sites record, as a plan lists them. `outcome` is the column
    that is predicted, with the same two values in all frames. Raise DataError with all mistakes of the frames.
    """
    if wrong := [*_mistakes(sites, outcome)]:
        refuse(wrong, CORRECT)
    values = sorted({value for frame in sites.values() for value in frame[outcome].unique()})
    pooled = pd.concat(list(sites.values()), ignore_index=True).drop(columns=outcome)
    columns = {name: column for name in pooled if (column := _column(str(name), pooled[name])) is not None}
    tables = {}
    with TemporaryDirectory() as folder:
        for site, frame in sites.items():
            outcomes = (frame[outcome] == values[1]).astype(int)
            own = frame[[name for name in frame if name in columns]].assign(**{_OUTCOME: outcomes})
            path = Path(folder) / f"{site}.csv"
            own.to_csv(path, index=False)
            target = {"name": _OUTCOME, "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
            features = [columns[name] for name in own if name != _OUTCOME]
            content = {"format": {"header": True}, "columns": [*features, target]}
            tables[site] = read_table(path, Contract.model_validate_json(json.dumps(content)))
    concepts = []
    for name, column in columns.items():
        recorded_by = [site for site, frame in sites.items() if name in frame]
        if len(recorded_by) >= FEWEST_SITES:
            concepts.append(_concept(column, pooled[name]) | {"recorded_by": recorded_by})
    return tables, concepts


def _mistakes(sites: Mapping[str, pd.DataFrame], outcome: str) -> Iterator[str]:
    frames = [*sites.values()] if isinstance(sites, Mapping) else []
    if len(frames) < FEWEST_SITES or not all(isinstance(frame, pd.DataFrame) for frame in frames):
        yield f"simulate needs a dictionary of {FEWEST_SITES} data frames or more, by the names of sites"
        return
    for site, frame in sites.items():
        own = frame.get(outcome, pd.Series())
        if missing := own.isna().sum():
            yield f"{site}: {missing} of {len(frame)} rows have no value of {outcome}; leave them out"
        elif own.nunique() < 2:
            yield f"{site}: {outcome} is absent, or has one value"
        for name, values in frame.drop(columns=outcome, errors="ignore").items():
            kind = pd.api.types.infer_dtype(values)
            if kind.startswith(("date", "time", "period")) or (
                kind == "string" and len(values) == values.nunique() > _MOST_CODES
            ):
                yield f"{site}: the column {name} has dates or other texts in each row; leave it out, or use numbers"
    yield from _alike("columns", [name for frame in frames for name in frame])
    for name, values in pd.concat(frames, ignore_index=True).items():
        yield from _alike(f"values of {name}", () if values.dtype.kind in "iuf" else values.dropna().unique())
        if name == outcome and values.nunique() > 2:
            yield f"the column {outcome} has {values.nunique()} values, and a simulation needs two"


def _alike(what: str, texts: Iterable[object]) -> Iterator[str]:
    """Yield the texts that differ only in capitals or spaces, or as 1 and "1" do: nearly always they mean the same."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        found[" ".join(str(text).split()).casefold()].add(repr(text) if isinstance(text, str) else str(text))
    yield from (f"the {what} {', '.join(sorted(one))} look alike" for one in found.values() if len(one) > 1)


def _column(name: str, values: pd.Series[Any]) -> dict[str, Any] | None:
    """Return the entry of a column in a data contract, or None if the column has only one value."""
    if values.nunique() < 2:
        return None
    concept = re.sub("[^a-z0-9]+", "-", f"c-{name.lower()}").strip("-")[:40]
    common = {"name": name, "role": "feature", "concept": concept}
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        # A column with a flag is the same at all sites, so networks can share it.
        missing = "median-and-flag" if values.isna().any() else "refuse"
        return common | {"type": "numeric", "missing": missing}
    return common | {"type": "categorical", "codes": _codes(values), "encoding": "one-hot"}


def _concept(column: Mapping[str, Any], values: pd.Series[Any]) -> dict[str, Any]:
    common = {"name": column["concept"], "definition": f"The column {column['name']}."}
    if column["type"] == "categorical":
        return common | {"kind": "codes", "codes": _codes(values)}
    return common | {"kind": "number", "low": float(values.min()), "high": float(values.max())}


def _codes(values: pd.Series[Any]) -> list[str]:
    return [str(code) for code in values.value_counts().index]
