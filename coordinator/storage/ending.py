"""Stores which sites already know that all studies are over, so that the coordinator can inform the others later.

A site is informed when the end was sent on its open stream. The coordinator does not wait for a site that left its
study, is revoked, or was never a member.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from coordinator.rounds.performing import Peer
from host.durable import on_disk, replace_file
from protos.plan.plan import Plan
from protos.wire.messages import CoordinatorReason

FILE: Final = "heard-of-the-end.json"


class Ending:
    """Records the sites of all studies, and which of these sites are informed that all studies are over.

    Attributes:
        all_heard: set while all studies are over and every site is informed.
        under_way: set while a study has begun and not all are over.
    """

    def __init__(
        self, state: Path, identity_of: Callable[[str], str | None], revoked: Callable[[], Iterable[str]]
    ) -> None:
        """Read the list. `identity_of` returns a member's identity fingerprint, `revoked` the revoked sites."""
        self.all_heard, self.under_way = asyncio.Event(), asyncio.Event()
        self._path, self._identity_of, self._revoked = state / FILE, identity_of, revoked
        self._sites: dict[str, frozenset[str]] = {}  # by run
        self._gone: set[str] = set()
        self._heard = _read(self._path)

    def follow(self, plan: Plan) -> None:
        """Record that a study is active, or that the study was already over when this program started."""
        self._sites[plan.run_name] = frozenset(plan.listed_names)
        self.under_way.set()
        self.all_heard.clear()

    def left(self, site: str) -> None:
        """Record that a site has left its study and was informed of the end."""
        self._gone.add(site)

    def joined(self, site: str) -> None:
        """Record that a site takes part in a study, even if the site left this study before."""
        self._gone.discard(site)

    @property
    def awaited(self) -> list[str]:
        """Return the sites that were not yet informed that all studies are over."""
        missing, revoked = set[str](), set(self._revoked())
        for run, sites in self._sites.items():
            missing |= sites - self._heard.get(run, set()) - self._gone - revoked
        return sorted(site for site in missing if self._identity_of(site) is not None)

    @property
    def unaware(self) -> list[str]:
        """Return the sites that were not informed that all studies are over. Empty while a study is active."""
        return [] if self.under_way.is_set() else self.awaited

    def tell(self, peers: Mapping[str, Peer]) -> None:
        """Tell these sites that all studies are over, then end their connections.

        Raises:
            UnavailableError: the list of informed sites cannot be written to the disk.
        """
        self.under_way.clear()
        for peer in list(peers.values()):
            peer.end(CoordinatorReason.ALL_RUNS_OVER, "all studies of this coordinator are over")
        before = {run: set(heard) for run, heard in self._heard.items()}
        known = {*peers, *self._gone}
        for run, listed in self._sites.items():
            self._heard[run] = self._heard.get(run, set()) | (listed & known)
        if self._heard != before:
            self._write()
        if not self.awaited:
            self.all_heard.set()

    def _write(self) -> None:
        content = {run: sorted(heard) for run, heard in sorted(self._heard.items())}
        with on_disk(
            what="The coordinator cannot record which sites were informed that all studies are over",
            consequence="All studies are over, and their results are recorded. The coordinator stopped.",
        ):
            replace_file(self._path, json.dumps(content, indent=2).encode())


def _read(path: Path) -> dict[str, set[str]]:
    """Read the list of an earlier process. If it is lost, damaged or unreadable, sites are informed again."""
    try:
        return {str(run): {str(site) for site in heard} for run, heard in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
