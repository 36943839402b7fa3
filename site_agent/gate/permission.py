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

_ENDED: Final = "the run has already ended at this site, so this site sends nothing more for this run"


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


def decide_plan(
    hospital: Hospital, plan: Plan, manifest: Manifest, *, identity: str | None, audit: AuditLog | None
) -> tuple[str, ...]:
    """Return every reason for which this hospital's policy or its patients' privacy budget forbid a plan.

    Approval is separate.

    Args:
        identity: the fingerprint of this site's key; None skips the check that the plan lists it.
        audit: this site's log, which has payments too; None skips the check of the budget.

    Raises:
        StoreError: the log cannot be read.
    """
    forbidden = refusals(hospital.policy, plan, manifest, site=hospital.site, identity=identity)
    forbidden += _clauses(refuse_replay(hospital.state_path, plan))
    if audit is not None and plan.privacy is not None and plan.tier_of(hospital.site) != "receiving":
        spending = PrivacyLedger(audit)
        if all(payment.run != plan.run_name for payment in spending.payments()):
            forbidden += _clauses(spending.refuse(hospital.policy.privacy, plan))
    return forbidden


class Permission:
    """Decides about every release of one run."""

    def __init__(
        self,
        plan: Plan,
        manifest: Manifest,
        *,
        site: str,
        policy: Policy,
        consent: Consent,
        audit: AuditLog,
        ledger: PrivacyLedger | None,
    ) -> None:
        """Compare the plan with the policy. `consent` is that of the persons here; `ledger` is for a private plan."""
        self._plan, self._audit, self._policy, self._consent, self._ledger = plan, audit, policy, consent, ledger
        self._refused = refusals(policy, plan, manifest, site=site, identity=None)
        if plan.tier_of(site) == "receiving":
            self._refused += ("this site only receives under the plan, so it may not send a contribution",)

    def require_open(self, bind: Bind) -> None:
        """Check that the next chunk of an allowed contribution may still be sent. Raises the same errors as `require`.

        This check is fast.
        """
        self._require(bind, self._consent.why_not(), ())

    def require(self, bind: Bind, position: bytes) -> None:
        """Check that this site's contribution may be sent to a sum with these other sites.

        Raises:
            StoreError: the refusal cannot be recorded.
            ConsentEnded: the persons here no longer agree.
            PolicyForbids: policy or budget forbid it.
        """
        forbidden = (*self.forbidden(bind), *_clauses(self._overspends(position)))
        self._require(bind, self._consent.why_not(), forbidden)

    def forbidden(self, bind: Bind) -> tuple[str, ...]:
        """Return a short text about every rule of the policy that a contribution breaks."""
        reasons = list(self._refused)
        if bind.sites != self._plan.site_names:
            reasons.append("its contributors are not exactly the sites of the plan")
        if self._audit.records("run_finished", run=self._plan.run_name):
            reasons.append(_ENDED)
        return tuple(reasons)

    def _overspends(self, position: bytes) -> str | None:
        """Return why no noise may be sent for a step: no budget remains for one more."""
        spending = self._ledger
        if spending is None or spending.kept(self._plan.run_name, position) is not None:
            return None
        return None if spending.covering(self._plan) else spending.refuse(self._policy.privacy, self._plan)

    def _require(self, bind: Bind, withdrawn: str | None, forbidden: tuple[str, ...]) -> None:
        """Record all reasons against sending in the audit log and raise an error, if there are any."""
        if withdrawn is None and not forbidden:
            return
        reasons, run = "; ".join((*_clauses(withdrawn), *forbidden)), self._plan.run_name
        self._audit.write("release_refused", reason=reasons, run=run, round=bind.round, attempt=bind.attempt)
        if withdrawn is not None:
            raise ConsentEnded(self._plan.study, withdrawn, run)
        what = f"This site's policy does not allow sending a contribution: {reasons}."
        raise PolicyForbids(what=what, reason=SiteReason.POLICY_FORBIDS)


def _clauses(reason: str | None) -> tuple[str, ...]:
    return () if reason is None else (reason,)
