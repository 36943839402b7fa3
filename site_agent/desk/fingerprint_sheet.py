"""Writes the sheet of identity keys, which hospitals compare with each other without the federation office.

Masks hide a site among the sites that the plan lists. If the office listed keys of its own, it could remove these
masks. No program can detect that, but persons can. Each hospital prints this sheet from the plan that it has to
approve. A person reads the number of the list and the hospital's own line to every other hospital.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from protos.fingerprints import grouped
from protos.plan.canonical import digest
from protos.plan.plan import Plan
from site_agent.desk.plan_review import Section, Table

SIGNATURES: Final = 2
_NUMBER_BYTES: Final = 20


def list_number(plan: Plan) -> str:
    """Return a short digest of the names, keys and tiers of all sites in a plan: 8 groups of 4 characters."""
    fields = [
        field for site in sorted(plan.sites, key=attrgetter("name")) for field in (site.name, site.identity, site.tier)
    ]
    return grouped(digest("list of identity keys", len(plan.sites), *fields)[:_NUMBER_BYTES])


def sheet_sections(plan: Plan, *, site: str, own: str | None) -> Iterator[Section]:
    """Yield all sections of the sheet of identity keys.

    Args:
        own: the fingerprint of the identity key on this computer; None if this user cannot read it.
    """
    yield Section(
        f"Study {plan.study}, version {plan.version}",
        (f"Plan digest {plan.digest.hex()}", f"Number of the list: {list_number(plan)}"),
    )
    yield Section("This hospital", (own_line(plan, site=site, own=own),))
    rows = tuple((entry.name, entry.identity, "", "") for entry in sorted(plan.sites, key=attrgetter("name")))
    head = ("site", "identity key", "read by (person, called number)", "equal? day and initials")
    yield Section("Every site of the plan", _TO_DO, Table(head, rows))
    yield Section("What equal sheets show, and what they do not show", _LIMITS)


def is_refused(plan: Plan, *, site: str, own: str | None) -> bool:
    """Return whether the plan lists another identity key than this computer's, or not this site."""
    listed = next((entry.identity for entry in plan.sites if entry.name == site), None)
    return listed is None or own not in (None, listed)


def own_line(plan: Plan, *, site: str, own: str | None) -> str:
    """Return a sentence that says whether the plan lists the identity key of this computer."""
    listed = next((entry.identity for entry in plan.sites if entry.name == site), None)
    if listed is None:
        return f"The plan does not list the site {site}. Do not approve this plan."
    if own is None:
        return (
            f"The plan lists {listed} for {site}. Run `site-agent identity` as the agent's user, and compare the two "
            "keys."
        )
    if own != listed:
        return f"The plan lists {listed} for {site}, but the key on this computer is {own}. Do not approve this plan."
    return f"The plan lists the key of this computer for {site}: {own}."


_TO_DO: Final = (
    "Two persons of this hospital call each other hospital. The federation office must not have given the number "
    "called.",
    "Both hospitals read the number of the list aloud. Then each hospital reads its own line, and the other hospital "
    "compares this line with its own sheet.",
    "Do not approve the plan if anything differs, if a hospital does not exist, or if a hospital does not know the "
    "study.",
)
_LIMITS: Final = (
    "Equal numbers of the list show that both hospitals received the same list. If a hospital has read its own line "
    "aloud, the key in this line belongs to that hospital. If all lines are compared, the federation office has "
    "invented no site of the list.",
    "The comparison does not show who uses a key later, whether a hospital's computer is safe, or whether a site is "
    "honest. If a new version of the plan has the same number of the list, no new comparison is needed.",
)
