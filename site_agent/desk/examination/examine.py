"""Examines a hospital's table before the first run: lists what a person should correct, or know and accept.

No finding has a value of a patient. The page has shares and stays at the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protos.errors import DataError
from site_agent.desk.examination.examined_columns import column_findings
from site_agent.desk.examination.examined_outcome import (
    Part,
    alone,
    alone_findings,
    follow_up_findings,
    part_findings,
    parts_of,
)
from site_agent.desk.examination.examined_rows import identifier_findings, image_findings, row_findings
from site_agent.desk.examination.finding import Finding, Level
from site_agent.hospital import Hospital, Split
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.mistakes import KEPT_ROWS, Mistake
from site_agent.trainer.data.run_table import check_digest, is_missing, put_aside_in_words, unusable_columns
from site_agent.trainer.data.tables import Survey, Table, survey_table

_ORDER: Final = ("error", "warning", "note")
_MOST_DROPPED: Final = 0.05


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Examination:
    """The result of examining a table.

    Attributes:
        parts: the sizes of training, validation and test; None if the table cannot be split.
        findings: errors first, then warnings, then notes.
        missing: by feature the share of rows without a value.
        alone: by feature how well this feature alone predicts the outcome.
        patients: the number of patients; None if no column identifies them.
        digest: of the table, its contract and its split; see `check_digest`.
    """

    table: Table
    parts: tuple[Part, ...] | None
    findings: tuple[Finding, ...]
    missing: Mapping[str, float]
    alone: Mapping[str, float]
    patients: int | None
    digest: str

    def __repr__(self) -> str:
        """Return only the number of findings. A traceback must not show a patient's values."""
        return f"Examination(findings={len(self.findings)})"

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "warning")


def examined(hospital: Hospital) -> Examination:
    """Read the hospital's table, and return all findings. Raise OperatorError if it cannot be read at all."""
    survey = survey_table(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))
    return examine(survey, hospital.data.split, trains=hospital.policy.tier != "statistics")


def examine(survey: Survey, split: Split, *, trains: bool = True) -> Examination:
    """Return all findings about a table that was read before. Without training it is not split."""
    table, rows, parts, measured = survey.table, None, None, dict[str, float]()
    found = [*map(_error, survey.mistakes), *_reading_findings(survey)]
    if table.rows:
        try:
            rows = split_rows(table, split) if trains else None
        except DataError as error:
            found.append(Finding(level="error", key="split", words=error.what.removesuffix(".")))
        # A column with unreadable cells has an error of its own, so its cells do not count as missing.
        unread = {mistake.column for mistake in survey.mistakes}
        found += [_error(one) for one in unusable_columns(table, rows) if one.column not in unread]
        found += [*column_findings(table, unread), *identifier_findings(table), *row_findings(table, unread)]
        found += [*image_findings(table), *follow_up_findings(table)]
    features = table.contract.features if table.rows else ()
    if rows is not None:
        parts = parts_of(table, rows)
        measured = alone(table, np.sort(np.concatenate([rows.training, rows.validation])))
        found += [*part_findings(parts), *alone_findings(table, measured)]
    return Examination(
        table=table,
        parts=parts,
        findings=tuple(sorted(found, key=lambda finding: _ORDER.index(finding.level))),
        missing={one.name: float(is_missing(one, table.features[one.name]).mean()) for one in features},
        alone=measured,
        patients=None if table.patients is None else len(set(table.patients)),
        digest=check_digest(table, split),
    )


def _error(mistake: Mistake) -> Finding:
    key = "error:table" if mistake.column is None else f"error:{mistake.column}"
    return Finding(level="error", key=key, words=mistake.words, rows=mistake.rows, count=mistake.count)


def _reading_findings(survey: Survey) -> Iterator[Finding]:
    for doubt, column in survey.doubts:
        told = doubt if column is None else f"column {column}: {doubt}"
        yield Finding(level="warning", key=f"source:{told}", words=told)
    for one in survey.put_aside:
        key = f"put-aside:{one.column or 'table'}:{one.flaw}"
        yield Finding(level="warning", key=key, words=one.words, rows=one.rows, count=one.count)
    if told := put_aside_in_words(survey.table):
        rows = survey.table.put_aside
        yield Finding(level="warning", key="put-aside", words=told, rows=rows[:KEPT_ROWS], count=len(rows))
    table, count = survey.table, len(survey.table.dropped)
    if count:
        share = count / (count + table.rows)
        words = f"{count} of {count + table.rows} rows ({share:.1%}) have no outcome and are not used, as the contract"
        words += " declares; do these patients differ from the others?"
        level: Level = "warning" if share > _MOST_DROPPED else "note"
        yield Finding(level=level, key="without-outcome", words=words, rows=table.dropped[:KEPT_ROWS], count=count)
    for name, numbers in survey.emptied.items():
        low, high = np.nanquantile(np.append(table.features[name], 0.0), [0.1, 0.9]) if numbers else (0, 0)
        if usual := [f"{one:g}" for one in sorted(numbers) if low < one < high]:
            told = "of the contract's missing_markers lies among the usual values, and is read as missing here too"
            words = f"column {name}: {', '.join(usual)} {told}; list it at the columns where it means that"
            yield Finding(level="note", key=f"emptied:{name}", words=words)
    for place in survey.nameless:
        words = f"column number {place} has no name in the header and is not read"
        yield Finding(level="note", key=f"nameless:{place}", words=words)
