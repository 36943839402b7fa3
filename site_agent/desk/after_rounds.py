"""Does the work of the desk in the trainer's process: the curves of a run, and the report after its last round.

Libraries are loaded inside the functions, so an idle trainer uses no memory for them.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from protos.errors import UnavailableError
from protos.plan.plan import Plan
from site_agent.hospital import Hospital
from site_agent.state_folders import live_curves_path

if TYPE_CHECKING:
    from site_agent.trainer.choice import Choice
    from site_agent.trainer.data.preprocessing import Preprocessing
    from site_agent.trainer.prior.prior_study import PriorStudy
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy
    from site_agent.trainer.study import Study, Watch


def watch(hospital: Hospital, study: Study) -> Watch:
    """Return the function that writes the curve of a run after each round."""
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


_PAUSE_SECONDS: Final = 1.0


class LiveCurves:
    """Writes the validation loss of each round to a file, for people at this site, at most once a second.

    The file has mode 0600 in a folder of the trainer's own user, so the agent, which has the network, cannot read it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, -math.inf

    def take(self, choice: Choice, is_last: bool) -> None:
        """Write the losses that were measured so far, as pairs of round and loss. `is_last`: no later model follows."""
        from site_agent.trainer.disk import write_whole

        if time.monotonic() < self._next and not is_last:
            return
        self._next = time.monotonic() + _PAUSE_SECONDS
        losses = [[measured.round, measured.loss] for measured in choice.curve if math.isfinite(measured.loss)]
        # It is only a drawing for people. If the disk is full, the error is reported when the study is saved.
        with suppress(UnavailableError):
            write_whole(self._path, json.dumps(losses).encode())
