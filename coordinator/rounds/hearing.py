"""Handles messages of sites: decides if a site may take part, stores masking keys, and adds up contributions.

A refusal is one clause with the reason, which the site's operator reads. It follows from the site's certificate, not
from its own statements.

A message that fits no run of this coordinator is refused. A message about an attempt or agreement that has ended is
ignored.
"""

from __future__ import annotations

from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    Collecting,
    Completed,
    Event,
    FoundCorrupted,
    Gathering,
    Interrupted,
    Over,
    Working,
)
from coordinator.rounds.run import Run
from coordinator.storage.run_store import RunStore
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import Chunk, Join, KeyAdvert, KeySessionAcknowledgement, MalformedMessage


def refuse_identity(plan: Plan, site: str, identity_fingerprint: str | None) -> str | None:
    """Return why a site may not take part in the run of a plan. Return None if the site may take part.

    A certificate alone is not enough: the plan lists each site by the fingerprint of its identity key, and the register
    must have that key under the site's name.
    """
    listed = {entry.name: entry.identity for entry in plan.sites}
    if site not in listed:
        return f"the plan {plan.study} does not list {site}"
    if listed[site] != identity_fingerprint:
        return f"the plan {plan.study} lists {site} with another identity key"
    return None


def refuse_join(plan: Plan, manifest: Manifest, join: Join) -> str | None:
    """Return why the agreement that a site sent does not match the plan. Return None if the agreement matches."""
    if join.plan_digest != plan.digest:
        return "the site agreed to another plan"
    if join.manifest_digest != manifest.digest:
        return "the tensors that the site would send differ from the plan"
    return None


def has_what_it_needs(run: Run, store: RunStore, site: str, join: Join) -> bool:
    """Return whether a joining site has the state in memory or on disk from which it continues the run.

    A site that has sent its whole contribution continues with the next round.
    """
    state = run.state
    if not isinstance(state, Working):
        return True
    has_sent = isinstance(state, Collecting) and site in state.complete
    return store.is_current(join, state.attempt.round + has_sent)


def hear_of_keys(run: Run, site: str, message: KeyAdvert | KeySessionAcknowledgement) -> Event | None:
    """Store a site's message about masking keys. Only the other sites can check what the message contains.

    Raises:
        MalformedMessage: the message has another site's name.
    """
    state = run.state
    if message.site != site:
        raise MalformedMessage("a key or an acknowledgement in another site's name")
    if not isinstance(state, Agreeing) or message.key_session != state.attempt.key_session:
        return None  # an agreement that was restarted in the meantime
    if isinstance(message, KeyAdvert):
        run.adverts.setdefault(site, message)
        return Advertised(site, message.key_session)
    run.acknowledgements.setdefault(site, message)
    return Acknowledged(site, message.key_session)


def awaits_chunk(run: Run, site: str) -> bool:
    """Return whether the next chunk of a site's contribution belongs to the sum of the current attempt."""
    return isinstance(run.state, Collecting) and run.running_sum.awaits(site)


def hear_chunk(run: Run, site: str, chunk: Chunk) -> Event | None:
    """Add a chunk of a site's contribution to the sum of the current attempt at the round.

    Raises:
        MalformedMessage: this attempt collects no chunks, or the chunk is not the site's next one.
    """
    state, at = run.state, (chunk.round, chunk.attempt)
    if isinstance(state, Gathering | Over):
        raise MalformedMessage("a chunk of a round that is not collecting")
    current = (state.attempt.round, state.attempt.number)
    if not isinstance(state, Collecting) or at != current:
        was_made = chunk.attempt <= run.terms.past.get(chunk.round, -1)
        if at < current or was_made or (at == current and isinstance(state, Interrupted)):
            return None  # the chunk belongs to an attempt that became void before the chunk arrived
        raise MalformedMessage("a chunk of a round that is not collecting")
    if not run.running_sum.add(site, chunk.index, chunk.body):
        return None
    is_corrupted = run.running_sum.is_complete and not run.is_consistent
    return FoundCorrupted() if is_corrupted else Completed(site)
