"""Decides whether this site may follow a plan, add noise, and send a contribution or a part of it.

The decision never relies on the coordinator. It has every reason against the release:

* the persons here (consent.py), and whether an approved plan is too old to be repeated;
* the hospital's policy (policy.py). Plan and policy do not change in a run, so neither do these reasons;
* the patients' budget under a plan with privacy (privacy_ledger.py).

A plan is decided when it is announced, and again by the door of its run. A round sends only parts of the plan's
manifest. A refusal is one record in the audit log, with all reasons, which is written before the error is raised.
itinerary.py decides which round can come next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from host.audit_log import AuditLog
from protos.errors import OperatorError, RefusedError
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import Bind, SiteReason
from site_agent.gate.consent import Consent, ConsentEnded, refuse_replay
from site_agent.gate.policy import refusals
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.hospital import Hospital, Policy

_ENDED: Final = "the run has already ended at this site, so this site draws no more noise for this run"


class GateRefusal(OperatorError):
    """The gate process refused to release a contribution. `reason` may be sent to the coordinator."""

    code = "E012"

    def __init__(self, *, what: str, reason: SiteReason) -> None:
        super().__init__(
            what=what,
            consequence="Nothing from this round was sent.",
            remedy="Tell the researcher of the study. This site ends its part in the run.",
        )
        self.reason = reason


class PolicyForbids(GateRefusal):
    """The hospital's policy does not allow this contribution. A person at the hospital can change the policy."""

    exit_status = RefusedError.exit_status


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Every reason against a release, each as a short text. Without a reason the release is allowed.

    Attributes:
        withdrawn: why the persons here do not agree, or None.
        forbidden: the rules of policy, replay and budget that forbid it.
    """

    withdrawn: str | None = None
    forbidden: tuple[str, ...] = ()

    @property
    def reasons(self) -> str | None:
        """Return all reasons against sending in one line of text, or None if there are none."""
        withdrawn = () if self.withdrawn is None else (self.withdrawn,)
        return "; ".join((*withdrawn, *self.forbidden)) or None


def decide_plan(
    hospital: Hospital,
    plan: Plan,
    manifest: Manifest,
    *,
    identity: str | None,
    audit: AuditLog,
    announced_at: datetime | None = None,
) -> Decision:
    """Decide whether this hospital's policy and its patients' privacy budget allow a plan. Approval is separate.

    Args:
        identity: the fingerprint of this site's key; None skips the check that the plan lists it.
        audit: this site's log, which has payments too.
        announced_at: an aware time; with it, a plan that is too old to be repeated is refused too.

    Raises:
        StoreError: the log cannot be read.
    """
    forbidden = refusals(hospital.policy, plan, manifest, site=hospital.site, identity=identity)
    if announced_at is not None:
        finished = audit.records("run_finished", run=plan.run_name)
        forbidden += _clauses(refuse_replay(hospital.state_path, plan, finished, announced_at))
    spending = PrivacyLedger(audit)
    pays = plan.privacy is not None and plan.tier_of(hospital.site) != "receiving"
    if not pays or spending.has_paid(plan.run_name):
        return Decision(forbidden=forbidden)
    over = _clauses(spending.refuse(hospital.policy.privacy, plan))
    return Decision(forbidden=(*forbidden, *over))


class Permission:
    """Decides about every release of one run."""

    def __init__(
        self, run: str, plan: Plan, manifest: Manifest, *, site: str, policy: Policy, consent: Consent, audit: AuditLog
    ) -> None:
        """Compare the plan with the policy. `consent` is that of the persons here."""
        self._run, self._plan, self._audit = run, plan, audit
        self._policy, self._consent = policy, consent
        self._refused = refusals(policy, plan, manifest, site=site, identity=None)
        if plan.tier_of(site) == "receiving":
            self._refused += ("this site only receives under the plan, so it may not send a contribution",)
        self._spending = None if plan.privacy is None else PrivacyLedger(audit)

    @property
    def has_noise(self) -> bool:
        """Return whether this site adds noise to every number that it sends, and records the privacy cost."""
        return self._spending is not None

    def still_open(self) -> Decision:
        """Decide whether the next chunk of an allowed contribution may still be sent. This check is fast."""
        return Decision(withdrawn=self._consent.why_not())

    def decide(self, bind: Bind, position: bytes) -> Decision:
        """Decide whether this site's contribution may be sent to a sum with these other sites."""
        forbidden = (*self.forbidden(bind), *_clauses(self._overspends(position)))
        return Decision(withdrawn=self._consent.why_not(), forbidden=forbidden)

    def forbidden(self, bind: Bind) -> tuple[str, ...]:
        """Return a short text about every rule of the policy that a contribution breaks."""
        is_whole = bind.sites == self._plan.site_names
        return self._refused if is_whole else (*self._refused, "its contributors are not exactly the sites of the plan")

    def _overspends(self, position: bytes) -> str | None:
        """Return why no noise may be sent for a step: the run has ended here, or no budget remains for one more."""
        spending, run = self._spending, self._plan.run_name
        if spending is None or spending.has_noise(run, position):
            return None
        if self._audit.records("run_finished", run=run):
            return _ENDED
        return None if spending.is_paid(self._plan) else spending.refuse(self._policy.privacy, self._plan)

    def require(self, decision: Decision, bind: Bind | None = None) -> None:
        """Check that there is no reason against sending. Otherwise record all reasons in the audit log and raise.

        Raises:
            StoreError: the refusal cannot be recorded.
            ConsentEnded: the persons here no longer agree.
            PolicyForbids: policy or budget forbid it.
        """
        if decision.reasons is None:
            return
        here = {"round": 0, "attempt": 0} if bind is None else {"round": bind.round, "attempt": bind.attempt}
        self._audit.write("release_refused", reason=decision.reasons, run=self._run, **here)
        if decision.withdrawn is not None:
            raise ConsentEnded(self._plan.study, decision.withdrawn, self._run)
        what = f"This site's policy does not allow sending a contribution: {decision.reasons}."
        raise PolicyForbids(what=what, reason=SiteReason.POLICY_FORBIDS)

    def with_noise(self, position: bytes, numbers: list[int]) -> list[int]:
        """Return the numbers of a round with noise. `pay` records their cost before they leave."""
        assert self._spending is not None
        return self._spending.draw(self._plan, position, numbers)

    def pay(self, position: bytes, noisy: Sequence[int]) -> None:
        """Record the noisy numbers of a step and their cost in privacy budget. Raises StoreError."""
        if self._spending is not None:
            self._spending.pay(self._plan, position, noisy)

    def own_sums(self, position: bytes | None) -> bytes:
        """Return the noisy sums of the private layers, added up over all steps before a step. See PrivacyLedger."""
        return b"" if self._spending is None else self._spending.own_sums(self._plan, position).tobytes()

    def finish(self) -> None:
        """Delete the noisy numbers of a run that is finished. Raises StoreError."""
        if self._spending is not None:
            self._spending.forget_numbers(self._plan)


def _clauses(reason: str | None) -> tuple[str, ...]:
    return () if reason is None else (reason,)
