"""Fingerprints as people type them: capitals, spaces and missing hyphens do not matter.

Everything else does: a fingerprint that is shortened is another one. Compared in constant time. A fingerprint that
differs is refused with both in view, because the office has to find out which of the two the hospital has.
"""

from __future__ import annotations

import hmac

from protos.errors import RefusedError
from protos.fingerprints import regrouped


def is_same_fingerprint(typed: str, expected: str) -> bool:
    """Whether a person typed the expected fingerprint, whatever the case, spaces and hyphens."""
    return hmac.compare_digest(_bare(typed).encode(), _bare(expected).encode())


def differing_fingerprints(site: str, typed: str, recorded: str) -> RefusedError:
    """Why a site is not approved: the fingerprint that was typed, the one of its key, and where they differ."""
    given, known = _bare(typed), _bare(recorded)
    if len(given) != len(known):
        where = f"The first has {len(given)} characters and the second has {len(known)}."
    else:
        groups = [place for place in range(0, len(known), 4) if given[place : place + 4] != known[place : place + 4]]
        which = ", ".join(str(place // 4 + 1) for place in groups)
        where = f"They differ in group {which} of {len(known) // 4}."
    return RefusedError(
        what=f"The typed fingerprint is not that of the key with which {site} asked. "
        f"You typed {regrouped(given)}. The key has {recorded}. {where}",
        consequence="Nobody was approved. No certificate was issued and no data was sent.",
        remedy=f"Telephone {site} at a number that you had before, and let a person there read `site-agent identity`. "
        f"If it is {recorded}, run `pki approve` with it. "
        f"If it is not, someone else used the invitation: run `pki revoke {site}` and `pki invite {site}`.",
    )


def _bare(text: str) -> str:
    return "".join(text.split()).replace("-", "").lower()
