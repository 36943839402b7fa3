"""Finds problems in rows and images of a table, such as equal rows."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as arrow
import pyarrow.compute as compute

from protos.statistics.design import in_words
from site_agent.desk.examination.finding import Finding, counted, row_warning
from site_agent.trainer.data.cell_rules import PLAIN_DATE, canonical_code, written_day
from site_agent.trainer.data.run_table import is_missing
from site_agent.trainer.data.table_sources import shortest
from site_agent.trainer.data.tables import Table

_POWER: Final = re.compile(r"\d([.,]\d+)?[eE]\+?\d+", re.ASCII)
_LONGER: Final = re.compile(r"\d{15,}(\d)(\.0)?", re.ASCII)  # than the 15 digits of a spreadsheet
# Words that begin a row below the table.
SUMMARY: Final = re.compile(
    r"((grand |sub)?totals?|sum|mean|average|n|summe|(ins)?gesamt|mittelwert|durchschnitt|moyenne|somme|totale|media"
    r"|promedio|suma|totaal|gemiddelde)( *[:=(±].*)?",
    re.I,
)
_FEWEST_ROUNDED: Final = 3
_LONG: Final = re.compile(r"\d{8,15}(\.0)?", re.ASCII)
_FLOAT_WHOLE: Final = 1 << 24  # above it, a float of 32 bits does not hold every whole number
_FEWEST_FLOATS: Final = 10  # binary digits that other numbers would have there too
_FEWEST_ROWS_OF_NOBODY: Final = 10
_ROWS_OF_NOBODY: Final = 5
_MORE_THAN_CHANCE: Final = 100
_ALWAYS: Final = 0.99
_RARE_KIND: Final = 0.05
_MOST_ROWS: Final = 0.8

_Numbers = npt.NDArray[np.int64]  # equal for equal rows, or for rows of one patient


def row_findings(table: Table, unread: Collection[str | None]) -> Iterator[Finding]:
    """Yield all findings about the rows of a table. Cells of the columns `unread` are no missing values."""
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
    words += "" if patients is not None else "; declare the column that identifies the patient"
    yield from row_warning(table, "duplicates", words, again)
    if patients is not None:
        yield from _twins(table, compared, equal, patients)
    yield from _kinds(table, patients, is_read=not unread)


def _canonical(text: str) -> str:
    """Return an identifier as it is compared to find one patient under two spellings.

    Letters are compared without capitals and with their accents joined, all dashes are one, `3` and `3.0` are equal, as
    are `100000` and `1e+05`, and characters that nobody sees do not count, nor do zeros before a number.
    """
    seen = "".join(
        "-" if unicodedata.category(one) == "Pd" else one
        for one in unicodedata.normalize("NFKC", text)
        if unicodedata.category(one) != "Cf"
    )
    plain = f"{float(seen.replace(',', '.')):.0f}" if _POWER.fullmatch(seen) else canonical_code(seen).casefold()
    return plain.lstrip("0") or "0" if plain.isdecimal() else plain


def _alike(identifiers: Collection[str]) -> int:
    """Return how many identifiers are another spelling of one of the others."""
    names = arrow.array(identifiers, arrow.string())
    # Only these have another spelling than the one in lower case.
    is_odd = compute.match_substring_regex(names, r"[^ -~]|[.]|^[+0-]|^\d[,eE]")
    seen = arrow.array({_canonical(one) for one in names.filter(is_odd).to_pylist()}, arrow.string())
    plain = arrow.concat_arrays([seen, compute.utf8_lower(names.filter(compute.invert(is_odd)))])
    dashed = compute.replace_substring(plain, " ", "-").unique()
    is_joined = compute.invert(compute.match_substring(dashed, "-"))
    whole, parted = dashed.filter(is_joined), dashed.filter(compute.invert(is_joined))
    again = compute.is_in(compute.replace_substring(parted, "-", ""), value_set=whole)
    return len(names) - len(dashed) + (compute.sum(again).as_py() or 0)


def identifier_findings(table: Table) -> Iterator[Finding]:
    """Yield warnings about identifiers that may be two spellings of one patient's, or words for a missing one."""
    counts, column = Counter(table.patients), table.contract.patient
    if not counts or column is None:
        return
    found = dict[str, str]()
    if alike := _alike(counts.keys()):
        told = "identifiers differ from others only in capitals, dashes, blanks, accents, zeros or hidden signs"
        found["alike"] = f"{alike} {told}; are they one patient?"
    long = np.array([number for who in counts if _LONG.fullmatch(who) and (number := float(who)) > _FLOAT_WHOLE])
    floats = long.astype(np.float32)
    is_float = any((long == one).all() for one in (floats, shortest(floats)))
    is_float = is_float and np.log2(np.spacing(floats)).sum() >= _FEWEST_FLOATS
    last = Counter(end[1] for who in counts if (end := _LONGER.fullmatch(who)))
    zeros = last["0"] if 2 * last["0"] >= last.total() else 0  # a tenth of all numbers ends in 0
    powers = [who for who in counts if _POWER.fullmatch(who)]
    rounded = len(long) if is_float else zeros + len(powers)
    if rounded >= _FEWEST_ROUNDED or any("+" in who for who in powers):
        told = f"{rounded} identifiers look like rounded numbers, as a spreadsheet or Stata's type float stores long"
        found["rounded"] = f"{told} ones; export them as text, or of type long or double, from the original system"
    dated = sum(written_day(who, PLAIN_DATE) is not None for who in counts)
    if 0 < dated < len(counts) / 2:
        told = f"{dated} identifiers are dates, as a spreadsheet makes of 1-2 or 3/12"
        found["dated"] = f"{told}; export them as text from the original system"
    (_, most), *others = counts.most_common(2)
    if most >= _FEWEST_ROWS_OF_NOBODY and others and most > _ROWS_OF_NOBODY * others[0][1]:
        told = f"one identifier has {most} of {table.rows} rows, far more than any other"
        found["nobody"] = f"{told}; does it mean 'not known'?"
    for kind, words in found.items():
        yield Finding(level="warning", key=f"identifiers-{kind}", words=f"column {column.name}: {words}")
    if summaries := {who for who in counts if SUMMARY.fullmatch(who)}:
        is_one = np.array([who in summaries for who in table.patients or ()])
        words = f"column {column.name}: a word for a summary; is it a patient?"
        yield from row_warning(table, "identifiers-summary", words, is_one)
    yield from _second_rows(table, column.name, counts)


def _second_rows(table: Table, column: str, counts: Counter[str]) -> Iterator[Finding]:
    """Yield a warning if few patients have several rows, with the features in which these differ."""
    several = [who for who, number in counts.items() if number > 1]
    is_rare = 0 < len(several) <= _RARE_KIND * len(counts)
    if is_rare and not any(one.same_for_patient for one in table.contract.features):
        owners, features = np.array(table.patients), pd.DataFrame({**table.features}, range(table.rows))
        again, few = np.isin(owners, several), f"{len(several)} of {len(counts)} patients have several rows"
        differ = features[again].groupby(owners[again]).nunique().max() > 1
        words = f"column {column}: {few}; they differ in {in_words(differ.index[differ]) or 'no feature'}; is each"
        told = "one patient? `same_for_patient: true` at sex and others refuses rows that differ there"
        yield from row_warning(table, "identifiers-again", f"{words} {told}, `one_row_per_patient: true` all", again)


def _twins(table: Table, compared: pd.DataFrame, equal: _Numbers, patients: _Numbers) -> Iterator[Finding]:
    """Yield a warning if many more rows of different patients are equal than chance makes of so few values."""
    people = pd.Series(patients).groupby(equal).transform("nunique").to_numpy()
    sizes = np.bincount(equal)
    # Two rows are equal by chance if they are in every column, each taken for itself.
    alike = np.prod([(column.value_counts(normalize=True, dropna=False) ** 2).sum() for _, column in compared.items()])
    by_chance, found = alike * table.rows**2 / 2, (sizes * (sizes - 1.0) / 2)[sizes > 1].sum()
    is_twin = (people > 1) & (found > _MORE_THAN_CHANCE * by_chance)
    if is_twin.sum() >= 3:
        words = f"{is_twin.sum()} rows are equal to a row of another patient in every column that the contract uses"
        yield from row_warning(table, "twins", f"{words}; is one patient there under several identifiers?", is_twin)


def _kinds(table: Table, patients: _Numbers | None, *, is_read: bool) -> Iterator[Finding]:
    """Yield a warning for rows without any value, and if rows of one patient are of several kinds, such as visits."""
    features = [~is_missing(one, table.features[one.name]) for one in table.contract.features]
    if not features or table.images is not None:
        return
    there = np.stack(features, axis=1)
    words = "rows without a value in any column that the model reads; are they notes below the table?"
    yield from row_warning(table, "empty-rows", words, is_read & ~np.asarray(there.any(axis=1)))
    if patients is None or len(np.unique(patients)) == len(patients):
        return
    there = there[:, there.mean(axis=0) < _ALWAYS]
    patterns, counts = np.unique(there, axis=0, return_counts=True)
    kinds = patterns[counts > _RARE_KIND * len(there)]
    is_apart = len(kinds) > 1 and (kinds.sum(axis=0) <= 1).all() and (kinds.any(axis=1)).sum() > 1
    if is_apart and counts[counts > _RARE_KIND * len(there)].sum() > _MOST_ROWS * len(there):
        words = "a patient has rows of several kinds, whose values are in different columns; make one row of them"
        yield Finding(level="warning", key="kinds-of-rows", words=f"{words}, or export one instrument or event")


def image_findings(table: Table) -> Iterator[Finding]:
    """Yield findings for images that seem empty, and for images that two patients have in common."""
    if table.images is None or table.contract.image is None:
        return
    name, there = table.contract.image.name, ~np.isnan(table.images[:, 0])
    blank = there & (table.images.min(axis=1) == table.images.max(axis=1))
    words = f"column {name}: {counted(int(blank.sum()), 'image')} without any difference between pixels, maybe empty"
    yield from row_warning(table, "blank-images", words, blank)
    whose = "row" if table.patients is None else "patient"
    owners = pd.Series(np.arange(table.rows) if table.patients is None else table.patients)
    shared = there & (owners.groupby(table.marks[0]).transform("nunique").to_numpy() > 1)
    words = f"column {name}: {shared.sum()} images are equal to the image of another {whose}"
    yield from row_warning(table, "shared-images", words, shared)
