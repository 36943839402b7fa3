"""Checks a hospital's table before the first round: lists all problems, and decides whether training can use it.

No finding has a value of a patient. The page has means and shares and stays at the site.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.errors import DataError
from site_agent.desk.examination.examined_columns import (
    absent_in,
    collinear_findings,
    column_findings,
    outcome_and_group_findings,
    terms_findings,
)
from site_agent.desk.examination.examined_outcome import (
    Part,
    alone,
    alone_findings,
    dropped_findings,
    group_findings,
    part_findings,
    parts_of,
)
from site_agent.desk.examination.examined_rows import image_findings, patient_numbers, row_findings
from site_agent.desk.examination.finding import Finding
from site_agent.desk.examination.table_one import Line, table_one
from site_agent.hospital import Split
from site_agent.trainer.data.cell_rules import MISSING
from site_agent.trainer.data.contract import SqlFormat
from site_agent.trainer.data.dataset import SplitRows, split_rows
from site_agent.trainer.data.tables import Survey, Table
from site_agent.trainer.disk import array_digest

_ORDER: Final = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Examination:
    """The result of examining a table: findings, measures and a digest.

    Attributes:
        table: the examined table.
        parts: the sizes of training, validation and test; None if the table cannot be split.
        findings: errors first, then warnings, then notes.
        hints: known corrections of errors in the table, in sentences.
        missing: by feature the share of rows without a value.
        alone: by feature how well this feature alone predicts the outcome.
        patients: the number of patients; None if no column identifies them.
        table_one: the lines of Table 1.
        digest: SHA-256 of the table's content, its contract, the split and the warnings, in hexadecimal. A person
            accepts this digest.
        split_rows: the rows of each part.
    """

    table: Table
    parts: tuple[Part, ...] | None
    findings: tuple[Finding, ...]
    hints: tuple[str, ...]
    missing: Mapping[str, float]
    alone: Mapping[str, float]
    patients: int | None
    table_one: tuple[Line, ...]
    digest: str
    split_rows: SplitRows | None

    def __repr__(self) -> str:
        """Return what `repr` shows: only the number of findings. A traceback must not show a patient's values."""
        return f"Examination(findings={len(self.findings)})"

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The errors, which are the findings about a table that prevent training."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The warnings, which are the findings about a table that a person must accept."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def query_digest(self) -> str | None:
        """The SHA-256 of the database query that returned the rows, or None if the table is a file."""
        form = self.table.contract.format
        return form.query_digest if isinstance(form, SqlFormat) else None


def examine(survey: Survey, split: Split) -> Examination:
    """Check a table that was read before, and return all findings about it."""
    table = survey.table
    found = [*_survey_findings(survey)]
    parts, rows, measured = None, None, dict[str, float]()
    patients = patient_numbers(table)
    if table.rows:
        unread = _unread(survey)
        found += [*column_findings(table, unread), *terms_findings(table, unread)]
        found += outcome_and_group_findings(table)
        found += collinear_findings(table)
        try:
            rows = split_rows(table, split)
        except DataError as error:
            found.append(Finding(level="error", key="split", words=error.what.removesuffix(".")))
        found += [*row_findings(table, rows), *image_findings(table)]
    if rows is not None:
        parts = parts_of(table, rows, patients)
        found += part_findings(parts, table.contract.target.classes)
        found += group_findings(table, rows.test)
        measured = alone(table, np.sort(np.concatenate([rows.training, rows.validation])))
        found += alone_findings(table, measured)
    findings = tuple(sorted(found, key=lambda finding: _ORDER.index(finding.level)))
    return Examination(
        table=table,
        parts=parts,
        findings=findings,
        hints=survey.hints,
        missing=_missing(table),
        alone=measured,
        patients=None if patients is None else len(np.unique(patients)),
        table_one=table_one(table),
        digest=_digest(table, split, findings),
        split_rows=rows,
    )


def _survey_findings(survey: Survey) -> Iterator[Finding]:
    """Yield the findings from reading the table: cells, rows and columns that cannot be used, or that are not used."""
    for one in survey.mistakes:
        yield Finding(level="error", key=f"contract:{one.words}", words=one.words, rows=one.rows, count=one.count)
    for words, column in survey.doubts:
        told = words if column is None else f"column {column}: {words}"
        yield Finding(level="warning", key=f"source:{told}", words=told)
    yield from dropped_findings(survey.table)
    for place in survey.nameless:
        words = f"column number {place} has no name in the header and is not read"
        yield Finding(level="note", key=f"nameless:{place}", words=words)


def _unread(survey: Survey) -> dict[str, int]:
    """Return for each column the number of cells that have a value, but that could not be read."""
    counts: Counter[str] = Counter()
    for mistake in survey.mistakes:
        if mistake.column is not None and mistake.flaw != MISSING.words:
            counts[mistake.column] += mistake.count
    return dict(+counts)


def _missing(table: Table) -> dict[str, float]:
    features = table.contract.features
    if not table.rows:
        return {feature.name: 1.0 for feature in (*features, *table.contract.terms)}
    found = {feature.name: float(absent_in(feature, table.features[feature.name]).mean()) for feature in features}
    return found | {name: float((~counts.any(axis=1)).mean()) for name, counts in table.terms.items()}


def _digest(table: Table, split: Split, findings: tuple[Finding, ...]) -> str:
    keys = sorted(finding.key for finding in findings if finding.level == "warning")
    bound = json.dumps(["examination 1", table_digest(table), split.model_dump(), keys], sort_keys=True)
    return hashlib.sha256(bound.encode()).hexdigest()


def table_digest(table: Table) -> str:
    """Return the BLAKE3 digest of a table's data and of its contract, in hexadecimal. The digest stays at the site."""
    numbers = {**table.features, **{f"group {name}": values for name, values in table.group_positions.items()}}
    arrays: list[tuple[str, npt.NDArray[np.generic]]] = list(numbers.items())
    if table.target is not None:
        arrays.append(("target", table.target))
    if table.images is not None:
        arrays.append(("images", table.images))
    arrays += [(f"terms {name}", counts) for name, counts in table.terms.items()]
    if table.masks is not None:
        arrays.append(("masks", table.masks))
    patients = "\0".join(table.patients or ()).encode("utf-8", "surrogatepass")
    arrays.append(("patients", np.frombuffer(patients, dtype=np.uint8)))
    return array_digest(f"global-layers table 1 {table.contract.digest}", arrays)
