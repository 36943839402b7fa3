"""A site after a study: the start of the tests of report, predictions and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital
from tests.site_agent.trainer.sites import Table, at_the_end, make_plan, make_site, prepare, run_rounds

RUN = "law-1"


def site_after_run(
    folder: Path, *, table: Table = "breast-cancer", columns: slice = slice(0, 6), plan: Any = None, **training: object
) -> Hospital:
    """A hospital with model, report and scores of a federation with itself alone."""
    made = plan or make_plan()
    hospital, study, preprocessing = prepare(make_site(folder, table=table, columns=columns, **training), made)
    study.close(at_the_end(made), run_rounds(made, [study]))
    make_report(hospital, study, preprocessing, RUN)
    return hospital
