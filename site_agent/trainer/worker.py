"""Answers the requests of the site's gate process: trains a model, tests it, and returns the update.

This process has the patients and no network. Everything that it writes to the trainer socket is allowed to leave the
site. So explanations are printed here and never sent. The rules:

* it trains only under an approval that it reads itself, and returns only tensors and numbers of the approved
  manifest;
* it answers each round for one set of shared values, unless this hospital's policy allows another random draw;
* a request that no honest agent sends ends the process;
* if its rows do not allow an answer, or training fails because of them, the answer is a void, and the trainer goes on;
* it continues from its memory or its disk, and never starts from the beginning in the middle of a run;
* patients do not decide whether a finished run ends well for the coordinator. A report that their rows make impossible
  is an error here only;
* for a defect only its kind and its place in our own code are reported. The exception's text is not reported, because
  it might quote a patient.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, assert_never

import numpy as np
import numpy.typing as npt
import structlog

from host.record_store import StoreError
from protos.errors import (
    DataError,
    DefectError,
    OperatorError,
    ProtocolError,
    RefusedError,
    UnavailableError,
    explained,
)
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.plan import Plan, plan_from_wire
from protos.plan.plan_head import LARGEST_PLAN_BYTES
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from protos.wire.messages import MalformedMessage, SiteReason, Stage
from site_agent.approvals import find_approval, require_guarded, why_not
from site_agent.framed_messages import kept_memory
from site_agent.hospital import Hospital
from site_agent.state_folders import is_run_name
from site_agent.trainer import before_rounds
from site_agent.trainer.disk import AnsweredRounds
from site_agent.trainer.failures import (
    MayNotSend,
    ModuleDiffers,
    NetworkDiffers,
    StateLost,
    TooFewRows,
    TrainingDiverged,
)
from site_agent.trainer.pulse import PULSE
from site_agent.trainer_socket import (
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
    from typing import TypeAlias

    from site_agent.trainer.data.preprocessing import Preprocessing
    from site_agent.trainer.disk import Saves
    from site_agent.trainer.prior.prior_study import PriorStudy
    from site_agent.trainer.requests import Asked
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy
    from site_agent.trainer.study import Study, Watch

    AnyStudy: TypeAlias = Study | PriorStudy | StatisticsStudy


class AfterRounds(Protocol):
    """What the desk makes of a run. Its implementation is site_agent.desk.after_rounds.

    Each function raises OperatorError if table and plan do not fit, or if the disk cannot be written.
    """

    def watch(self, hospital: Hospital, study: Study, /) -> Watch:
        """Return the function that writes the curve of a run after each round."""

    def receive(
        self, hospital: Hospital, plan: Plan, run: str, rounds: int, vector: npt.NDArray[np.float32], /
    ) -> None:
        """At a site without outcomes, save the model that the other sites trained."""

    def make_report(
        self, hospital: Hospital, study: AnyStudy, preprocessing: Preprocessing | None, run: str, /
    ) -> None:
        """Save and compare the models, and write the report."""


class Worker:
    """Runs the trainer process of one site, which receives requests and returns replies."""

    def __init__(self, hospital: Hospital, trainer_socket: TrainerEnd, after: AfterRounds) -> None:
        self._hospital, self._trainer_socket, self._after = hospital, trainer_socket, after
        self._state = hospital.state_path
        self._study: AnyStudy | None = None
        self._preprocessing: Preprocessing | None = None
        self._is_reported = False
        self._run = ""
        self._plan: Plan | None = None
        self._saves: Saves | None = None
        self._answered: AnsweredRounds | None = None
        self._next: int | None = None  # the round with which the study in memory continues
        self._memory = ""  # the head of the answered values, which goes with each answer of the run
        self._log = structlog.get_logger()

    def serve(self) -> int:
        """Answer requests of the gate until the site agent ends or an error occurs. Return the exit status."""
        while (question := self._receive()) is not None:
            answer = question if isinstance(question, Failed) else self._answer_with_pulse(question)
            is_heard = self._send(answer)
            if isinstance(answer, Failed):
                return answer.exit_status
            if not is_heard:
                break
            del question, answer  # so that two vectors are never in memory at once
        return 0

    def _send(self, answer: Message) -> bool:
        try:
            self._trainer_socket.send(answer)
        except ConnectionError:
            self._log.warning("agent_gone_without_its_answer")
            return False
        return True

    def _receive(self) -> Message | None:
        try:
            return self._trainer_socket.receive()
        except ConnectionError:
            return None
        except MalformedMessage as malformed:
            return _failed(_refused(malformed))

    def _answer_with_pulse(self, question: Message) -> Message:
        """Answer a request. For all requests except training, the watchdog waits longer."""
        if isinstance(question, Train) and question.stage == Stage.TRAINING:
            return self._answer(question)
        with PULSE.long_work():
            return self._answer(question)

    def _answer(self, question: Message) -> Message:
        try:
            match question:
                case Check():
                    before_rounds.check_table(self._hospital)
                    return Agreed()
                case Prepare(run=run, payload=payload, memory=memory):
                    return self._prepare(run, plan_from_wire(bytes(payload)), memory)
                case Train():
                    return self._train(question)
                case Conclude():
                    return self._conclude(question)
                case Agreed() | Prepared() | Trained() | Failed():
                    raise MalformedMessage("an answer instead of a request")
                case _:
                    assert_never(question)
        except MalformedMessage as malformed:
            return _failed(_refused(malformed))
        except Exception as error:
            return _failed(_explained(error))

    def _prepare(self, run: str, plan: Plan, memory: str) -> Prepared:
        from site_agent.trainer.answered_values import require_head
        from site_agent.trainer.disk import Saves

        if not is_run_name(run):
            raise MalformedMessage("a run whose name cannot name a folder")
        approved = self._approved(plan)
        self._answered = AnsweredRounds(self._state / "models", plan)
        self._study = None  # free the network of an earlier run before the next network is built
        self._plan, self._run, self._is_reported, self._memory = plan, run, False, ""
        if plan.privacy is None:
            require_head(self._state / "models", memory)
        if plan.tier_of(self._hospital.site) == "receiving":
            return self._prepare_to_receive(run, plan, approved)
        study, self._preprocessing = self._begin(plan)
        before_rounds.check_rows(self._hospital, plan, study.training_rows, study.rows)
        found = study.manifest.digest.hex()
        if found != approved:
            raise NetworkDiffers
        self._study = study
        controls = 2 if plan.ingredients.has_controls else 1
        numbers = plan.tensor.number_count if isinstance(plan, AnnouncingPlan) else controls * study.manifest.parameters
        self._trainer_socket.largest_payload = max(4 * numbers + 8 * plan.own_numbers, LARGEST_PLAN_BYTES)
        self._saves = Saves(self._state, run, plan, study.data_digest)
        self._next = 0 if self._saves.began is None else None
        held = self._saves.held
        self._log.info("study_prepared", run=run, columns=study.column_count, saved=list(held))
        return Prepared(found, _packed(held))

    def _prepare_to_receive(self, run: str, plan: Plan, approved: str) -> Prepared:
        """Check the table of a site without outcomes before the run. After the run an error would be too late."""
        from site_agent.trainer.prior.prior_study import require_receivable

        assert isinstance(plan, PriorPlan)
        require_receivable(self._hospital, plan)
        self._trainer_socket.largest_payload = max(4 * plan.tensor.number_count, LARGEST_PLAN_BYTES)
        self._log.info("model_awaited", run=run)
        return Prepared(approved)

    def _is_receiver(self) -> bool:
        return self._plan is not None and self._plan.tier_of(self._hospital.site) == "receiving"

    def _begin(self, plan: Plan) -> tuple[AnyStudy, Preprocessing | None]:
        if isinstance(plan, PriorPlan):
            return before_rounds.begin_prior(self._hospital, plan)
        if isinstance(plan, StatisticsPlan):
            return before_rounds.begin_statistics(self._hospital, plan, self._state), None
        study, preprocessing = before_rounds.begin_study(self._hospital, plan, self._state)
        study.watch = self._after.watch(self._hospital, study)
        return study, preprocessing

    def _approved(self, plan: Plan) -> str:
        """Return the digest of what this hospital's approval allows to be sent. Raise RefusedError without one."""
        if self._hospital.trainer_socket is not None:
            require_guarded(self._hospital.state_path)
        approval = find_approval(self._hospital.state_path, plan)
        because = why_not(approval, approvers=self._hospital.policy.approvers, now=datetime.now(UTC))
        if approval is None or because is not None:
            raise RefusedError(
                what=f"Training for the study {plan.study} is not allowed at this site: {because}.",
                consequence="Nothing was trained and nothing was sent.",
                remedy="Run `site-agent review` and `site-agent approve`.",
            )
        return approval.manifest_digest

    def _remember(self, remember: Callable[[], None]) -> None:
        """Store on disk which values the answers of this run depend on, once in each process."""
        from site_agent.trainer.answered_values import newest_head

        if self._plan is not None and self._plan.privacy is None and not self._memory:
            with PULSE.long_work():
                remember()
                self._memory = newest_head(self._state / "models")

    def _train(self, question: Train) -> Trained:
        if self._plan is not None:
            self._approved(self._plan)
        if self._is_receiver():
            raise MalformedMessage("a round for a site that only receives")
        asked, received = self._parted(question)
        self._ready().exchange(asked)  # raises an error if the plan does not allow this round
        assert self._answered is not None
        self._answered.admit(question)
        study = self._study_before(question.round)
        try:
            answer = study.train(asked, received)  # announced values are refused alike, whatever is remembered
            self._remember(study.remember)
            study.remember = lambda: None  # so that the table is not in memory twice
        except Exception as error:
            void = _void(error)
            self._took(study, question)
            return Trained(question.round, 0, b"", void, self._memory)
        self._took(study, question)
        updates = answer.updates.view(np.uint8).data
        payload = b"".join((updates, _packed(answer.scalars))) if answer.scalars else updates
        rows = study.rows if asked.stage is Stage.TRAINING else 0
        return Trained(question.round, rows, payload, memory=self._memory)

    def _parted(self, question: Train | Conclude) -> tuple[Asked, npt.NDArray[np.float32]]:
        asked, payload, own = _asked(question), memoryview(question.payload), 0
        if self._plan is not None and asked.stage in (Stage.TRAINING, None):
            own = 8 * self._plan.own_numbers
        if len(payload) < own:
            raise MalformedMessage("no sums of private layers")
        sums = np.frombuffer(bytes(payload[len(payload) - own :]), "<i8").tolist()
        return replace(asked, own_sums=tuple(sums)), _numbers(payload[: len(payload) - own])

    def _conclude(self, question: Conclude) -> Agreed:
        kept_memory.clear()
        asked, received = self._parted(question)
        if self._plan is not None and self._is_receiver():
            self._after.receive(self._hospital, self._plan, self._run, question.round, received)
            return Agreed()
        study = self._ready() if self._next is not None else self._restored(question.round)
        if asked.round != study.plan.rounds and not study.plan.may_end_early:
            raise MalformedMessage("a result before the last round")
        self._conclude_alike(study, asked, received)
        self._study = None
        return Agreed()

    def _took(self, study: AnyStudy, question: Train) -> None:
        assert self._saves is not None
        self._next = question.round + 1
        if question.saves:
            self._saves.write(self._next, study.saved())
        self._saves.forget(before=question.oldest)

    def _study_before(self, number: int) -> AnyStudy:
        """Return the study in its state before a round, from memory or from disk. Raise StateLost without a state."""
        study, saves, following = self._ready(), self._saves, self._next
        assert saves is not None
        if following is not None and number >= following - 1:
            saves.begin(number)
            return study
        study = self._restored(number)
        saves.forget(after=number)
        self._log.info("study_restored", run=self._run, round=number + 1)
        return study

    def _restored(self, number: int) -> AnyStudy:
        assert self._saves is not None
        assert self._plan is not None
        if number not in self._saves.held:
            raise StateLost(number)
        if (found := self._saves.read(number)) is None:
            self._study, self._preprocessing = self._begin(self._plan)
        else:
            self._ready().restore(found)
        self._is_reported, self._next = False, number
        return self._ready()

    def _conclude_alike(self, study: AnyStudy, asked: Asked, received: npt.NDArray[np.float32]) -> None:
        """Make the report. Print errors that depend on patients' data, but do not return these errors.

        Patients decide whether a report is possible. So only people at the hospital learn it. The coordinator learns
        the same as after any other run.
        """
        try:
            study.close(asked, received)
            if not self._is_reported:
                self._after.make_report(self._hospital, study, self._preprocessing, self._run)
                self._is_reported = True
        except Exception as error:
            failure = _of_own_rows(error)
            failure.consequence = "This site has no report. The coordinator sees the same as after any other run."
            _print_lines(failure)

    def _ready(self) -> AnyStudy:
        if self._study is None:
            raise MalformedMessage("a round before a study was prepared")
        return self._study


def _asked(question: Train | Conclude) -> Asked:
    from site_agent.trainer.requests import Asked

    try:
        layers = bytes.fromhex(question.layers)
        stage = Stage(question.stage) if isinstance(question, Train) else None
        scales = bytes.fromhex(question.scales) if isinstance(question, Train) else b""
    except ValueError as cause:
        raise MalformedMessage("a stage or layers that there are not") from cause
    if question.round < 0:
        raise MalformedMessage("a round before the first")
    best = None if question.best_round < 0 else question.best_round
    return Asked(round=question.round, stage=stage, layers=layers, best_round=best, scales=scales)


def _packed(scalars: Sequence[int]) -> bytes:
    return np.array(scalars, "<i8").tobytes()


def _numbers(payload: bytes | memoryview) -> npt.NDArray[np.float32]:
    if len(payload) % 4:
        raise MalformedMessage("shared values that are not whole numbers of 32 bits")
    return np.frombuffer(payload, "<f4")


def _print_lines(error: OperatorError) -> None:
    print(error.lines("site-trainer"), file=sys.stderr, flush=True)


def _of_own_rows(error: Exception) -> OperatorError:
    """Return an error that this site's rows may have caused, with three sentences.

    What follows from the announced values, the disk or the memory alone is raised: it is the same for any patients.
    """
    failure = _explained(error)
    if isinstance(error, MalformedMessage | MemoryError) or isinstance(failure, UnavailableError | StoreError):
        raise error
    return failure


def _void(error: Exception) -> int:
    failure = _of_own_rows(error)
    _print_lines(failure)
    return int(_reason(failure))


def _failed(error: OperatorError) -> Failed:
    _print_lines(error)
    return Failed(_reason(error), error.exit_status, error.tensor if isinstance(error, ModuleDiffers) else "")


def _reason(error: OperatorError) -> SiteReason:
    from site_agent.trainer.answered_values import ReleasedBefore

    match error:
        case DataError() | MayNotSend():
            return SiteReason.DATA_UNFIT
        case TooFewRows() | ReleasedBefore():
            return SiteReason.POLICY_FORBIDS
        case RefusedError():
            return SiteReason.PLAN_NOT_APPROVED
        case NetworkDiffers() | ModuleDiffers():
            return SiteReason.NETWORK_DIFFERS
        case TrainingDiverged():
            return SiteReason.VALUE_NOT_FINITE
        case StateLost():
            return SiteReason.STATE_LOST
        case _:
            return SiteReason.TRAINER_FAILED


def _refused(malformed: MalformedMessage) -> ProtocolError:
    return ProtocolError(
        what=f"The trainer received an invalid message from this site's agent: {malformed}.",
        consequence="Nothing was trained or sent.",
        remedy="Start the site agent again. If this happens again, inform the federation office.",
    )


def _explained(error: Exception) -> OperatorError:
    failure = explained(error)
    if isinstance(failure, DefectError) and "torch" in sys.modules:  # only a training library raises errors of a card
        from site_agent.trainer.arithmetic import card_memory_error

        return card_memory_error(error) or failure
    return failure
