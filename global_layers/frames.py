"""Converts data frames to tables of hospitals, with their contracts and common concepts.

Equal names of columns mean the same here, because one researcher made all frames. Between hospitals this is never
assumed: each hospital maps its own columns in its contract.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pandas as pd

from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.tables import Table, read_table

FEWEST_SITES: Final = 3  # sites that record a concept
CORRECT: Final = "Correct the data frames or the plan, and call the function again."
_OUTCOME: Final = "outcome of the simulation"


def tables_of(sites: Mapping[str, pd.DataFrame], outcome: str) -> tuple[dict[str, Table], list[dict[str, Any]]]:
    """Convert each data frame to a hospital's table.

    Args:
        sites: a frame of patients for each site; columns of numbers, or of texts and truth values.
        outcome: the name of the column that is predicted; it has the same two values in all frames.

    Returns:
        the tables, and the concepts that at least three sites record, as a plan lists them.

    Raises:
        DataError: the outcome has another number of values, or a table cannot be read.
    """
    values = sorted({value for frame in sites.values() for value in frame.get(outcome, pd.Series()).unique()})
    if len(values) != 2:
        refuse([f"the column {outcome} has {len(values)} values, and a simulation needs two"], CORRECT)
    pooled = pd.concat(list(sites.values()), ignore_index=True).drop(columns=outcome)
    columns = {name: column for name in pooled if (column := _column(str(name), pooled[name])) is not None}
    tables = {}
    with TemporaryDirectory() as folder:
        for site, frame in sites.items():
            own = frame[[name for name in frame if name in columns]].copy()
            own[_OUTCOME] = (frame[outcome] == values[1]).astype(int)
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
