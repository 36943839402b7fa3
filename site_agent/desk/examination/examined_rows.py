"""Finds problems in rows and images of a table, such as equal rows, or a patient both in training and in test rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.examined_columns import row_finding
from site_agent.desk.examination.examined_outcome import named_parts
from site_agent.desk.examination.finding import Finding, counted
from site_agent.trainer.data.cell_rules import UNKNOWN_POSITION
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.tables import Table

# The largest expected number of equal pairs of rows that is too small for chance.
_BY_CHANCE: Final = 1e-4

Places = npt.NDArray[np.int64]


def patient_numbers(table: Table) -> Places | None:
    """Return for each row the number of its patient, int64 (rows,). Return None if no column identifies patients."""
    if table.patients is None:
        return None
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(patient, len(numbers)) for patient in table.patients], dtype=np.int64)


def row_findings(table: Table, parts: SplitRows | None) -> Iterator[Finding]:
    """Yield all findings about the rows of a table. `parts` is None if the table cannot be split."""
    patients = patient_numbers(table)
    yield from _duplicates(table, patients, parts)
    if patients is None:
        return
    yield from _two_people(table, patients)
    yield from _same_identifiers(table)
    yield from _shared_rows(table, patients)
    if parts is not None:
        for (one, ours), (other, theirs) in combinations(named_parts(parts), 2):
            both = np.intersect1d(patients[ours], patients[theirs])
            if len(both):
                words = f"{len(both)} patients are both in the {one} rows and in the {other} rows"
                yield Finding(level="error", key=f"patients-in-two-parts:{one}:{other}", words=words)


def _duplicates(table: Table, patients: Places | None, parts: SplitRows | None) -> Iterator[Finding]:
    same = _fingerprints(table, patients)
    _, inverse, counts = np.unique(same, return_inverse=True, return_counts=True)
    again = np.flatnonzero(counts[inverse] > 1)
    if not len(again):
        return
    who = "" if patients is None else " of the same patient"
    words = f"{len(again)} rows{who} are equal to another row in every column that the contract uses"
    yield row_finding(table, "duplicates", words, again)
    if parts is None or patients is not None:
        return  # the split keeps a patient's rows together
    for (one, ours), (other, theirs) in combinations(named_parts(parts), 2):
        shared = np.intersect1d(inverse[np.intersect1d(ours, again)], inverse[np.intersect1d(theirs, again)])
        if len(shared):
            words = (
                f"{len(shared)} equal rows are both in the {one} rows and in the {other} rows; declare the column that "
                "identifies the patient"
            )
            yield Finding(level="warning", key=f"duplicates-in-two-parts:{one}:{other}", words=words)


def _fingerprints(table: Table, patients: Places | None) -> npt.NDArray[np.uint64]:
    """Return a fingerprint of each row, uint64 (rows,). Different rows rarely have equal ones (1 in 2 ** 24)."""
    mixed = np.zeros(table.rows, dtype=np.uint64) if patients is None else patients.astype(np.uint64)
    for values in _compared(table):
        # For this comparison, all NaN are equal, and minus zero equals zero.
        bits = np.where(np.isnan(values), np.inf, values + 0.0).view(np.uint64)
        mixed = (mixed ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _compared(table: Table) -> list[Numbers]:
    """Return the columns, float64 (rows,), in which rows are compared: features, images, lists, notes, outcome."""
    return [*table.features.values(), *table.marks, *([] if table.target is None else [table.target])]


def _same_identifiers(table: Table) -> Iterator[Finding]:
    """Yield a warning if two identifiers differ only in blanks, capitals or leading zeros, as after an export."""
    written: dict[str, set[str]] = {}
    plain = ["".join(who.split()).casefold().lstrip("0") for who in table.patients or ()]
    for who, short in zip(table.patients or (), plain, strict=True):
        written.setdefault(short, set()).add(who)
    places = np.array([place for place, short in enumerate(plain) if len(written[short]) > 1 and short], dtype=np.int64)
    if len(places):
        words = (
            "patient identifiers differ only in blanks, capital letters or leading zeros; do they belong to one "
            "patient?; if so, write them in one way in the table"
        )
        yield row_finding(table, "one-patient-two-spellings", words, places)


def _shared_rows(table: Table, patients: Places) -> Iterator[Finding]:
    """Yield a warning if rows of different patients are equal, and the values are too special for chance.

    A value that few rows have is special. For independent columns, rows squared times the product of the shares of a
    row's values is about the number of such equal pairs that chance gives. Missing values and few coarse columns never
    make a row special.
    """
    _, first, inverse = np.unique(_fingerprints(table, None), return_index=True, return_inverse=True)
    has_others = np.zeros(len(first), dtype=bool)
    has_others[inverse[patients != patients[first][inverse]]] = True
    again = np.flatnonzero(has_others[inverse])
    if not len(again):
        return
    chance = np.full(len(again), 2 * np.log(table.rows))
    for values in _compared(table):
        _, place, number = np.unique(values, return_inverse=True, return_counts=True)
        has_value = ~np.isnan(values[again]) & (values[again] != UNKNOWN_POSITION)
        chance += np.where(has_value, np.log(number[place[again]] / table.rows), 0.0)
    special = again[chance < np.log(_BY_CHANCE)]
    if len(special):
        words = (
            f"{len(special)} rows are equal to a row of another patient in every column that the contract uses; does a "
            "patient have two identifiers?"
        )
        yield row_finding(table, "one-patient-two-identifiers", words, special)


def _two_people(table: Table, patients: Places) -> Iterator[Finding]:
    """Yield a finding if rows with the same patient identifier differ in facts that never change, such as sex."""
    first = np.unique(patients, return_index=True)[1]
    for feature in table.contract.features:
        if not feature.same_for_patient:
            continue
        values = table.features[feature.name]
        differs = values != values[first][patients]
        differs &= ~(np.isnan(values) | np.isnan(values[first][patients]))
        wrong = np.flatnonzero(differs)
        if len(wrong):
            words = (
                f"column {feature.name}: rows with the same patient identifier have different values; two patients may "
                "have the same identifier"
            )
            yield row_finding(table, f"two-people:{feature.name}", words, wrong, level="error")


def image_findings(table: Table) -> Iterator[Finding]:
    """Yield findings for images that seem empty, and for images that two patients have in common."""
    if table.images is None or table.contract.image is None:
        return
    name = table.contract.image.name
    there = ~np.isnan(table.images[:, 0])
    blank = np.flatnonzero(there & (table.images.min(axis=1) == table.images.max(axis=1)))
    if len(blank):
        words = (
            f"column {name}: {counted(len(blank), 'image')} {'has' if len(blank) == 1 else 'have'} the same intensity"
        )
        words += f" in all pixels; {'is it' if len(blank) == 1 else 'are they'} empty?"
        yield row_finding(table, "blank-images", words, blank)
    patients = patient_numbers(table)
    whose = "row" if patients is None else "patient"
    patients = np.arange(table.rows) if patients is None else patients
    _, same = np.unique(table.marks[0], return_inverse=True)
    pairs = np.unique(np.stack([same, patients]), axis=1)[0]  # an image is counted once for each patient who has it
    shared = np.flatnonzero(there & (np.bincount(pairs)[same] > 1))
    if len(shared):
        words = f"column {name}: {len(shared)} images are equal to the image of another {whose}"
        yield row_finding(table, "shared-images", words, shared)
