"""Adds pairwise masks to the encoded vector, chunk by chunk.

Each pair of contributors shares a keystream as long as the vector. It has the same chunks and types of integers
(protos/numbers/chunk_layout.py): 64-bit words modulo 2**64, updates modulo 2**bits. The site whose name sorts first
adds the keystream, the other subtracts it. So the sum over all contributors contains no mask. The rules:

* a keystream's key depends on pair, context and cipher, so no two contexts share a mask;
* each chunk has its own part of the keystream, so chunks can be masked in any order with the same result;
* a masker masks each chunk once. A retransmission sends the stored bytes and never masks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Never, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from protos.masking.key_session import expand
from protos.masking.masking_refusals import Reason, require
from protos.numbers.chunk_layout import Layout
from protos.plan.canonical import digest, pack

_CIPHER: Final = "aes-256-ctr"
# The fastest of 2**14 to 2**17 in measurements: zeros, keystream and vector fit into a core's own cache together.
BLOCK_PARAMETERS: Final = 1 << 16
_BLOCK_WORDS: Final = 1 << 13
_BLOCK_BYTES: Final = 8 * _BLOCK_WORDS + 4 * BLOCK_PARAMETERS
_ZEROS: Final = memoryview(bytes(_BLOCK_BYTES))

Words: TypeAlias = npt.NDArray[np.uint64]
Updates: TypeAlias = npt.NDArray[np.unsignedinteger]
Numbers: TypeAlias = tuple[Words, Updates]


def round_key(pair_key: bytes, context: bytes) -> bytes:
    """Return the key of one pair's keystream in one round, 32 bytes."""
    return expand(pair_key, pack("round", context, _CIPHER))


def counter_block(chunk: int) -> bytes:
    """Return the start value of the AES counter for a chunk, 16 bytes. The chunk's keystream begins at this value.

    The key is new for every pair and context, so only the chunk number must differ. AES in counter mode counts in
    big-endian from the block's end (SP 800-38A, appendix B.1). So the chunk number is in the first eight bytes, which
    the count of blocks within a chunk never reaches.
    """
    return chunk.to_bytes(8, "big") + bytes(8)


class Masker:
    """Masks the vector of one site for one round. Only one thread may use it at a time."""

    def __init__(
        self, *, own: str, contributors: tuple[str, ...], pair_keys: Mapping[str, bytes], context: bytes, layout: Layout
    ) -> None:
        """Derive the round's keys.

        Args:
            contributors: U, sorted, with this site; the same set as in `context`.
            pair_keys: peer -> K_ij, for at least every other contributor.
            context: see `round_context`, 32 bytes.

        Raises:
            MaskingRefused: this site is not a contributor, or is the only one and so would have no mask.
        """
        if list(contributors) != sorted(set(contributors)) or len(context) != 32:
            raise ValueError("contributors are sorted, each once, and a context has 32 bytes")
        require(own in contributors and len(contributors) > 1, Reason.OTHER_SITES)
        peers = [peer for peer in contributors if peer != own]
        keys = [(round_key(pair_keys[peer], context), own < peer) for peer in peers]
        self._streams = [(_cipher(key), np.add if is_lower else np.subtract) for key, is_lower in keys]
        self._keystream = _aligned(_BLOCK_BYTES)
        self._layout = layout
        self._is_pending = [True] * layout.chunks

    def __repr__(self) -> str:
        return "Masker(hidden)"

    def __reduce_ex__(self, protocol: object) -> Never:
        raise TypeError("masks are neither copied nor written")

    def masked(self, body: memoryview, index: int) -> memoryview:
        """Return a copy of one chunk with this site's masks added.

        Args:
            body: the chunk's bytes; exactly as long as in the layout.

        Raises:
            ValueError: the length is wrong, or the chunk was masked before.
        """
        if len(body) != self._layout.chunk_bytes(index) or not self._is_pending[index]:
            raise ValueError("a chunk has its own length and is masked once")
        self._is_pending[index] = False
        out = np.empty(len(body), np.uint8).data
        self._add_masks(self._views(body, index), self._views(out, index), counter_block(index))
        return out

    def _views(self, body: memoryview, index: int) -> Numbers:
        """Return a chunk's words and updates as unsigned integers, without a copy."""
        words = np.frombuffer(body, "<u8", self._layout.words_in(index))
        return words, np.frombuffer(body, f"<u{self._layout.width}", offset=words.nbytes)

    def _add_masks(self, plain: Numbers, out: Numbers, start: bytes) -> None:
        """Write `plain` plus each peer's keystream from `start` into `out`, block by block."""
        for stream, _ in self._streams:
            stream.reset_nonce(start)
        for word_slice, change_slice in _blocks(plain[0].size, plain[1].size):
            self._add_block((plain[0][word_slice], plain[1][change_slice]), (out[0][word_slice], out[1][change_slice]))

    def _add_block(self, plain: Numbers, out: Numbers) -> None:
        words, updates = out
        size = words.nbytes + updates.nbytes
        zeros, keystream = _ZEROS[:size], self._keystream.data[:size]
        word_masks = self._keystream[: words.nbytes].view("<u8")
        update_masks = self._keystream[words.nbytes : size].view(updates.dtype)
        for stream, combine in self._streams:
            stream.update_into(zeros, keystream)
            if words.size:  # all wrap on purpose: sums are modulo 2**64 and 2**bits
                combine(plain[0], word_masks, out=words)
            combine(plain[1], update_masks, out=updates)
            plain = out  # a contributor has at least one peer, so all of `out` is written


def _blocks(words: int, updates: int) -> Iterator[tuple[slice, slice]]:
    """Yield the slices of words and updates for each block of keystream. Words come before updates."""
    word, update = 0, 0
    while word < words or update < updates:
        next_word = min(word + _BLOCK_WORDS, words)
        next_update = min(update + BLOCK_PARAMETERS, updates) if next_word == words else 0
        yield slice(word, next_word), slice(update, next_update)
        word, update = next_word, next_update


def _cipher(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES256(key), modes.CTR(counter_block(0))).encryptor()


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    """Allocate bytes that begin at a cache line: uint8 of shape (size,)."""
    room = np.empty(size + 63, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


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
    """Return the SHA-256 of all that is fixed in a round. Masks of sites that disagree on a part do not cancel.

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
