"""Reads and checks a hospital's table. A table with errors, or with warnings that no person accepted, is refused.

Training, counts and reports read the table only through this file.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from protos.errors import DataError
from site_agent.desk.examination.examine import Examination, examine
from site_agent.desk.examination.finding import counted, find_acceptance
from site_agent.desk.examination.read_hints import survey_with_hints
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.data.image_folder import temporary_folder
from site_agent.trainer.data.mistakes import CORRECT_TABLE, as_sentences, refuse, where
from site_agent.trainer.data.preprocessing import Preprocessing

_SHOWN_WARNINGS = 5


def examined(hospital: Hospital, scratch: Path | None = None) -> Examination:
    """Read the hospital's table under its contract, and return all findings about it.

    Args:
        scratch: the folder in which images are prepared; None for the folder of temporary files.

    Raises:
        OperatorError: the contract is wrong, or the table cannot be read at all.
    """
    contract = read_contract(Path(hospital.data.contract))
    survey = survey_with_hints(Path(hospital.data.table), contract, scratch=scratch or temporary_folder())
    return examine(survey, hospital.data.split)


def admitted(hospital: Hospital, scratch: Path | None = None) -> Examination:
    """Return the checked table. Raise an error if the table may not be used for training, counts or reports.

    Raises:
        DataError: the table has errors, or warnings that nobody has accepted and that stop training at this hospital.
    """
    examination = examined(hospital, scratch)
    _check_admitted(hospital, examination)
    return examination


def admit(hospital: Hospital, scratch: Path | None = None) -> tuple[Dataset, Preprocessing]:
    """Prepare the table for training, and log the number of warnings. Raises the same errors as `admitted`."""
    examination = admitted(hospital, scratch)
    assert examination.split_rows is not None  # otherwise there was an error
    if warnings := len(examination.warnings):
        accepted = is_accepted(hospital, examination)
        structlog.get_logger().info("table_has_warnings", warnings=warnings, accepted=accepted)
    return prepare_rows(examination.table, examination.split_rows)


def _check_admitted(hospital: Hospital, examination: Examination) -> None:
    check_errors(examination)
    warnings = examination.warnings
    if not is_accepted(hospital, examination) and hospital.data.unaccepted_warnings == "stop":
        lines = [f"    {as_sentences(warning.words)}" for warning in warnings[:_SHOWN_WARNINGS]]
        if len(warnings) > len(lines):
            lines.append(f"    and {len(warnings) - len(lines)} other warnings")
        raise DataError(
            what=f"No person has accepted the {counted(len(warnings), 'warning')} about this hospital's table:\n"
            + "\n".join(lines),
            consequence="Nothing was trained and nothing was sent.",
            remedy="Read the warnings with `site-agent data check`, then correct the table or run `site-agent data "
            "accept`.",
        )


def stop_as_listed(hospital: Hospital, examination: Examination, configuration: Path) -> None:
    """Raise DataError if the table has errors or unaccepted warnings, which the caller has already listed."""
    unused = "The table is not used for training. Nothing was sent."
    if examination.errors:
        raise DataError(
            what=f"The table has {counted(len(examination.errors), 'error')}, which this command listed above.",
            consequence=unused,
            remedy=" ".join([*examination.hints, CORRECT_TABLE]),
        )
    if not is_accepted(hospital, examination) and hospital.data.unaccepted_warnings == "stop":
        accept = f"site-agent data accept --config {configuration} --by NAME --digest {examination.digest[:16]}"
        raise DataError(
            what=(
                f"No person has accepted the {counted(len(examination.warnings), 'warning')} that this command listed "
                "above."
            ),
            consequence=unused,
            remedy=f"Correct the table. If the table is right, accept the warnings: `{accept}`.",
        )


def is_accepted(hospital: Hospital, examination: Examination) -> bool:
    """Return whether the examination has no warnings, or a person has accepted all its warnings."""
    return not examination.warnings or find_acceptance(hospital.state_path, examination.digest) is not None


def check_errors(examination: Examination) -> None:
    """If the examination has errors, raise a DataError that lists all of them."""
    if examination.errors:
        refuse(
            [as_sentences(error.words, where(error.rows, error.count)) for error in examination.errors],
            examination.hints,
        )
