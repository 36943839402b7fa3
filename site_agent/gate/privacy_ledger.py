"""Records how much of the patients' privacy budget this site has spent for which noisy numbers.

Each run has a file of payments below `privacy/` in the gate's folder, and a folder with the noisy numbers of each step.
The rules:

* the first payment of a run is for all noisy sums of its plan, so no run ends halfway because a budget is spent;
* under local noise the trainer has drawn the noise. Its first answer at a step is stored and sent;
* the total of the trainer's noisy sums of private layers is stored too. A step always uses the same total;
* a payment is on disk, after the noisy numbers that it buys, and then in the audit log, before a byte leaves;
* numbers that were paid for are sent again unchanged, so a restart neither draws other noise nor pays twice;
* noise that is drawn a second time is paid for a second time, also in the same run: in full, as if for a whole run;
* after the end of the run at this site nothing is drawn and nothing is paid (permission.py);
* if something left that the file of payments does not record, the next draw is paid for again;
* a payment counts if the files or the audit log record it, even if one of the two was lost or restored;
* a private run that sent data without a known payment counts in full, as if it were paid today;
* no payment is ever refunded. All runs of this state folder count, whatever the table's name was;
* a declared restore means that payments may be missing. Then the budget of a year counts as spent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum, inf
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from host.audit_log import RESTORED, AuditLog
from host.durable import keep_record, on_disk
from host.record_store import StoreError
from protos.errors import ProtocolError, RefusedError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.documents import Document
from protos.plan.patient_privacy import Privacy
from protos.plan.plan import Plan
from protos.privacy.accounting import epsilon_of, ratio_of, together
from protos.privacy.discrete_gaussian import RandomBytes, discrete_gaussian
from site_agent.gate.spent import Spent
from site_agent.hospital import PrivacyLimits
from site_agent.state_folders import gate_folder

YEAR: Final = timedelta(days=365)
_LARGEST_TOTAL: Final = 1 << 61  # of the sums of private layers, to which a step adds less than 2**62
_ROUNDING: Final = 1.0 + 1e-6  # the relative error of an epsilon after conversion to a ratio and back


Record = TypeVar("Record", bound=Document)


class Payment(Document):
    """The privacy cost of adding noise one time.

    Attributes:
        identifier: names the payment in file and audit log.
        run, study, version: for which it was made.
        at: aware time, ISO 8601.
        epsilon, delta: the plan's promise for everything that leaves with this draw.
        sampling: the probability with which a patient takes part in a sum; None if all patients are in all sums.
    """

    identifier: str
    run: str
    study: str
    version: int
    at: str
    epsilon: float
    delta: float
    sampling: float | None = None

    @property
    def ratio(self) -> float:
        """Return the ratio mu, which measures the privacy cost of the added noise."""
        return ratio_of(self.epsilon, self.delta)


class _Draw(Document):
    """Noise for one step. `payment` is None if an earlier payment of the run covers this draw."""

    payment: Payment | None
    position: str


class _Kept(Document):
    draws: tuple[_Draw, ...]


@dataclass(frozen=True)
class Standing:
    """The spent epsilon of a study and of one year, at the policy's delta."""

    of_study: float
    of_year: float


def check_ledger(state: Path) -> None:
    """Read all files of a site's ledger, without its audit log. Raises RefusedError if one of them cannot be read."""
    for path in _files(state):
        _draws(path)


def _path(state: Path, run: str) -> Path:
    return gate_folder(state) / "privacy" / f"{run}.json"


def _files(state: Path) -> Iterable[Path]:
    return sorted(_path(state, "").parent.glob("*.json"))


def _draws(path: Path) -> tuple[_Draw, ...]:
    kept = read_record(
        path,
        _Kept,
        what=f"The file {path} with the spent privacy budget cannot be read.",
        consequence="Nothing is sent for a study with a privacy budget.",
    )
    return () if kept is None else kept.draws


class PrivacyLedger:
    """Records the payments of one site."""

    def __init__(self, state: Path, audit: AuditLog, *, random_bytes: RandomBytes = os.urandom) -> None:
        """Prepare the ledger in the site's state folder. `random_bytes` is the operating system's outside of tests."""
        self._state, self._audit, self._random_bytes = state, audit, random_bytes
        self._may_have_left: dict[str, set[str]] = {}  # steps of each run, so that a round does not read the whole log

    def payments(self) -> tuple[Payment, ...]:
        """Return every payment from the privacy budget that this site has recorded, the oldest first.

        Raises:
            RefusedError: a file cannot be read, so nobody knows what was spent.
        """
        draws = (draw for path in _files(self._state) for draw in _draws(path))
        found = {draw.payment.identifier: draw.payment for draw in draws if draw.payment is not None}
        for facts in self._audit.records("privacy_spent"):
            payment = _logged(facts)
            found.setdefault(payment.identifier, payment)
        runs = {payment.run for payment in found.values()}
        found |= {payment.identifier: payment for payment in self._unpaid(runs)}
        return tuple(sorted(found.values(), key=lambda payment: payment.at))

    def refuse(self, limits: PrivacyLimits | None, plan: Plan) -> str | None:
        """Return why the policy's limits leave no privacy budget for a plan. Return None if budget remains."""
        if plan.privacy is None:
            return None
        if limits is None:
            return "the policy has no limits of epsilon (its key privacy)"
        now = datetime.fromisoformat(self._audit.time())
        return self.why_spent(now) or overspends(limits, plan.study, plan.privacy, self.payments(), now)

    def spent_until(self) -> datetime | None:
        """Return until when the budget of a year counts as spent after a declared restore, or None without one."""
        restored = self._restored()
        return datetime.fromisoformat(restored) + YEAR if restored else None

    def why_spent(self, now: datetime) -> str | None:
        """Return why no privacy budget remains after a declared restore. Return None if budget remains."""
        until = self.spent_until()
        if until is None or now >= until:
            return None
        return f"an older state was restored here, so the whole epsilon of a year is treated as spent until {until:%F}"

    def _restored(self) -> str:
        return max((str(facts["time"]) for facts in self._audit.records(RESTORED)), default="")

    def has_paid(self, run: str) -> bool:
        """Return whether this site has recorded a privacy cost for this run."""
        return any(payment.run == run for payment in self.payments())

    def kept(self, run: str, position: bytes) -> list[int] | None:
        """Return the stored noisy numbers of a step whose privacy cost was recorded, or None."""
        if all(draw.position != position.hex() for draw in _draws(self._path(run))):
            return None  # the numbers may exist, but were not paid for
        try:
            return [int(number) for number in np.frombuffer(self._numbers(run, position).read_bytes(), "<i8")]
        except FileNotFoundError:
            return None

    def is_paid(self, plan: Plan, position: bytes) -> bool:
        """Return whether the recorded privacy cost of this run covers a step that has no noise yet.

        A payment from before a declared restore covers nothing more, because the step may have left with other noise.
        """
        draws, restored = _draws(self._path(plan.run_name)), self._restored()
        payments = [(place, draw.payment) for place, draw in enumerate(draws) if draw.payment is not None]
        paid = [place for place, payment in payments if payment.at >= restored]
        known, here = {draw.position for draw in draws}, position.hex()
        left = self._left(plan.run_name)
        if not paid or here in known | left or not left <= known:
            return False
        return len(draws) - paid[-1] < plan.private_releases

    def _left(self, run: str) -> set[str]:
        """Return the steps of a run that may have left: those in the audit log, and those that were paid for since."""
        if run not in self._may_have_left:
            released = self._audit.records("contribution_released")
            self._may_have_left[run] = {facts["position"] for facts in released if facts["run"] == run}
        return self._may_have_left[run]

    def pay(self, plan: Plan, position: bytes, numbers: Sequence[int]) -> list[int]:
        """Draw the noise that this site adds, record its privacy cost, and return the numbers with the noise.

        Args:
            plan: with privacy, and masked.
            position: the step of the numbers.
            numbers: this site's sums, in the order of the exchange, then the noisy sums of private layers.

        Returns:
            the sums with noise, then the private layers' total after this step.

        Raises:
            StoreError: the payment cannot be recorded, so nothing may leave.
            RefusedError: the total before this step was lost.
        """
        assert plan.privacy is not None
        noisy = with_noise(plan, numbers, self._random_bytes)
        if plan.own_numbers:
            total = np.array(noisy[-plan.own_numbers :]) + self.own_sums(plan, position)
            noisy[-plan.own_numbers :] = np.clip(total, -_LARGEST_TOTAL, _LARGEST_TOTAL).tolist()
        is_paid = self.is_paid(plan, position)
        payment = None if is_paid else self._payment(plan, plan.privacy, secrets.token_hex(16))
        path = self._path(plan.run_name)
        draw = _Draw(payment=payment, position=position.hex())
        self._replace(self._numbers(plan.run_name, position), np.array(noisy, "<i8").tobytes())
        self._write(path, (*_draws(path), draw))
        if payment is not None:
            self._audit.write("privacy_spent", **payment.model_dump(exclude={"at"}))
        self._left(plan.run_name).add(position.hex())
        return noisy

    def own_sums(self, plan: Plan, position: bytes | None) -> npt.NDArray[np.int64]:
        """Return the noisy sums of the private layers, added up over all steps before a step.

        A repeated step has the same total as the first time. `position` is None after the last step.

        Returns:
            int64 of shape (numbers of private layers,).

        Raises:
            RefusedError: the numbers of the previous step were lost.
        """
        drawn, training = self._drawn(plan.run_name), plan.private_training
        if position is not None and position.hex() in drawn:
            drawn = drawn[: drawn.index(position.hex())]
        if training is None or not drawn or not plan.own_numbers:
            return np.zeros(plan.own_numbers, np.int64)
        kept = self.kept(plan.run_name, bytes.fromhex(drawn[-1]))
        # Version 0.1 trained no private layers under privacy, so its rounds have no total.
        if kept is None or len(kept) != len(training.names) + plan.own_numbers:
            raise RefusedError(
                what=f"The stored numbers of an earlier round of {plan.run_name} are missing in the gate's folder.",
                consequence="This site cannot compute its private layers, so it sends nothing more of this run.",
                remedy="Restore this site's state from a backup, or start a new version of the plan. A new version of "
                "the plan spends privacy budget (epsilon) again.",
            )
        return np.array(kept[-plan.own_numbers :], np.int64)

    def forget_numbers(self, plan: Plan) -> None:
        """Delete the noisy numbers of a finished run. The recorded privacy cost and the private layers' total remain.

        Raises:
            StoreError: the file cannot be written.
        """
        folder, drawn = self._path(plan.run_name).with_suffix(".numbers"), self._drawn(plan.run_name)
        last = drawn[-1] if plan.own_numbers and drawn else ""  # a report may have to be made again
        with _recorded():
            for path in folder.glob("*"):
                if path.name != last:
                    path.unlink()
            if folder.exists() and not last:
                folder.rmdir()

    def _drawn(self, run: str) -> list[str]:
        """Return the steps of a run that have noise, in the sequence of their first draws."""
        return list(dict.fromkeys(draw.position for draw in _draws(self._path(run))))

    def _unpaid(self, paid: set[str]) -> Iterator[Payment]:
        """Yield a payment for each private run that sent data, although files and log lack its payment.

        A plan that this version cannot read is an error only if its run sent data.
        """
        left = {path.stem for path in (gate_folder(self._state) / "spent").glob("*.json")} - paid
        for path in sorted((gate_folder(self._state) / "plans").glob("*.json")) if left else ():
            try:
                plan = plan_from_wire(path.read_bytes())
            except ProtocolError as cause:  # a plan of another version, or a damaged file
                run = next((run for run in left if run.endswith(f"-{path.stem[:12]}")), None)
                if run is None:
                    continue
                raise RefusedError(
                    what=f"The stored plan of the run {run} cannot be read, so the spent privacy budget is not known.",
                    consequence="Nothing is sent for a study with a privacy budget.",
                    remedy="Restore this site's state from a backup, and inform the data protection officer.",
                ) from cause
            if plan.privacy is not None and plan.run_name in left and Spent(self._state, plan.run_name).newest:
                yield self._payment(plan, plan.privacy, f"lost {plan.run_name}")

    def _payment(self, plan: Plan, privacy: Privacy, identifier: str) -> Payment:
        return Payment(
            identifier=identifier,
            run=plan.run_name,
            study=plan.study,
            version=plan.version,
            at=self._audit.time(),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            sampling=privacy.sampling,
        )

    def _path(self, run: str) -> Path:
        return _path(self._state, run)

    def _numbers(self, run: str, position: bytes) -> Path:
        return self._path(run).with_suffix(".numbers") / position.hex()

    def _write(self, path: Path, draws: tuple[_Draw, ...]) -> None:
        self._replace(path, _Kept(draws=draws).model_dump_json().encode())

    def _replace(self, path: Path, content: bytes) -> None:
        with _recorded():
            keep_record(path, content)


def _recorded() -> AbstractContextManager[None]:
    return on_disk(
        what="The privacy budget that this round spends cannot be recorded",
        consequence="Nothing from this round was sent.",
        kind=StoreError,
    )


def with_noise(plan: Plan, numbers: Sequence[int], random_bytes: RandomBytes = os.urandom) -> list[int]:
    """Return this site's sums with noise added. The calling function must record the spent privacy budget."""
    if plan.private_training is not None and plan.private_training.is_local:
        return list(numbers)  # the trainer has added noise in each of its steps
    sent = len(numbers) - plan.own_numbers  # the sums after them have the trainer's noise and do not leave
    noise = discrete_gaussian(sent, plan.noise_variance, random_bytes)
    noisy: list[int] = (np.array(numbers[:sent], np.int64) + noise).tolist()  # both are far within 64 bits
    return [*noisy, *numbers[sent:]]


def overspends(
    limits: PrivacyLimits, study: str, asked: Privacy, payments: Sequence[Payment], now: datetime
) -> str | None:
    """Return why one more payment would exceed a limit of the privacy budget. Return None if it would not."""
    after = standing(limits, study, payments, now, asked)
    for what, epsilon, largest in (
        (f"the study {study}", after.of_study, limits.largest_epsilon_per_study),
        ("all studies of one year", after.of_year, limits.largest_epsilon_per_year),
    ):
        if epsilon > largest * _ROUNDING:
            return f"epsilon of {what} would be {epsilon:.3g}, and the policy allows {largest:g}"
    return None


def standing(
    limits: PrivacyLimits, study: str, payments: Sequence[Payment], now: datetime, asked: Privacy | None = None
) -> Standing:
    """Return the spent privacy budget (epsilon) of a study and of the last 365 days, at the policy's delta.

    `asked` is a plan that would pay in addition, if there is one.
    """
    more = [] if asked is None else [asked]
    # A payment from the future, after a clock was set back, counts as well.
    recent = [payment for payment in payments if datetime.fromisoformat(payment.at) > now - YEAR]
    of_study = [payment for payment in payments if payment.study == study]
    return Standing(*(_epsilon_of_all([*found, *more], limits.delta) for found in (of_study, recent)))


def _epsilon_of_all(costs: Sequence[Payment | Privacy], delta: float) -> float:
    """Return the epsilon of all costs together. Sampled runs are no Gaussians: their epsilons and deltas add up."""
    sampled = [cost for cost in costs if cost.sampling is not None]
    ratios = [cost.ratio for cost in costs if cost.sampling is None]
    rest = delta - fsum(cost.delta for cost in sampled)
    if rest < -delta * (_ROUNDING - 1) or (ratios and rest <= 0):
        return inf
    return fsum(cost.epsilon for cost in sampled) + (epsilon_of(together(ratios), rest) if ratios else 0.0)


def _logged(facts: Mapping[str, Any]) -> Payment:  # Any: every type that JSON has
    """Return the payment in a record of the audit log. Its time is the record's."""
    known = {name: facts["time" if name == "at" else name] for name in Payment.model_fields if name != "sampling"}
    return Payment.model_validate(known | {"sampling": facts.get("sampling")})


def read_record(path: Path, kind: type[Record], *, what: str, consequence: str) -> Record | None:
    """Return the content of a file of the privacy ledger. Return None if the file does not exist.

    Raises:
        RefusedError: the file cannot be read. `what` and `consequence` are the first sentences of the error.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as cause:
        raise RefusedError(
            what=what,
            consequence=consequence,
            remedy="Restore this site's state from a backup, and inform the data protection officer.",
        ) from cause
