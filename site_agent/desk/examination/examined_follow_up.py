"""Finds what a person must decide about a time of follow-up: competing events, and a feature that is such a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from site_agent.desk.examination.finding import Finding
from site_agent.trainer.data.contract import BinaryTarget
from site_agent.trainer.data.tables import Table

# Names of a time of follow-up: futime, survival_days, time, time to event, os_months. Not a time of day, nor an age.
FOLLOW_UP: Final = re.compile(
    r"(.*(follow.?up|surviv|time.?to|futime|überleb|ueberleb|beobachtungs).*"
    r"|((os|pfs|dfs|rfs|tte|obs|event|censor\w*)[ ._-]?)?(time|days?|weeks?|months?|years?)"
    r"|(time|os|pfs|dfs|rfs)[ ._-](days?|weeks?|months?|years?)|tte)",
    re.I,
)


def follow_up_findings(table: Table) -> Iterator[Finding]:
    """Yield warnings that a person must accept or correct, and notes."""
    contract, target = table.contract, table.contract.target
    if not isinstance(target, BinaryTarget):
        return
    if contract.follow_up is None:
        for feature in contract.features:
            if FOLLOW_UP.fullmatch(feature.name):
                words = (
                    f"column {feature.name}: its name is that of a time of follow-up to {target.name}, which is known "
                    "only afterwards; if so, give it role: follow-up"
                )
                yield Finding(level="warning", key=f"follow-up:{feature.name}", words=words)
        return
    name, competing = contract.follow_up.name, contract.follow_up.competing
    censored = [code for code in target.negative or () if code not in competing]
    if len(censored) > 1:
        words = (
            f"column {target.name}: {', '.join(censored)} all count as censored; is one of them another event, such as "
            f"death from another cause? If so, list it under competing of {name}"
        )
        yield Finding(level="warning", key=f"competing:{target.name}", words=words)
    if competing:
        words = (
            f"column {target.name}: {', '.join(competing)} count as censored, although another event ended follow-up; "
            "hazard ratios are for this event alone, and a survival curve shows it as if the other could not happen"
        )
        yield Finding(level="note", key=f"competing:{target.name}", words=words)
