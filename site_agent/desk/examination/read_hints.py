"""Reads tables. If a table has errors, suggests which line of the contract or column of the table to correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from protos.errors import DataError
from site_agent.desk.examination.format_guess import format_hint
from site_agent.desk.examination.mixed_units import unit_hint
from site_agent.trainer.data.cell_rules import MISSING, NOT_A_NUMBER
from site_agent.trainer.data.contract import Contract, MaskTarget
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.tables import DELIMITER, Survey, Table, survey_new_rows, survey_table


def read_with_hints(path: Path, contract: Contract, scratch: Path | None) -> Table:
    """Read a table in which every row satisfies the contract.

    Raises:
        DataError: the table cannot be read, or does not fit the contract. The error has all findings and suggestions.
    """
    survey = survey_with_hints(path, contract, scratch=scratch)
    if survey.mistakes:
        refuse([mistake.line for mistake in survey.mistakes], survey.hints)
    return survey.table


def survey_with_hints(path: Path, contract: Contract, *, scratch: Path | None) -> Survey:
    """Read a table and list its errors like `survey_table`, with suggestions for correcting them."""
    return _hinted(path, contract, lambda: survey_table(path, contract, scratch=scratch), is_new=False)


def survey_new_with_hints(
    path: Path, contract: Contract, *, has_outcome: bool = False, scratch: Path | None = None
) -> Survey:
    """Read new rows and list their errors like `survey_new_rows`, with suggestions for correcting them."""
    return _hinted(
        path,
        contract,
        lambda: survey_new_rows(path, contract, has_outcome=has_outcome, scratch=scratch),
        is_new=True,
    )


def _hinted(path: Path, contract: Contract, read: Callable[[], Survey], *, is_new: bool) -> Survey:
    try:
        survey = read()
    except DataError as error:
        if hint := format_hint(path, contract.format, is_new=is_new):
            raise DataError(what=error.what, consequence=error.consequence, remedy=hint) from None
        raise
    hint = format_hint(path, contract.format, is_new=is_new) if _may_be_other_format(survey) else None
    own = () if is_new else (*_missing_outcome(survey, contract), *_units(survey))
    return replace(survey, hints=(*([] if hint is None else [hint]), *own))


def _may_be_other_format(survey: Survey) -> bool:
    return any(one.flaw == NOT_A_NUMBER.words or one.flaw.endswith(DELIMITER) for one in survey.mistakes)


def _missing_outcome(survey: Survey, contract: Contract) -> Iterator[str]:
    target = contract.target
    is_missing = any(one.column == target.name and one.flaw == MISSING.words for one in survey.mistakes)
    if is_missing and not isinstance(target, MaskTarget):
        yield (
            f"Complete the missing values of {target.name}, or write `missing: drop` at this column in the contract"
            " to leave these rows out."
        )


def _units(survey: Survey) -> Iterator[str]:
    for name, outside in survey.outside.items():
        values = survey.table.features.get(name, survey.table.target)
        if values is not None and (hint := unit_hint(name, values, outside)) is not None:
            yield hint
