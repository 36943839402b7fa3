"""Compares fingerprints as people type them, ignoring capitals, spaces and missing hyphens.

A shortened fingerprint is a different one. The comparison takes constant time.
"""

from __future__ import annotations

import hmac

from protos.errors import RefusedError
from protos.fingerprints import regrouped


def is_same_fingerprint(typed: str, expected: str) -> bool:
    """Return whether a person typed the expected fingerprint, ignoring case, spaces and hyphens."""
    return hmac.compare_digest(_bare(typed).encode(), _bare(expected).encode())


def differing_fingerprints(site: str, typed: str, recorded: str) -> RefusedError:
    """Return the error that shows the typed fingerprint, the recorded fingerprint, and where the two differ."""
    given, known = _bare(typed), _bare(recorded)
    if len(given) != len(known):
        where = f"The first fingerprint has {len(given)} characters, and the second has {len(known)}."
    else:
        groups = [place for place in range(0, len(known), 4) if given[place : place + 4] != known[place : place + 4]]
        which = ", ".join(str(place // 4 + 1) for place in groups)
        where = f"The two fingerprints differ in group {which} of {len(known) // 4}."
    return RefusedError(
        what=f"The typed fingerprint differs from the key in the request of {site}. "
        f"You typed the fingerprint {regrouped(given)}. The fingerprint of the key is {recorded}. {where}",
        consequence="The site was not approved. No certificate was issued and no data was sent.",
        remedy=f"Call {site} at a telephone number that you had before. A person at that site runs `site-agent "
        f"identity` and reads the fingerprint aloud. If the person reads {recorded}, run `pki approve` with this "
        "fingerprint. If the person reads another fingerprint, someone else used the invitation: run `pki revoke "
        f"{site}` and `pki invite {site}`.",
    )


def _bare(text: str) -> str:
    return "".join(text.split()).replace("-", "").lower()
