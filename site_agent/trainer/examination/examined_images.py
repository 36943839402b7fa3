"""What is found in images: those that are empty, and those that two patients share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from site_agent.trainer.data.tables import Table
from site_agent.trainer.examination.examined_columns import rows_of
from site_agent.trainer.examination.examined_rows import patient_numbers
from site_agent.trainer.examination.finding import Finding, counted


def image_findings(table: Table) -> Iterator[Finding]:
    """Findings of a table with images; nothing of any other table."""
    if table.images is None or table.contract.image is None:
        return
    name = table.contract.image.name
    there = ~np.isnan(table.images[:, 0])
    blank = np.flatnonzero(there & (table.images.min(axis=1) == table.images.max(axis=1)))
    if len(blank):
        words = f"column {name}: {counted(len(blank), 'image')} {'has' if len(blank) == 1 else 'have'} one intensity"
        words += f" in all pixels; {'is it' if len(blank) == 1 else 'are they'} empty?"
        yield Finding(level="warning", key="blank-images", words=words, rows=rows_of(table, blank), count=len(blank))
    patients = patient_numbers(table)
    whose = "row" if patients is None else "patient"
    patients = np.arange(table.rows) if patients is None else patients
    _, same = np.unique(table.image_marks[0], return_inverse=True)
    pairs = np.unique(np.stack([same, patients]), axis=1)[0]  # an image counts once for each of its patients
    shared = np.flatnonzero(there & (np.bincount(pairs)[same] > 1))
    if len(shared):
        words = f"column {name}: {len(shared)} images are equal to that of another {whose}"
        yield Finding(level="warning", key="shared-images", words=words, rows=rows_of(table, shared), count=len(shared))
