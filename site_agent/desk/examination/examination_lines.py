"""What an examination found, as lines for a terminal at the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from site_agent.trainer.data.mistakes import where
from site_agent.trainer.examination.examine import Examination

_MOST_NOTES: Final = 10


def finding_lines(examination: Examination) -> Iterator[str]:
    """Every error and warning with its first rows, then the first notes."""
    for finding in [*examination.errors, *examination.warnings]:
        words = f"{finding.level.upper()}: {finding.words}{where(finding.rows, finding.count)}"
        yield words if words.endswith("?") else f"{words}."
    notes = [finding for finding in examination.findings if finding.level == "note"]
    for finding in notes[:_MOST_NOTES]:
        yield f"note: {finding.words}."
    if len(notes) > _MOST_NOTES:
        yield f"note: {len(notes) - _MOST_NOTES} further notes are on the page."
