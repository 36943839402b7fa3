"""Defines the error messages for operators when a run or a connection ends too early at a site."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from host.audit_log import AuditLog
from host.clock_words import COMPARE_CLOCK, SET_CLOCK, at
from protos.errors import OperatorError, ProtocolError, RefusedError, UnavailableError
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.wire.messages import CoordinatorReason, Farewell, MalformedMessage, SiteReason
from site_agent.gate_socket import COORDINATOR_UNABLE, LOGIN_REFUSED, REFUSALS
from site_agent.trainer_socket import Failed

_REMEDIES: Final = {
    "connection_refused": "Ask the federation office whether the coordinator runs, and whether the port is right.",
    "name_unknown": "Check the name in hospital.yaml and in the invitation, and the resolver of this computer.",
    "name_differs": "The coordinator's certificate has another name. Use the invitation's, or ask the office.",
    LOGIN_REFUSED: "The proxy wants a Basic login, or refuses that of proxy-login. Correct it and restart site-agent.",
    "proxy_403": "The proxy forbids this way. Ask the network department to allow CONNECT to both ports.",
    "proxy_fails": "The proxy did not reach the coordinator. Check `proxy` in hospital.yaml, or ask who runs it.",
    "unavailable": "If this lasts, ask the network department whether this computer may connect to the coordinator.",
}

OTHER_PLAN: Final = "Tell the researcher this reason. Another plan may be needed, or another policy in hospital.yaml."


class TrainerFailed(OperatorError):
    """The trainer process stopped, and has printed the reason."""

    code = "E013"

    def __init__(self, failed: Failed) -> None:
        super().__init__(
            what="The trainer of this site stopped. The trainer's own message in its log explains the reason.",
            consequence="Nothing from this round was sent.",
            remedy="Do what the trainer's message recommends, then start the site agent again.",
        )
        self.failed = failed
        self.exit_status = failed.exit_status  # a restart of the gate does not correct it either

    @property
    def can_continue(self) -> bool:
        """Return whether an operator can remove the cause of the trainer's error, for example a full disk.

        Then the run waits for the trainer.
        """
        is_own = self.failed.reason == SiteReason.TRAINER_FAILED
        return is_own and self.failed.exit_status == UnavailableError.exit_status


class AgentGone(OperatorError):  # a restart of the gate process continues the run with another agent
    """The agent, the process with network access, ended while the gate process needed it, or does not answer."""

    code = "E029"


def policy_refuses(study: str, reason: str) -> RefusedError:
    """Return the error that this hospital's policy does not allow a study."""
    what, nothing = f"This site's policy refuses the study {study}: {reason}.", "Nothing more is sent for this study."
    return RefusedError(what=what, consequence=nothing, remedy=OTHER_PLAN, code="E025")


def masks_nothing(refused: MaskingRefused) -> OperatorError:
    """Return the error that this site refuses to mask a contribution, with a remedy for the operator."""
    remedy = "Inform the federation office and the security officer. The audit log records the reason."
    if refused.reason in (Reason.OTHER_SETS, Reason.OTHER_RULES):
        remedy = (
            "Read with `site-agent review` what the sums of both plans show together. To allow it, approve the plan "
            "again with --beside and the name of the other run. Otherwise ask for another plan."
        )
    what = f"This site refuses to mask its contribution: {refused}."
    return ProtocolError(what=what, consequence="Nothing more is sent.", remedy=remedy)


def of_certificate(address: str, status: str, now: datetime, code: str) -> UnavailableError | None:
    """Return the error if the coordinator's certificate is expired, not yet valid or not trusted, otherwise None.

    `address` is HOST:PORT, `status` of gate_socket.STATUSES, `now` the time of this computer's clock, aware and in UTC.
    """
    judge = f"By this computer's clock, {at(now)}, the certificate of the coordinator at {address}"
    renew = f"{COMPARE_CLOCK} If it is right, ask the federation office to run `pki renew`."
    other = f"The certificate shown at {address} is not of this federation's authority."
    known = {
        "certificate_expired": (f"{judge} has expired.", renew),
        "certificate_not_yet_valid": (f"{judge} is not valid yet.", SET_CLOCK),
        "certificate_unproven": (other, "Ask the network department whether a device inspects TLS."),
    }
    if status not in known:
        return None
    what, remedy = known[status]
    return UnavailableError(
        what=what,
        consequence="No connection was made and nothing was sent.",
        remedy=f"{remedy} `openssl s_client -connect {address}` shows the certificate's issuer and days.",
        code=code,
    )


def misbehaved(malformed: MalformedMessage) -> ProtocolError:
    """Return the error that the coordinator sent a message that is not allowed."""
    remedy = "Tell the federation office. Start the site agent again after the office has found the cause."
    stopped = "This site has stopped, and sent no reply to the coordinator."
    return ProtocolError(what=f"The coordinator sent {malformed}.", consequence=stopped, remedy=remedy)


def is_over(farewell: Farewell, audit: AuditLog) -> bool:
    """Return true if all runs are over. Raise an error if a person must act or this site must reconnect.

    A run that a void ended is over for all sites alike. The log of each has one record of it, and only the site itself
    learns whether it has a reason there.
    """
    if farewell.reason is CoordinatorReason.RUN_VOIDED:
        if (run := unfinished_run(audit)) is not None:
            voids = {facts["void"] for facts in audit.records("contribution_released", run=run)} - {"no"}
            audit.write("run_voided", run=run, own_reason=", ".join(sorted(voids)) or "none")
        return True
    if farewell.reason is not CoordinatorReason.ALL_RUNS_OVER:
        raise parted(farewell)
    if (run := unfinished_run(audit)) is not None:
        raise RefusedError(
            what=f"All studies of the coordinator are over, and {run} has ended without this site.",
            consequence="Nothing more is sent. This site has no model and no report of this study.",
            remedy="Ask the federation office for the result. A repeated study needs a new version of its plan.",
            code="E026",
        )
    return True


def unfinished_run(audit: AuditLog) -> str | None:
    """Return the newest run in which this site still takes part according to its audit log, or None."""
    newest, ended = None, set[str]()
    for facts in audit.records("run_joined", "run_finished", "run_voided", "participation_ended"):
        if facts["event"] == "run_joined":
            newest = str(facts["run"])
        else:
            ended.add(facts["run"])
    return None if newest in ended else newest


def parted(farewell: Farewell) -> OperatorError:
    """Return the error that the coordinator ended the connection before the run was over."""
    if farewell.reason.is_final:
        return RefusedError(
            what=f"The coordinator ended this site's part in the run: {farewell.detail}.",
            consequence="Nothing more is sent.",
            remedy="Ask the federation office for the reason, then start the site agent again.",
            code="E026",
        )
    return _reconnects(
        f"The coordinator requires this site to reconnect: {farewell.detail}.", "You need not do anything."
    )


def stream_ended(address: str, status: str) -> OperatorError:
    """Return the error that explains to an operator why the connection to the coordinator ended."""
    at = f" at {address}" if address else ""
    if status in REFUSALS:
        return RefusedError(
            what=f"The coordinator{at} does not accept this site's certificate.",
            consequence="Nothing was sent. The certificate was revoked or replaced, or belongs to another federation.",
            remedy="Ask the federation office whether this site still belongs to the federation. If it sends a new "
            "invitation, replace the file that `invitation` in hospital.yaml names. Delete tls.key and tls.crt in the "
            "folder `agent` of the state folder, and start the site agent again.",
            code="E021",
        )
    if status == COORDINATOR_UNABLE:
        what = f"The coordinator{at} cannot write its records, usually because its disk is full."
        return _reconnects(what, "Tell the federation office. This site tries again by itself.")
    told = "the stream ended" if status == "ended" else status
    return _reconnects(f"The coordinator{at} cannot be reached ({told}).", remedy_of(status))


def remedy_of(status: str) -> str:
    """Return what a person can do if the coordinator cannot be reached, by a word of gate_socket.STATUSES."""
    status = "unavailable" if status == "deadline_exceeded" else status  # as behind a firewall that drops packets
    return f"{_REMEDIES.get(status, 'You need not do anything.')} This site tries again by itself."


def reads_nothing() -> UnavailableError:
    """Return the error that the coordinator sends more and more requests, and reads no answer."""
    return _reconnects("The coordinator does not read this site's messages.", "You need not do anything.")


def agent_gone() -> AgentGone:
    """Return the error that the agent process of this site has ended, or does not read or answer in time."""
    return AgentGone(
        what="The agent of this site (the process with network access) has ended or does not answer.",
        consequence="Nothing is lost. The round continues when gate and agent run again.",
        remedy="Read the agent's last message. The services start again by themselves. At a terminal, run `site-agent "
        "join` again.",
    )


def _reconnects(what: str, remedy: str) -> UnavailableError:
    return UnavailableError(
        what=what, consequence="Nothing is lost. The round continues with a new connection.", remedy=remedy, code="E020"
    )


def agent_misbehaved(malformed: MalformedMessage) -> ProtocolError:
    """Return the error that the agent sent a message to the gate process that is not allowed."""
    return ProtocolError(
        what=f"The agent of this site (the process with network access) sent {malformed}.",
        consequence="This site has stopped, and sent no reply to the agent.",
        remedy="Install the same version of agent, gate and trainer. If the versions are equal, inform the security "
        "officer.",
    )
