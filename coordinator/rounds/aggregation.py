"""Adds up the masked or unmasked contributions of one round, chunk by chunk.

Memory is one model, whatever the number of sites: no site's vector is ever stored. A chunk is accepted only from a
bound site, in sequence, and of the right size. Integers modulo 2**32 and 2**64 make the sum independent of the order of
arrival, and so are those modulo 2**8 and 2**16. Source: docs/privacy.md, "Integers".
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from protos.numbers.chunk_layout import Layout
from protos.numbers.short_integers import WIDTHS, Integers
from protos.wire.messages import MalformedMessage


class RunningSum:
    """Adds up the contributions of one attempt, and records how many chunks of each site were added."""

    def __init__(self, parameters: int, bits: int = 32) -> None:
        """Reserve the memory. `parameters` is the largest number of values of so many bits in a vector of the run."""
        self._memory: Integers = np.zeros(parameters, WIDTHS[bits])
        self._spare: Integers = np.empty(0, WIDTHS[bits])
        self._arrived: dict[str, int] = {}
        self.reset(Layout(0, 0), ())

    def reset(self, layout: Layout, sites: Iterable[str]) -> None:
        """Begin an attempt at a round with an empty sum for these contributing sites and this list of values."""
        self._layout = layout
        self._words = [np.zeros(layout.words_in(index), np.int64) for index in range(layout.chunks)]
        self._updates = self._memory[: layout.parameters]
        self._has_begun = [False] * layout.chunks  # the first chunk of a new attempt overwrites old values
        self._arrived = dict.fromkeys(sites, 0)
        self._missing = len(self._arrived)  # sites whose last chunk has not been added

    def arrived(self, site: str) -> int:
        """Return how many chunks of a site's contribution were added to the sum."""
        return self._arrived[site]

    def add(self, site: str, index: int, body: bytes | memoryview) -> bool:
        """Add one chunk of a site's contribution to the sum. Return whether it was the last chunk of this site.

        Raises:
            MalformedMessage: the site is not bound, the chunk is not the next one or not of its size.
        """
        if self._arrived.get(site) != index or index >= self._layout.chunks:
            raise MalformedMessage("a chunk out of order")
        if len(body) != self._layout.chunk_bytes(index):
            raise MalformedMessage("a chunk of the wrong size")
        words, updates = self._words[index], self._updates[self._layout.updates_slice(index)]
        np.add(words, self._layout.words(body, index), out=words)  # wraps on purpose: modulo 2**64
        arrived = self._layout.updates(body, index)
        if self._has_begun[index]:
            np.add(updates, arrived, out=updates)  # and modulo 2**bits
        else:
            updates[...], self._has_begun[index] = arrived, True
        self._arrived[site] = index + 1
        is_last = index + 1 == self._layout.chunks
        self._missing -= is_last
        return is_last

    def keep(self) -> Integers:
        """Return the complete sum of updates. It stays as it is until the sum after the next one begins."""
        kept, memory = self._updates, self._memory
        self._memory = self._spare if self._spare.size == memory.size else np.zeros_like(memory)
        self._spare = memory
        return kept

    @property
    def sites(self) -> int:
        return len(self._arrived)

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    @property
    def is_consistent(self) -> bool:
        """Return whether the check words in each chunk add up to the number of sites. Then all masks cancelled."""
        return all(int(words[0]) == len(self._arrived) for words in self._words)

    @property
    def is_void(self) -> bool:
        """Return whether some site sent a void. Then all masks cancelled, and all numbers of the sum are random."""
        return not self.is_consistent and all(int(words[0]) % (1 << 32) == len(self._arrived) for words in self._words)

    @property
    def updates(self) -> Integers:
        """Return the sum of all encoded updates: integers of the layout's bits and shape. Valid once complete."""
        return self._updates

    @property
    def scalars(self) -> tuple[int, ...]:
        """Return, for each single number that sites send beside the updates, the sum over the sites."""
        return tuple(self._words[-1][1:].tolist())
