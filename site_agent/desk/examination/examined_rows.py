"""Finds problems in rows and images of a table, such as equal rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from site_agent.desk.examination.examined_outcome import named_parts
from site_agent.desk.examination.finding import Finding, counted, row_warning
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.tables import Table

_Numbers = npt.NDArray[np.int64]  # equal for equal rows, or for rows of one patient


def row_findings(table: Table, parts: SplitRows | None) -> Iterator[Finding]:
    """Yield all findings about the rows of a table. `parts` is None if the table cannot be split."""
    columns = [*table.features.values(), *table.marks, *([] if table.target is None else [table.target])]
    if not columns:
        return
    compared = pd.DataFrame(dict(enumerate(columns)))
    groups = compared.groupby(list(compared), dropna=False, sort=False).ngroup()
    equal, patients = np.asarray(groups, dtype=np.int64), None
    if table.patients is not None:
        patients = np.unique(np.array(table.patients), return_inverse=True)[1].astype(np.int64)
    again = pd.DataFrame({"row": equal, "who": 0 if patients is None else patients}).duplicated(keep=False).to_numpy()
    who = "" if patients is None else " of the same patient"
    words = f"{again.sum()} rows{who} are equal to another row in every column that the contract uses"
    yield from row_warning(table, "duplicates", words, again)
    if patients is None and parts is not None:
        yield from _in_two_parts(equal, parts)


def _in_two_parts(equal: _Numbers, parts: SplitRows) -> Iterator[Finding]:
    """Yield a warning if equal rows are in two parts. With a patient column a patient's rows stay together."""
    for (one, ours), (other, theirs) in combinations(named_parts(parts), 2):
        shared = np.intersect1d(equal[ours], equal[theirs])
        if len(shared):
            words = (
                f"{len(shared)} equal rows are both in the {one} rows and in the {other} rows; declare the column that "
                "identifies the patient"
            )
            yield Finding(level="warning", key=f"duplicates-in-two-parts:{one}:{other}", words=words)


def image_findings(table: Table) -> Iterator[Finding]:
    """Yield findings for images that seem empty, and for images that two patients have in common."""
    if table.images is None or table.contract.image is None:
        return
    name = table.contract.image.name
    there = ~np.isnan(table.images[:, 0])
    blank = there & (table.images.min(axis=1) == table.images.max(axis=1))
    is_one = blank.sum() == 1
    words = f"column {name}: {counted(int(blank.sum()), 'image')} {'has' if is_one else 'have'} the same intensity"
    words += f" in all pixels; {'is it' if is_one else 'are they'} empty?"
    yield from row_warning(table, "blank-images", words, blank)
    whose = "row" if table.patients is None else "patient"
    owners = pd.Series(np.arange(table.rows) if table.patients is None else table.patients)
    shared = there & (owners.groupby(table.marks[0]).transform("nunique").to_numpy() > 1)
    words = f"column {name}: {shared.sum()} images are equal to the image of another {whose}"
    yield from row_warning(table, "shared-images", words, shared)
