"""Records which sites are informed that all studies are over, so that the coordinator can inform the others later.

A site is informed when the end was sent on its open stream. The coordinator does not wait for a site that left its
study, is revoked, or was never a member.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from host.audit_log import AuditLog
from protos.plan.plan import Plan

INFORMED: Final = "end_sent"


class Ending:
    """Records the sites of all studies, and which of these sites are informed that all studies are over.

    Attributes:
        all_heard: set while all studies are over and every site is informed.
    """

    def __init__(
        self, log: AuditLog, identity_of: Callable[[str], str | None], revoked: Callable[[], Iterable[str]]
    ) -> None:
        """Read the sites that an earlier process informed.

        `identity_of` returns a member's identity fingerprint, `revoked` the revoked sites.
        """
        self.all_heard, self._are_over = asyncio.Event(), False
        self._log, self._identity_of, self._revoked = log, identity_of, revoked
        self._sites: dict[str, frozenset[str]] = {}  # by run
        self._gone: set[str] = set()
        self._informed: defaultdict[str, set[str]] = defaultdict(set)  # by run
        for record in log.records(INFORMED):
            self._informed[record["run"]].update(record["sites"])

    def follow(self, plan: Plan) -> None:
        """Record that a study is active, or that the study was already over when this program started."""
        self._sites[plan.run_name] = frozenset(plan.listed_names)

    def left(self, site: str) -> None:
        self._gone.add(site)

    def joined(self, site: str) -> None:
        self._gone.discard(site)

    @property
    def awaited(self) -> list[str]:
        """Return the sites that were not yet informed that all studies are over."""
        missing, revoked = set[str](), set(self._revoked())
        for run, sites in self._sites.items():
            missing |= sites - self._informed[run] - self._gone - revoked
        return sorted(site for site in missing if self._identity_of(site) is not None)

    @property
    def unaware(self) -> list[str]:
        """Return the sites that were not informed that all studies are over. Empty while a study is active."""
        return self.awaited if self._are_over else []

    def record(self, connected: Iterable[str]) -> None:
        """Record that these sites will now be informed. Raises StoreError: then no site must be informed."""
        self._are_over = True
        known = {*connected, *self._gone}
        news = {run: (sites & known) - self._informed[run] for run, sites in self._sites.items()}
        records = [{"event": INFORMED, "run": run, "sites": sorted(sites)} for run, sites in news.items() if sites]
        if records:
            self._log.write_all(records)
        for run, sites in news.items():
            self._informed[run] |= sites
        if not self.awaited:
            self.all_heard.set()
