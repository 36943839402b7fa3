"""Detects that this site's record of the spent privacy budget was lost, so that spent budget is not spent again.

A site writes a mark when it enrols, before it has a certificate: a file beside the ledger, and a record in the audit
log. Either is enough. A member of a federation without a mark has lost its ledger, and what was spent is not known.
The rules:

* unknown means spent: after a loss the budget of a year is spent, and that of every study that was approved before;
* a loss is a file and a record too. It is never removed, and a later loss is added;
* a person who restarts the log of a rolled back state shows that payments after the older state are missing. That is
  one loss, even if the log is restarted again later;
* `restore` restarts the log too. A restore is a loss if the coordinator has confirmed records that the backup lacks. It
  is also a loss if a person restarts the log again before the coordinator has cosigned it.

The other places that show an earlier life of this site are the agent's certificate, persons' approvals of private
plans, and the federation office's register, which the coordinator reports at enrolment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from audit.log_files import OLDER_STATE, RESTARTED, RESTORED_FROM
from audit.own_log import COSIGNED, AuditError, AuditLog
from host.durable import keep_record, on_disk
from protos.errors import RefusedError
from protos.plan.documents import Document
from site_agent.approvals import all_approvals
from site_agent.state_folders import gate_folder

YEAR: Final = timedelta(days=365)
LOST: Final = "privacy_ledger_lost"
_SETTLED: Final = ("privacy_ledger_begun", LOST, RESTARTED, OLDER_STATE)
Record = TypeVar("Record", bound=Document)


class Loss(Document):
    """One loss of the ledger.

    Attributes:
        at: aware time, ISO 8601, at which this site detected the loss.
        studies: the names of the studies that were approved here before. Their budgets are spent permanently.
    """

    at: str
    studies: tuple[str, ...] = ()

    @property
    def until(self) -> datetime:
        """Return the time at which the privacy budget of a year is available again after this loss."""
        return datetime.fromisoformat(self.at) + YEAR


class _Mark(Document):
    begun: str
    losses: tuple[Loss, ...] = ()


def settle_ledger(state: Path, audit: AuditLog, *, is_member: bool) -> tuple[Loss, ...]:
    """Write the ledger's mark if it is missing, and record a loss of the ledger. Return all losses, oldest first.

    Args:
        is_member: this site has a certificate, or the coordinator reports that it had one before.

    Raises:
        AuditError: the mark cannot be written, so this site must not take part.
        RefusedError: the mark cannot be read.
    """
    kept, logged = read_mark(state), list(audit.records(*_SETTLED))
    begun, lost, restarts, older = ([facts for facts in logged if facts["event"] == event] for event in _SETTLED)
    losses, now = _losses(kept, (*lost, *audit.earlier_records(LOST))), audit.time()
    is_rolled_back = _is_rolled_back(audit, restarts, losses) or _is_older(audit, older, losses)
    if (kept is None and not begun and _has_lived(state, audit, is_member=is_member)) or is_rolled_back:
        losses = (*losses, Loss(at=now, studies=tuple(sorted({one.study for _, one in all_approvals(state)}))))
    if not begun:
        audit.write("privacy_ledger_begun")
    recorded = {facts["at"] for facts in lost}
    for loss in losses:
        if loss.at not in recorded:
            audit.write("privacy_ledger_lost", at=loss.at, studies=list(loss.studies))
    mark = _Mark(begun=kept.begun if kept else now, losses=losses)
    if mark != kept:
        with on_disk(
            what="The file ledger.mark, which protects the record of the spent privacy budget, cannot be written",
            consequence="Nothing was sent.",
            kind=AuditError,
        ):
            keep_record(_path(state), mark.model_dump_json().encode())
    return losses


def known_losses(state: Path, audit: AuditLog) -> tuple[Loss, ...]:
    """Return all losses of the privacy ledger that its mark or an audit log of this site records, oldest first.

    Raises:
        RefusedError: the mark cannot be read.
    """
    return _losses(read_mark(state), audit.all_records(LOST))


def _losses(kept: _Mark | None, logged: Iterable[Mapping[str, Any]]) -> tuple[Loss, ...]:  # Any: every JSON type
    found = {facts["at"]: Loss(at=facts["at"], studies=tuple(facts["studies"])) for facts in logged}
    found |= {loss.at: loss for loss in (kept.losses if kept else ())}
    return tuple(found[at] for at in sorted(found))


def why_spent(losses: tuple[Loss, ...], study: str, now: datetime) -> str | None:
    """Return why no privacy budget remains for a study after losses of the ledger. Return None if budget remains."""
    if any(study in loss.studies for loss in losses):
        return f"the record of what the study {study} has spent was lost, so its whole epsilon is treated as spent"
    until = max((loss.until for loss in losses), default=now)
    if now < until:
        return (
            f"the record of spent epsilon was lost, so the whole epsilon of a year is treated as spent until {until:%F}"
        )
    return None


def _has_lived(state: Path, audit: AuditLog, *, is_member: bool) -> bool:
    """Return whether this site has lived before its audit log and its earlier logs begin."""
    if audit.is_continued:  # the oldest files were deleted by age, and the log is signed since
        return False
    if is_member and not audit.all_records("enrolled"):
        return True
    approved = {facts["plan"] for facts in audit.all_records("plan_approved")}
    private = (one for plan, one in all_approvals(state) if plan is None or plan.privacy is not None)
    return any(one.plan_digest not in approved for one in private)


def _is_rolled_back(audit: AuditLog, restarts: Sequence[Mapping[str, Any]], losses: tuple[Loss, ...]) -> bool:
    """Return whether a person restarted the log of an older state, and no recorded loss covers this restart."""
    counted = max((loss.at for loss in losses), default="")
    if not restarts or RESTORED_FROM in restarts[-1] or counted >= restarts[-1]["time"]:
        return False
    return any(facts["time"] >= counted for facts in _signs_of_older_state(audit))


def _signs_of_older_state(audit: AuditLog) -> Iterator[Mapping[str, Any]]:
    """Yield records of earlier logs which show that the state is older, or can be older.

    A person copied an older state back, or restored a backup that was not compared. A restored log was compared with
    the coordinator's checkpoint before the coordinator cosigned it (`_is_older`).
    """
    restored: list[Mapping[str, Any]] = []  # not compared yet
    for facts in audit.earlier_records("log_refused", "state_restored", COSIGNED, RESTARTED):
        if facts["event"] == "log_refused" and "size" not in facts:  # perhaps of this site's own log
            yield facts
        elif facts["event"] == "state_restored":
            restored.append(facts)
        elif facts["event"] == COSIGNED:
            restored.clear()
        elif facts["event"] == RESTARTED and RESTORED_FROM not in facts:  # a log that is not compared follows
            yield from restored
            restored.clear()
    yield from restored


def _is_older(audit: AuditLog, older: Sequence[Mapping[str, Any]], losses: tuple[Loss, ...]) -> bool:
    """Return whether this site found since the last recorded loss that a person had restored an older state."""
    found = (*audit.earlier_records(OLDER_STATE), *older)
    return any(all(loss.at < facts["time"] for loss in losses) for facts in found)


def _path(state: Path) -> Path:
    return gate_folder(state) / "privacy" / "ledger.mark"


def read_mark(state: Path) -> _Mark | None:
    """Return the ledger's mark, or None if this site has none. Raises RefusedError if it cannot be read."""
    path = _path(state)
    return read_record(
        path,
        _Mark,
        what=f"The file {path} cannot be read. It shows since when this site records its privacy budget.",
        consequence="The gate process has ended, and nothing is sent for any study.",
    )


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
