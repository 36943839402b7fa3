"""The trainer's loop: parameters in, train, evaluate, change out.

This process has the patients and no network. It answers the agent through the hatch, and what it
answers may leave the site; so explanations are printed here and never sent. It trains only under an
approval that it finds on its own disk.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np
import structlog

from protos.errors import DataError, OperatorError, RefusedError
from protos.messages import MalformedMessage, SiteReason
from protos.plan import Plan, plan_from_wire
from site_agent.approval import find_approval
from site_agent.config import Hospital
from site_agent.hatch import (
    Agreed,
    Check,
    Conclude,
    Failed,
    Message,
    Prepare,
    Prepared,
    Train,
    Trained,
    TrainerEnd,
)

if TYPE_CHECKING:
    from site_agent.trainer.study import Study

_UNEXPECTED: Final = 70


class Worker:
    """The trainer of one site."""

    def __init__(self, hospital: Hospital, hatch: TrainerEnd) -> None:
        self._hospital, self._hatch = hospital, hatch
        self._study: Study | None = None
        self._run = ""
        self._log = structlog.get_logger()

    def serve(self) -> int:
        """Answer until the agent has gone or something failed; the exit status."""
        while (question := self._hatch.receive()) is not None:
            answer = self._answer(question)
            self._hatch.send(answer)
            if isinstance(answer, Failed):
                return answer.exit_status
        return 0

    def _answer(self, question: Message) -> Message:
        try:
            match question:
                case Check():
                    return _check_in_child(self._hospital)
                case Prepare(run=run, payload=payload):
                    return self._prepare(run, plan_from_wire(bytes(payload)))
                case Train(round=number, payload=payload):
                    return self._train(number, payload)
                case Conclude(payload=payload):
                    return self._conclude(payload)
                case Agreed() | Prepared() | Trained() | Failed():
                    raise MalformedMessage("an answer where a question belongs")
                case _:
                    assert_never(question)
        except OperatorError as error:
            return _tell(error)
        except Exception as error:  # a defect of ours: told without the words that might quote a patient
            return _tell_defect(error)

    def _prepare(self, run: str, plan: Plan) -> Prepared:
        approval = find_approval(self._hospital.state_path, plan)
        if approval is None:
            raise RefusedError(
                what=f"Nobody at this site has approved the study {plan.study} in this form.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Run `site-agent review` and `site-agent approve`.",
            )
        self._study, self._run = begin_study(self._hospital, plan), run
        self._hatch.largest_payload = max(4 * self._study.manifest.parameters, self._hatch.largest_payload)
        self._log.info("study_prepared", run=run, columns=len(self._study.dataset.columns))
        return Prepared(self._study.manifest.digest.hex())

    def _train(self, number: int, payload: bytes | memoryview) -> Trained:
        study = self._ready()
        change = study.train(number, np.frombuffer(payload, "<f4"))
        return Trained(number, study.rows, memoryview(change).cast("B") if change.size else b"")

    def _conclude(self, payload: bytes | memoryview) -> Agreed:
        from site_agent.trainer.report import conclude

        conclude(self._hospital, self._ready(), self._run, np.frombuffer(payload, "<f4"))
        self._study = None
        return Agreed()

    def _ready(self) -> Study:
        if self._study is None:
            raise MalformedMessage("a round before a study was prepared")
        return self._study


def begin_study(hospital: Hospital, plan: Plan) -> Study:
    """Load the libraries, the table and the network; everything that a study needs."""
    import torch

    torch.set_num_threads(hospital.training.threads)
    torch.use_deterministic_algorithms(True)

    from site_agent.trainer.data.contract import read_contract
    from site_agent.trainer.data.dataset import prepare
    from site_agent.trainer.study import Study

    contract = read_contract(Path(hospital.data.contract))
    dataset, preprocessing = prepare(Path(hospital.data.table), contract, hospital.data.split)
    return Study(plan, hospital, dataset, preprocessing)


def _check_in_child(hospital: Hospital) -> Agreed | Failed:
    """Read the table in a child of this process, so that an idle trainer holds no library's memory."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            from site_agent.trainer.data.contract import read_contract
            from site_agent.trainer.data.dataset import prepare

            prepare(Path(hospital.data.table), read_contract(Path(hospital.data.contract)), hospital.data.split)
        except OperatorError as error:
            status = _tell(error).exit_status
        except BaseException as error:
            status = _tell_defect(error).exit_status
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Agreed() if status == 0 else Failed(SiteReason.DATA_UNFIT, status if status > 0 else 1)


def _tell(error: OperatorError) -> Failed:
    print(error.lines("site-trainer"), file=sys.stderr, flush=True)
    reason = {DataError: SiteReason.DATA_UNFIT, RefusedError: SiteReason.PLAN_NOT_APPROVED}
    return Failed(reason.get(type(error), SiteReason.TRAINER_FAILED), error.exit_status)


def _tell_defect(error: BaseException) -> Failed:
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    defect = OperatorError(
        what=f"The trainer met a defect of its own: {type(error).__name__} at {' < '.join(reversed(places[-4:]))}.",
        consequence="Nothing of this round left this site.",
        remedy="Report this line to the project; it holds nothing of any patient.",
    )
    print(defect.lines("site-trainer"), file=sys.stderr, flush=True)
    return Failed(SiteReason.TRAINER_FAILED, _UNEXPECTED)
