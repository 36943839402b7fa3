"""Does the work of the desk in the trainer's process: the curves of a run, and the report after its last round.

Libraries are loaded inside the functions, so an idle trainer uses no memory for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protos.plan.plan import Plan
from site_agent.hospital import Hospital
from site_agent.state_folders import live_curves_path

if TYPE_CHECKING:
    from site_agent.trainer.data.preprocessing import Preprocessing
    from site_agent.trainer.prior.prior_study import PriorStudy
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy
    from site_agent.trainer.study import Study, Watch


def watch(hospital: Hospital, study: Study) -> Watch:
    """Return the function that writes the curve of a run after each round."""
    from site_agent.desk.results.live_curves import LiveCurves

    return LiveCurves(live_curves_path(hospital.state_path, study.plan.run_name)).take


def receive(hospital: Hospital, plan: Plan, run: str, rounds: int, vector: npt.NDArray[np.float32]) -> None:
    """Save the model that the other sites trained, and write the report, at a site whose table has no outcomes."""
    from site_agent.desk.results import receiving

    receiving.receive(hospital, plan, run, rounds, vector)


def make_report(
    hospital: Hospital, study: Study | PriorStudy | StatisticsStudy, preprocessing: Preprocessing | None, run: str
) -> None:
    """Save and compare the models of a run, and write the report. Statistics have only the files of their results."""
    if preprocessing is None:
        from site_agent.desk.results.statistics_results import write_results
        from site_agent.trainer.statistics.statistics_study import StatisticsStudy

        assert isinstance(study, StatisticsStudy)
        write_results(hospital, study, run)
        return
    from site_agent.desk.results import prior_report, run_report
    from site_agent.trainer.prior.prior_study import PriorStudy
    from site_agent.trainer.study import Study

    if isinstance(study, PriorStudy):
        prior_report.make_prior_report(hospital, study, preprocessing, run)
    else:
        assert isinstance(study, Study)
        run_report.make_report(hospital, study, preprocessing, run)
