"""Records which vectors this site has masked, so that no step is answered in two ways, and the sums that it answered.

Two vectors in one context have the same masks, so their difference is visible at once. These rows prevent this, and do
not rely on what the coordinator or another site remembers. They are in the gate's store (host/record_store.py) and are
written in the transaction of the release, before a byte leaves. Source: docs/privacy.md, "The rules of each gate". The
rules:

* attempts at a step only increase, also after a restart or a new key session;
* a new step comes after every step that was masked;
* a masked step is repeated only for the same received bytes, with the identical vector and under a new context;
* a sum of one plan can be subtracted from a sum of another. So every run for which this site ever masked counts,
  whatever its study is called, with its sites and rule. Only persons here exclude a run, by its name (approvals.py);
* no row is changed or deleted. Contexts and keys are never on disk.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from typing import Final

from host.record_store import Store, append_only
from protos.masking.answered_sets import Answer
from protos.masking.masking_refusals import Reason, require

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS answered (run TEXT PRIMARY KEY, sites TEXT NOT NULL, rule TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS masked (
    run TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL, position BLOB NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (run, step, attempt)
) STRICT;
{append_only("answered")}{append_only("masked")}"""
_DIGEST_BYTES: Final = 32


class MaskedSteps:
    """The vectors that a site has masked in one run, and the sums that it answered in others."""

    def __init__(self, store: Store, answer: Answer) -> None:
        """Prepare the tables in the gate's store. `answer` has the contributors of this run. Raises StoreError."""
        store.define(_SCHEMA)
        self._store, self._answer = store, answer

    def add(self, step: int, attempt: int, position: bytes, vector: bytes) -> None:
        """Record the vector that will be masked. Nothing may be sent before the transaction is on disk.

        Args:
            position: digest of run, step and everything that was sent for the step, 32 bytes.
            vector: digest of the whole encoded vector before masking, 32 bytes.

        Raises:
            MaskingRefused: the step is not permitted, or not with this vector. Then the site must not mask.
            StoreError: the row cannot be written.
        """
        if {len(position), len(vector)} != {_DIGEST_BYTES}:
            raise ValueError("a position and a vector's digest have 32 bytes")
        run, sites = self._answer.run, json.dumps(sorted(self._answer.sites))
        with self._store.transaction():
            self._require(step, attempt, position, vector)
            self._store.write("INSERT OR IGNORE INTO answered VALUES (?, ?, ?)", run, sites, self._answer.rule)
            self._store.write("INSERT INTO masked VALUES (?, ?, ?, ?, ?)", run, step, attempt, position, vector)

    def _require(self, step: int, attempt: int, position: bytes, vector: bytes) -> None:
        """Check that this attempt comes after those of its step, or after all steps, with the same vector as before."""
        newest = "SELECT attempt, position, vector FROM masked WHERE run = ? AND step = ? ORDER BY attempt DESC LIMIT 1"
        before = self._store.read(newest, self._answer.run, step)
        for last_attempt, last_position, last_vector in before:
            require(attempt > last_attempt, Reason.NOT_INCREASING)
            require(hmac.compare_digest(position, last_position), Reason.OTHER_POSITION)
            require(hmac.compare_digest(vector, last_vector), Reason.OTHER_VECTOR)
        later = "SELECT 1 FROM masked WHERE run = ? AND step > ? LIMIT 1"
        require(bool(before) or not self._store.read(later, self._answer.run, step), Reason.NOT_INCREASING)

    def answered_beside(self, allowed: Iterable[str]) -> list[Answer]:
        """Return the sums that this site answered in other runs, except the runs that persons here allowed."""
        found, excluded = self._store.read("SELECT * FROM answered ORDER BY run"), {self._answer.run, *allowed}
        return [Answer(run, frozenset(json.loads(sites)), rule) for run, sites, rule in found if run not in excluded]
