"""Finds problems in single columns of a hospital's table, and in pairs of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.code_spellings import two_spellings
from site_agent.desk.examination.examined_outcome import sampled
from site_agent.desk.examination.finding import Finding, Level
from site_agent.desk.examination.suspicious_numbers import (
    disguised_numbers,
    far_values,
    mixed_units,
    seem_identifiers,
)
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature, Feature, NumericFeature
from site_agent.trainer.data.contract import MultiClassTarget
from site_agent.trainer.data.mistakes import KEPT_ROWS
from site_agent.trainer.data.tables import Table

MOSTLY: Final = 0.5
SAME: Final = 0.999
ALIKE: Final = 0.95
_MOST_PAIRED: Final = 2000
_MOST_TOLD: Final = 20


def absent_in(feature: Feature, values: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each row whether the feature's value is missing (NaN, or -1 for a code): bool of shape (rows,)."""
    return values < 0 if isinstance(feature, CategoricalFeature) else np.isnan(values)


def column_findings(table: Table, unread: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each column that is empty, constant or has suspicious values, such as two units.

    Args:
        unread: for each column the number of cells that could not be read. They have errors of their own, so they do
            not count as missing here.
    """
    for feature in table.contract.features:
        values = table.features[feature.name]
        absent = absent_in(feature, values)
        share = (int(absent.sum()) - unread.get(feature.name, 0)) / len(absent) if len(absent) else 1.0
        there = values[~absent]
        if not len(there):
            words = (
                f"column {feature.name}: no row has a value. Declare this column with `role: ignore` in the contract"
            )
            if feature.name not in unread:
                yield Finding(level="error", key=f"empty:{feature.name}", words=words)
            continue
        if there.min() == there.max():
            words = f"column {feature.name}: all values are equal"
            yield Finding(level="warning", key=f"constant:{feature.name}", words=words)
        if share > MOSTLY:
            words = f"column {feature.name}: {share:.0%} of the rows have no value"
            yield Finding(level="warning", key=f"mostly-missing:{feature.name}", words=words)
        if isinstance(feature, CategoricalFeature):
            yield from _spellings(table, feature.name, feature.codes, values)
        else:
            markers = disguised_numbers(values)
            for marker in markers:
                words = (
                    f"column {feature.name}: the value {marker:g} is far from the other values; does {marker:g} mean "
                    "'not known'?"
                )
                key = f"disguised:{feature.name}:{marker:g}"
                yield row_finding(table, key, words, np.flatnonzero(values == marker))
            if isinstance(feature, NumericFeature) and seem_identifiers(values):
                words = (
                    f"column {feature.name}: nearly all rows have a different whole number; is it an identifier of "
                    "patients?; if so, give it the role patient or ignore"
                )
                yield Finding(level="warning", key=f"identifier:{feature.name}", words=words)
            yield from _units(table, feature, np.where(np.isin(values, markers), np.nan, values))


def terms_findings(table: Table, unread: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each list or note column that is mostly empty, or whose notes are too long for the model.

    `unread` is as for `column_findings`.
    """
    for name, counts in table.terms.items():
        share = float((~counts.any(axis=1)).mean()) - unread.get(name, 0) / max(1, len(counts))
        if share == 1.0:
            words = (
                f"column {name}: no row has a code or a word. Declare this column with `role: ignore` in the contract"
            )
            yield Finding(level="error", key=f"empty:{name}", words=words)
        elif share > MOSTLY:
            words = f"column {name}: {share:.0%} of the rows have no code or word"
            yield Finding(level="warning", key=f"mostly-missing:{name}", words=words)
    for column in table.contract.terms:
        counts = table.terms[column.name]
        cut = counts[:, : column.counted].sum(axis=1) > column.longest if column.longest else np.zeros(0, dtype=bool)
        if cut.any():
            words = (
                f"column {column.name}: {cut.mean():.0%} of the notes have more than {column.longest} words; the model "
                f"reads only the first {column.longest} words in order"
            )
            yield row_finding(table, f"cut:{column.name}", words, np.flatnonzero(cut))


def outcome_and_group_findings(table: Table) -> Iterator[Finding]:
    """Yield a finding for each code with two spellings, in the outcome or in columns that only define groups."""
    target = table.contract.target
    if isinstance(target, MultiClassTarget) and table.target is not None:
        yield from _spellings(table, target.name, target.classes, table.target)
    for column in table.contract.groups:
        if column.name in table.group_positions:
            yield from _spellings(table, column.name, column.codes, table.group_positions[column.name])


def _spellings(table: Table, name: str, codes: Sequence[str], values: Numbers) -> Iterator[Finding]:
    found = two_spellings([code for place, code in enumerate(codes) if (values == place).any()])
    if found is None:
        return
    ones, others = (
        np.flatnonzero(np.isin(values, [codes.index(code) for code in spelt])) for spelt in (found.one, found.other)
    )
    fewer = ones if len(ones) < len(others) else others
    words = f"column {name}: {found.words}; use only one spelling for each code in the table"
    yield row_finding(table, f"two-spellings:{name}", words, fewer)


def _units(table: Table, feature: Feature, values: Numbers) -> Iterator[Finding]:
    """Yield a warning if the column has two units, or a few values that are impossible for a measurement."""
    others = [*(column for name, column in table.features.items() if name != feature.name)]
    others += [] if table.target is None else [table.target]
    found, what = mixed_units(values, others), f"column {feature.name}: "
    if found is not None:
        places, key = np.flatnonzero(found.is_minority), f"mixed-units:{feature.name}"
        words = (
            f"{what}{found.words}; convert all values to one unit, and declare a range of possible values in this unit"
        )
    else:
        places, key = np.flatnonzero(far_values(values)), f"far:{feature.name}"
        far = "1 value is" if len(places) == 1 else f"{len(places)} values are"
        words = f"{what}{far} too far from the other values; is a decimal point missing, or is the unit wrong?"
    if places.size:
        yield row_finding(table, key, words, places)


def row_finding(table: Table, key: str, words: str, places: npt.NDArray[np.int64], level: Level = "warning") -> Finding:
    """Return a finding about some rows of the table. The finding names the first of these rows as a spreadsheet does.

    Args:
        places: the positions of all these rows in the table, from 0.
    """
    first = places[:KEPT_ROWS]
    numbers = first + 1 if table.row_numbers is None else table.row_numbers[first]
    return Finding(level=level, key=key, words=words, rows=tuple(map(int, numbers)), count=len(places))


def collinear_findings(table: Table) -> Iterator[Finding]:
    """Yield a finding for each pair of columns with nearly the same information, by Pearson's correlation."""
    features = [
        feature
        for feature in table.contract.features
        if not isinstance(feature, CategoricalFeature) or len(feature.codes) == 2 or feature.type == "ordinal"
    ]
    if len(features) > _MOST_PAIRED:
        words = (
            f"the table has {len(features)} columns, and only the first {_MOST_PAIRED} columns were compared in pairs"
        )
        yield Finding(level="note", key="pairs-left-out", words=words)
        features = features[:_MOST_PAIRED]
    rows = sampled(np.arange(table.rows, dtype=np.int64))
    if len(rows) < 3 or len(features) < 2:
        return
    columns = np.stack([table.features[feature.name][rows] for feature in features])
    absent = np.stack([absent_in(feature, column) for feature, column in zip(features, columns, strict=True)])
    for one, other, size in _close_pairs(columns, absent):
        words = (
            f"columns {features[one].name} and {features[other].name}: closely related (correlation {size:.3f}, "
            "without its sign)"
        )
        key = f"collinear:{features[one].name}:{features[other].name}"
        yield Finding(level="warning" if size >= SAME else "note", key=key, words=words)


def _close_pairs(columns: Numbers, absent: npt.NDArray[np.bool_]) -> list[tuple[int, int, float]]:
    """Return pairs of correlated columns, by position, with their correlation. The largest correlation is first."""
    there = (~absent).astype(np.float64)
    counts = np.maximum(there.sum(axis=1), 1.0)
    filled = np.where(absent, 0.0, columns)
    centred = np.where(absent, 0.0, filled - (filled.sum(axis=1) / counts)[:, None])
    spread = np.sqrt((centred**2).sum(axis=1) / counts)
    scaled = centred / np.where(spread > 0, spread, 1.0)[:, None]
    both = there @ there.T
    # A first selection, with the mean and the spread of each column over all its own values. The exact correlation
    # follows below.
    rough = np.abs(scaled @ scaled.T) / np.maximum(both, 1.0)
    ones, others = np.nonzero(np.triu(rough, 1) >= ALIKE - 0.1)
    found = []
    for one, other in zip(ones.tolist(), others.tolist(), strict=True):
        together = ~(absent[one] | absent[other])
        x, y = columns[one][together], columns[other][together]
        if len(x) >= 10 and x.std() > 0 and y.std() > 0:
            size = float(abs(((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std())))
            if size >= ALIKE:
                found.append((one, other, min(size, 1.0)))
    return sorted(found, key=lambda pair: -pair[2])[:_MOST_TOLD]
