"""Computes the context of a masked vector: a digest of all values of a round that a site fixes before it masks.

The key of every mask of the round depends on the context. If two sites disagree on a field, their masks do not cancel,
and the sum of the check words shows it.
"""

from __future__ import annotations

from protos.plan.canonical import digest, pack


def encoding_name(clipping_range: float, sites: int, bits: int) -> bytes:
    """Return as bytes how numbers are encoded: the clipping range C, the number of sites K, and the integers' width."""
    how = f"fixed point modulo 2**{bits} and 2**64"
    return pack("masking encoding", how, float(clipping_range).hex(), sites)


def round_context(
    transcript: bytes,
    position: bytes,
    attempt: int,
    contributors: tuple[str, ...],
    manifest_digest: bytes,
    length_bytes: int,
    encoding: bytes,
) -> bytes:
    """Return the context of one round: the SHA-256 of all fixed values, 32 bytes.

    Args:
        transcript: T of the key session, 32 bytes.
        position: digest of run, step and everything that was sent for the step, 32 bytes.
        attempt: counts the attempts at this position, from 0.
        contributors: U, sorted.
        manifest_digest: of the meaning of each number in the vector, 32 bytes.
        length_bytes: the length of the whole vector.
        encoding: the result of `encoding_name`.

    Raises:
        ValueError: a field has the wrong size, or the contributors are not sorted.
    """
    if {len(transcript), len(position), len(manifest_digest)} != {32} or min(attempt, length_bytes - 1) < 0:
        raise ValueError("digests have 32 bytes, attempts count from 0 and a vector has bytes")
    if list(contributors) != sorted(set(contributors)):
        raise ValueError("contributors are sorted, each once")
    names = pack("masking contributors", *contributors)
    return digest("masking context", transcript, position, attempt, names, manifest_digest, length_bytes, encoding)
