"""Checks whether the persons at this hospital still approve a plan. The check runs before every chunk.

The approval is a file that `site-agent approve` and `site-agent withdraw` write. It is read again only if it was
replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from protos.errors import RefusedError
from protos.plan.plan import Plan
from site_agent.approvals import Approval, approval_path, find_approval, newest_version, why_not


class ConsentEnded(RefusedError):
    """The persons at this site no longer agree to the plan of a run. `because` is a clause for the log."""

    def __init__(self, study: str, because: str, run: str) -> None:
        super().__init__(
            what=f"This site takes no further part in the study {study}: {because}.",
            consequence="Nothing more is sent for this study. The audit log lists what was sent before.",
            remedy="For other studies, restart the site agent. To return to this study, run `site-agent approve`.",
        )
        self.because, self.run = because, run


class Consent:
    """The decisions of this hospital's people about one plan."""

    def __init__(
        self,
        state: Path,
        plan: Plan,
        *,
        approvers: int,
        now: Callable[[], datetime],
        guard: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Store what the check of one plan needs.

        `approvers` is the policy's number of persons. `now` returns aware times. `guard` refuses a file that a service
        could have written.
        """
        self.state, self.plan, self.approvers, self._now, self._guard = state, plan, approvers, now, guard
        self._path = approval_path(state, plan)
        self._seen: tuple[int, int, int] | None = None
        self._approval: Approval | None = None

    def why_not(self) -> str | None:
        """Return why no training and no sending is allowed under this plan now, or None if both are allowed.

        Raises:
            RefusedError: the file of the approval is no approval.
        """
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        except FileNotFoundError:
            self._seen, self._approval = None, None
        else:
            if seen != self._seen:
                self._guard(self.state)
                self._approval, self._seen = find_approval(self.state, self.plan), seen
        return why_not(self._approval, approvers=self.approvers, now=self._now())

    def require(self) -> None:
        """Check that the persons at this hospital approve the plan. Raises ConsentEnded: they do not, or no longer."""
        if (because := self.why_not()) is not None:
            raise ConsentEnded(self.plan.study, because, self.plan.run_name)


def refuse_replay(state: Path, plan: Plan) -> str | None:
    """Return why an approved plan is too old for this site to follow. Return None if it is not too old."""
    newest = newest_version(state, plan.study)
    return f"version {newest} of this study was approved here later" if newest > plan.version else None
