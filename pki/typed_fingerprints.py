"""Fingerprints as people type them: capitals, spaces and missing hyphens do not matter.

Everything else does: a fingerprint that is cut short is another one. Compared in constant time.
"""

from __future__ import annotations

import hmac


def is_same_fingerprint(typed: str, expected: str) -> bool:
    """Whether a person typed the expected fingerprint, whatever the case, spaces and hyphens."""
    return hmac.compare_digest(_bare(typed).encode(), _bare(expected).encode())


def _bare(text: str) -> str:
    return "".join(text.split()).replace("-", "").lower()
