"""Decides whether this site takes part in a run of the coordinator, and ends this site's part in a run.

A run begins in this order: the plan, the policy, the persons here, the trainer's network, the run's rounds
(site_rounds.py). loop.py only passes messages to this module. The rules:

* the policy decides when a plan is announced. A changed configuration applies from the next start of the gate;
* a run without masks needs a plan with secure aggregation off, or a site that only receives;
* a plan is read in another thread, so that no plan holds up the gate. Later messages wait for it;
* every refusal is recorded before it is sent. It has a fixed reason, and no other name than that of a shared tensor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from host.starting_files import starting_values
from protos.errors import ProtocolError
from protos.fingerprints import fingerprint
from protos.masking.masking_refusals import MaskingRefused
from protos.plan.manifest import Manifest, manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import MOST_SAVED, Announcement, MalformedMessage, Refusal, SiteReason
from site_agent.approvals import allowed_beside, guard_of, keep_plan
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.gate.door import unexpected_answer
from site_agent.gate.mishaps import TrainerFailed, policy_refuses
from site_agent.gate.permission import GateRefusal, decide_plan
from site_agent.gate.site_masking import SiteMasking
from site_agent.gate.site_rounds import Rounds, Surroundings
from site_agent.hospital import Hospital
from site_agent.trainer_socket import Prepare, Prepared


class Admission:
    """Starts and ends this site's part in runs."""

    def __init__(
        self,
        hospital: Hospital,
        *,
        identity_key: Ed25519PrivateKey,
        audit: AuditLog,
        around: Surroundings,
        tell: Callable[[Refusal], Awaitable[None]],
        wait: Callable[[Consent], Awaitable[None]],
        began: Callable[[str, int], None],
    ) -> None:
        """Start without a run. `identity_key` is this site's long-term key, and the rest belongs to the gate's loop.

        Args:
            around: what the rounds of a run need.
            tell: sends a refusal, if the stream is open.
            wait: returns as soon as enough persons here have approved the plan.
            began: shows an operator that a run with this number of rounds has begun.
        """
        self._hospital, self._identity_key, self._audit = hospital, identity_key, audit
        self._around, self._tell, self._wait, self._began = around, tell, wait, began
        self._identity = fingerprint(identity_key.public_key().public_bytes_raw())
        self._read: tuple[bytes, Plan, Manifest] | None = None  # the newest plan, which each stream announces again

    async def announced(self, message: Announcement) -> tuple[Plan, Manifest]:
        """Return the plan that the coordinator announced with a message, and its manifest.

        Raises:
            ProtocolError: this version cannot read the plan.
            MalformedMessage: the run does not have the name that follows from its plan.
        """
        try:
            if self._read is None or self._read[0] != message.plan:
                self._read = await asyncio.to_thread(_read, message.plan)
        except ProtocolError:
            self._audit.write("coordinator_refused", reason="a plan that this version cannot read")
            raise
        _, plan, manifest = self._read
        if message.run != plan.run_name:
            raise MalformedMessage("a run that is not the one of its plan")
        return plan, manifest

    async def admit(self, plan: Plan, manifest: Manifest) -> Rounds:
        """Start a run as soon as this hospital's policy and persons allow the run.

        Raises:
            OperatorError: the policy refuses the plan, or the trainer cannot follow it.
            MaskingRefused: this site does not mask for the run.
        """
        await self._check_policy(plan, manifest)
        if starts := starting_values(Path(self._hospital.starting_files), plan):
            manifest = manifest_of(plan, starts)
        facts = {"run": plan.run_name, "plan": plan.digest.hex(), "manifest": manifest.digest.hex()}
        hospital, state, site = self._hospital, self._hospital.state_path, self._hospital.site
        guard, approvers = guard_of(hospital), hospital.policy.approvers
        consent = Consent(state, plan, approvers=approvers, now=lambda: datetime.now(UTC), guard=guard)
        keep_plan(state, plan)
        await asyncio.to_thread(consent.why_not)  # the first look at an approval computes the manifest of its plan
        await self._wait(consent)
        saved = await self._prepare_trainer(plan, manifest)
        beside = await asyncio.to_thread(allowed_beside, state, plan, approvers)
        method = plan.method_name
        receives = {"tier": "receiving"} if plan.tier_of(site) == "receiving" else {}
        self._audit.write("run_joined", rounds=plan.rounds, method=method, **receives, **facts)
        self._began(plan.run_name, plan.rounds)
        structlog.get_logger().info("run_joined", run=plan.run_name, method=method, rounds=plan.rounds)
        return Rounds(
            plan=plan,
            manifest=manifest,
            site=site,
            policy=self._hospital.policy,
            consent=consent,
            audit=self._audit,
            masking=self._masking(plan, manifest, beside),
            around=self._around,
            saved=saved,
        )

    async def _check_policy(self, plan: Plan, manifest: Manifest) -> None:
        """End this site's part in the run if the policy does not allow the study. Raises RefusedError."""
        refused = decide_plan(self._hospital, plan, manifest, identity=self._identity, audit=self._audit)
        if not refused:
            return
        refusal = "; ".join(refused)
        digests = {"plan": plan.digest.hex(), "manifest": manifest.digest.hex()}
        self._audit.write("plan_refused", reason=refusal, run=plan.run_name, **digests)
        await self._tell(Refusal(plan.run_name, SiteReason.POLICY_FORBIDS))
        raise policy_refuses(plan.study, refusal)

    async def _prepare_trainer(self, plan: Plan, manifest: Manifest) -> tuple[int, ...]:
        """Let the trainer build this site's neural network. Return the training states that the trainer has on disk.

        Raises:
            ProtocolError: the trainer's network has other shared tensors.
        """
        memory = self._audit.newest("contribution_released", "memory")  # what the trainer must still remember
        answer = await self._around.ask(Prepare(plan.run_name, plan.canonical, memory), 8 * MOST_SAVED)
        if not isinstance(answer, Prepared) or answer.manifest_digest != manifest.digest.hex():
            await self._tell(Refusal(plan.run_name, SiteReason.NETWORK_DIFFERS))
            raise ProtocolError(
                what="The shared parameters of this site's neural network differ from the list in the plan.",
                consequence="Nothing was sent.",
                remedy="Install the same version of global-layers at the coordinator and at all sites.",
            )
        try:
            return tuple(sorted(np.frombuffer(answer.payload, "<i8").tolist()))
        except ValueError as cause:
            raise unexpected_answer() from cause

    def _masking(self, plan: Plan, manifest: Manifest, beside: frozenset[str]) -> SiteMasking | None:
        if not plan.masking.required or plan.tier_of(self._hospital.site) == "receiving":
            return None
        return SiteMasking(
            plan=plan,
            manifest=manifest,
            site=self._hospital.site,
            identity_key=self._identity_key,
            store=self._audit.store,
            beside=beside,
        )

    async def end_part(
        self, run: str, ended: MalformedMessage | MaskingRefused | GateRefusal | ConsentEnded | TrainerFailed
    ) -> None:
        """Record why this site's part in a run ends, and send the coordinator the reason. `run` may be empty.

        A withdrawal is recorded for the run of its plan, because another run may have been announced since.
        """
        match ended:
            case MalformedMessage():
                self._audit.write("coordinator_refused", reason=str(ended))
                if run:
                    await self._tell(Refusal(run, SiteReason.COORDINATOR_MISBEHAVED))
            case MaskingRefused():
                await self._refuse(run, SiteReason.MASKING_REFUSED, because=str(ended))
            case GateRefusal(reason=reason):
                await self._refuse(run, reason)
            case ConsentEnded(because=because, run=withdrawn):
                await self._refuse(withdrawn, SiteReason.WITHDRAWN, because=because)
            case TrainerFailed(can_continue=False, failed=failed):
                await self._refuse(run, SiteReason(failed.reason), self._named(failed.tensor))

    def _named(self, tensor: str) -> str:
        """Return the name of a shared tensor. Another name could be a patient's."""
        shared = {entry.name for entry in self._read[2].tensors} if self._read else set()
        return tensor if tensor in shared else ""

    async def _refuse(self, run: str, reason: SiteReason, tensor: str = "", because: str = "") -> None:
        facts = {"because": because} if because else {}
        self._audit.write("participation_ended", run=run, reason=reason.name.lower(), tensor=tensor, **facts)
        if run:
            await self._tell(Refusal(run, reason, tensor))


def _read(raw: bytes) -> tuple[bytes, Plan, Manifest]:
    plan = plan_from_wire(raw)
    return raw, plan, manifest_of(plan)
