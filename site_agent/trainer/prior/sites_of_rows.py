"""With which sites this version of the table was already added up; the trainer's own memory.

Two sums over different sets of sites differ by the sums of the sites that are in one of them only. Statistics and
Newton sums depend on the rows alone, so this holds over studies too. So one version of the rows answers for one set of
sites, however many studies these agree on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protos.errors import RefusedError
from protos.plan.plan import Plan
from site_agent.trainer.trainer_files import write_whole

_FILE: Final = "prior-sets.json"


class OtherSites(RefusedError):
    """These rows were added up with other sites before."""

    def __init__(self, before: list[str], now: list[str]) -> None:
        gone, come = sorted(set(before) - set(now)), sorted(set(now) - set(before))
        changes = [f"without {', '.join(gone)}"] * bool(gone) + [f"with {', '.join(come)}"] * bool(come)
        super().__init__(
            what=f"Sums of this very table were added up before by other sites; this plan is {' and '.join(changes)}.",
            consequence="Nothing left this site: the difference of both sums would be that of single sites.",
            remedy="Agree on a plan with the same sites, or wait for a new version of the table.",
        )


def remember_sites(folder: Path, plan: Plan, version: str) -> None:
    """Put on disk, before anything is handed out, with whom these rows are added up.

    Args:
        folder: the trainer's own.
        plan: with federated-prior.
        version: digest of the rows.

    Raises:
        OtherSites: these rows were added up with others.
        UnavailableError: the disk does not take it.
    """
    path = folder / _FILE
    known: dict[str, list[str]] = json.loads(path.read_bytes()) if path.exists() else {}
    sites = [site for site in plan.site_names if plan.tier_of(site) == "training"]
    if known.get(version, sites) != sites:
        raise OtherSites(known[version], sites)
    if version not in known:
        write_whole(path, json.dumps(known | {version: sites}, indent=1).encode())
