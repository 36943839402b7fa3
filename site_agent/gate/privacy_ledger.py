"""Records how much of the patients' privacy budget this site has spent for which noisy numbers.

The payments are records of the audit log. The noisy numbers of each step are rows of the same store
(host/record_store.py). The rules:

* the first payment of a run is for all noisy sums of its plan, so no run ends halfway because a budget is spent;
* under local noise the trainer has drawn the noise. Its first answer that is sent for a step is stored;
* the total of the trainer's noisy sums of private layers is stored too. A step always uses the same total;
* the noisy numbers and their payment are written in the transaction of the release, before a byte leaves;
* numbers that were sent once are sent again unchanged, so a restart neither sends other noise nor pays twice;
* noise for further steps than the plan has is paid for in full, as if for a whole run;
* after the end of the run at this site nothing is drawn and nothing is paid (permission.py);
* no payment is ever refunded. All runs of this state folder count, whatever the table's name was;
* a declared restore means that payments may be missing. Then the budget of a year counts as spent, and no earlier
  payment covers a further step.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt

from host.audit_log import RESTORED, AuditLog
from protos.plan.documents import Document
from protos.plan.patient_privacy import Privacy
from protos.plan.plan import Plan
from protos.privacy.accounting import epsilon_of, ratio_of, together
from protos.privacy.discrete_gaussian import RandomBytes, discrete_gaussian
from site_agent.hospital import PrivacyLimits

YEAR: Final = timedelta(days=365)
_LARGEST_TOTAL: Final = 1 << 61  # of the sums of private layers, to which a step adds less than 2**62
_ROUNDING: Final = 1.0 + 1e-6  # the relative error of an epsilon after conversion to a ratio and back
_AFTER_ALL: Final = (1 << 63) - 1  # no row has this number
_SPENT: Final = "privacy_spent"
# The numbers of a finished run are deleted, because one site's sums have less noise than the sums of all.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS noise (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, position BLOB NOT NULL, payment TEXT NOT NULL, numbers BLOB NOT NULL,
    UNIQUE (run, position)
) STRICT;
CREATE INDEX IF NOT EXISTS noise_by_payment ON noise (payment);
CREATE TRIGGER IF NOT EXISTS noise_UPDATE BEFORE UPDATE ON noise
BEGIN SELECT RAISE(ABORT, 'rows of noise are permanent'); END;
CREATE TRIGGER IF NOT EXISTS noise_DELETE BEFORE DELETE ON noise
WHEN NOT EXISTS (SELECT 1 FROM records WHERE event = 'run_finished' AND run = OLD.run)
BEGIN SELECT RAISE(ABORT, 'the noise of a run is permanent until the run is finished'); END;
"""


class Payment(Document):
    """The privacy cost of all noise of a run.

    Attributes:
        identifier: names the payment; each row of noise has it.
        run, study, version: for which it was made.
        at: aware time, ISO 8601.
        epsilon, delta: the plan's promise for everything that leaves with this noise.
    """

    identifier: str
    run: str
    study: str
    version: int
    at: str
    epsilon: float
    delta: float

    @property
    def ratio(self) -> float:
        """Return the ratio mu, which measures the privacy cost of the added noise."""
        return ratio_of(self.epsilon, self.delta)


@dataclass(frozen=True)
class Standing:
    """The spent epsilon of a study and of one year, at the policy's delta."""

    of_study: float
    of_year: float


class PrivacyLedger:
    """Records the payments and the noise of one site, in the store of its audit log."""

    def __init__(self, audit: AuditLog, *, random_bytes: RandomBytes = os.urandom) -> None:
        """Prepare the table of noise. `random_bytes` is the operating system's outside of tests. Raises StoreError."""
        audit.store.define(_SCHEMA)
        self._audit, self._store, self._random_bytes = audit, audit.store, random_bytes

    def payments(self) -> tuple[Payment, ...]:
        """Return every payment from the privacy budget of this site, the oldest first. Raises StoreError."""
        names = Payment.model_fields.keys() - {"at"}  # the time is the record's
        paid = self._audit.records(_SPENT)
        return tuple(Payment(at=facts["time"], **{name: facts[name] for name in names}) for facts in paid)

    def refuse(self, limits: PrivacyLimits | None, plan: Plan) -> str | None:
        """Return why the policy's limits leave no privacy budget for a plan. Return None if budget remains."""
        if plan.privacy is None:
            return None
        if limits is None:
            return "the policy has no limits of epsilon (its key privacy)"
        now = self._audit.now()
        return self.why_spent(now) or overspends(limits, plan.study, plan.privacy, self.payments(), now)

    def spent_until(self) -> datetime | None:
        """Return until when the budget of a year counts as spent after a declared restore, or None without one."""
        restored = max((str(facts["time"]) for facts in self._audit.records(RESTORED)), default="")
        return datetime.fromisoformat(restored) + YEAR if restored else None

    def why_spent(self, now: datetime) -> str | None:
        """Return why no privacy budget remains after a declared restore. Return None if budget remains."""
        until = self.spent_until()
        if until is None or now >= until:
            return None
        return f"an older state was restored here, so the whole epsilon of a year is treated as spent until {until:%F}"

    def kept(self, run: str, position: bytes) -> list[int] | None:
        """Return the recorded noisy numbers of a step, or None."""
        found = self._store.read("SELECT numbers FROM noise WHERE run = ? AND position = ?", run, position)
        return [int(number) for number in np.frombuffer(found[0][0], "<i8")] if found else None

    def covering(self, plan: Plan) -> str | None:
        """Return the payment that covers one more step of a run, or None.

        A payment from before a declared restore covers nothing more, because the step may have left with other noise.
        """
        newest = None
        for facts in self._audit.records(RESTORED, _SPENT):
            if facts["event"] == RESTORED:
                newest = None
            elif facts["run"] == plan.run_name:
                newest = str(facts["identifier"])
        ((steps,),) = self._store.read("SELECT count(*) FROM noise WHERE payment = ?", newest)
        return newest if steps < plan.private_releases else None

    def draw(self, plan: Plan, position: bytes, numbers: Sequence[int]) -> list[int]:
        """Return a step's numbers with the noise that this site adds. Nothing is written (`pay`).

        Args:
            plan: with privacy, and masked.
            position: the step of the numbers.
            numbers: this site's sums, in the order of the exchange, then the noisy sums of private layers.

        Returns:
            the sums with noise, then the private layers' total after this step. If the step was recorded, its numbers.
        """
        if (kept := self.kept(plan.run_name, position)) is not None:
            return kept
        noisy = with_noise(plan, numbers, self._random_bytes)
        if plan.own_numbers:
            total = np.array(noisy[-plan.own_numbers :]) + self.own_sums(plan, position)
            noisy[-plan.own_numbers :] = np.clip(total, -_LARGEST_TOTAL, _LARGEST_TOTAL).tolist()
        return noisy

    def pay(self, plan: Plan, position: bytes, noisy: Sequence[int]) -> None:
        """Record the numbers of `draw`, and their privacy cost if no earlier payment of the run covers the step.

        Raises:
            StoreError: they cannot be recorded, so nothing may leave.
        """
        if self.kept(plan.run_name, position) is not None:
            return
        assert plan.privacy is not None
        with self._store.transaction():
            if (payment := self.covering(plan)) is None:
                payment = secrets.token_hex(16)
                spent = plan.privacy
                promise = {"epsilon": spent.epsilon, "delta": spent.delta}
                of = {"run": plan.run_name, "study": plan.study, "version": plan.version}
                self._audit.write(_SPENT, identifier=payment, **of, **promise)
            row = (plan.run_name, position, payment, np.array(noisy, "<i8").tobytes())
            self._store.write("INSERT INTO noise (run, position, payment, numbers) VALUES (?, ?, ?, ?)", *row)

    def own_sums(self, plan: Plan, position: bytes | None) -> npt.NDArray[np.int64]:
        """Return the noisy sums of the private layers, added up over all steps before a step.

        A repeated step has the same total as the first time. `position` is None after the last step.

        Returns:
            int64 of shape (numbers of private layers,).
        """
        if plan.private_training is None or not plan.own_numbers:
            return np.zeros(plan.own_numbers, np.int64)
        here = self._store.read("SELECT number FROM noise WHERE run = ? AND position = ?", plan.run_name, position)
        before = self._store.read(
            "SELECT numbers FROM noise WHERE run = ? AND number < ? ORDER BY number DESC LIMIT 1",
            plan.run_name, here[0][0] if here else _AFTER_ALL,
        )  # fmt: skip
        numbers = np.frombuffer(before[0][0], "<i8") if before else np.zeros(plan.own_numbers, np.int64)
        return numbers[-plan.own_numbers :].astype(np.int64)

    def forget_numbers(self, plan: Plan) -> None:
        """Delete the noisy numbers of a finished run. The recorded privacy cost remains.

        Raises:
            StoreError: the disk cannot be written, or the audit log has no record that the run is finished.
        """
        self._store.write("DELETE FROM noise WHERE run = ?", plan.run_name)


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
    more = [] if asked is None else [asked.ratio]
    # A payment from the future, after a clock was set back, counts as well.
    recent = [payment.ratio for payment in payments if datetime.fromisoformat(payment.at) > now - YEAR]
    of_study = [payment.ratio for payment in payments if payment.study == study]
    return Standing(*(epsilon_of(together([*found, *more]), limits.delta) for found in (of_study, recent)))
