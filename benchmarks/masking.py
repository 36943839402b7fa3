"""Compares masking with the fastest speed that this machine allows: `python benchmarks/masking.py`.

The rates of the machine are measured on one thread, in turn with the cases that they are compared with:

* `aes`: AES-256-CTR by `update_into` between two buffers of 256 KiB, the cipher's own speed: larger
  ones leave the cache and are slower;
* `add`: uint32 addition in place of 128 KiB blocks that stay in a core's cache;
* `copy`: copying 64 MiB, more than the caches hold; uint32 addition out of the cache is shown beside it.

Source: docs/design/protocol.md, "Key sessions". For each peer every parameter needs 4 bytes of keystream and one
addition in cache. Each parameter is also read from memory and written back once, which costs at least a copy:

    floor = 4 * parameters * (peers * (1 / aes + 1 / add) + 1 / copy) seconds

It measures the whole cost of a round at a site: deriving the round's keys, building the ciphers and masking the whole
vector, each chunk into new memory. Rates and masking are measured in turns, in processor seconds of this thread. So
other programs on the machine disturb the ratio little. Each figure is the median over the turns. The ratio is floor /
measured, so 1 is the best possible. A value slightly above 1 is noise. The speed-up of two threads is in seconds of the
wall clock, the shortest of each: it needs two idle cores.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protos.masking.mask_stream import Masker
from protos.numbers.chunk_layout import Layout

MIB = 1 << 20
AES_BYTES = MIB // 4
SIZES = {"300k": 300_000, "1m": 1_000_000, "25m": 25_000_000}
PEERS = (2, 9, 29)
SECONDS_A_CASE = 6.0
SHORTEST_BURST_SECONDS = 0.004
FEWEST_TURNS, MOST_TURNS = 5, 101


@dataclass(frozen=True)
class Rates:
    """The rates of this machine in bytes per second."""

    aes: float
    add: float
    add_out_of_cache: float
    copy: float

    def floor_seconds(self, parameters: int, peers: int) -> float:
        """Return the shortest time in seconds in which this machine can mask. See the module's docstring."""
        return 4 * parameters * (peers * (1 / self.aes + 1 / self.add) + 1 / self.copy)


def processor_seconds(act: Callable[[], object], repetitions: int = 1) -> float:
    """Return the processor seconds of this thread for one call, averaged over several calls."""
    start = time.thread_time()
    for _ in range(repetitions):
        act()
    return (time.thread_time() - start) / repetitions


class Machine:
    """The buffers with which this machine's rates are measured."""

    def __init__(self) -> None:
        self._cipher = Cipher(algorithms.AES256(bytes(32)), modes.CTR(bytes(16))).encryptor()
        self._zeros, self._stream = bytes(AES_BYTES), bytearray(AES_BYTES)
        self._small = np.zeros(1 << 15, np.uint32), np.ones(1 << 15, np.uint32)
        self._large = np.zeros(16 * MIB, np.uint32), np.ones(16 * MIB, np.uint32)

    def rates(self) -> Rates:
        """Measure the rates now."""
        small, one = self._small
        large, ones = self._large
        return Rates(
            aes=AES_BYTES / processor_seconds(lambda: self._cipher.update_into(self._zeros, self._stream), 96),
            add=small.nbytes / processor_seconds(lambda: np.add(small, one, out=small), 256),
            add_out_of_cache=large.nbytes / processor_seconds(lambda: np.add(large, ones, out=large)),
            copy=large.nbytes / processor_seconds(lambda: np.copyto(large, ones)),
        )


def masking(layout: Layout, peers: int, buffer: bytearray, threads: int) -> Callable[[], None]:
    """Return a function for one round of masking at the middle site, which adds half of its masks and subtracts half.

    A site masks in one thread. Several threads have a masker each, and each its share of the chunks.
    """
    names = tuple(f"site-{index:02d}" for index in range(peers + 1))
    own = names[len(names) // 2]
    keys = {name: hashlib.sha256(name.encode()).digest() for name in names}

    def act() -> None:
        context = os.urandom(32)

        def share(first: int) -> None:
            masker = Masker(own=own, contributors=names, pair_keys=keys, context=context, layout=layout)
            for index in range(first, layout.chunks, threads):
                masker.masked(layout.body(buffer, index), index)

        if threads == 1:
            share(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(share, range(threads)))

    return act


@dataclass(frozen=True)
class Turn:
    """One measurement of the rates and of masking, next to each other."""

    rates: Rates
    floor_seconds: float
    measured_seconds: float


def take_turns(machine: Machine, parameters: int, peers: int) -> list[Turn]:
    """Measure the rates and masking in turns for some seconds, on one thread."""
    layout = Layout(parameters, 4)
    act = masking(layout, peers, bytearray(layout.total_bytes), threads=1)
    act()  # warms pages and caches
    repetitions = max(1, round(SHORTEST_BURST_SECONDS / processor_seconds(act)))
    turns: list[Turn] = []
    begin = time.monotonic()
    while len(turns) < FEWEST_TURNS or (time.monotonic() - begin < SECONDS_A_CASE and len(turns) < MOST_TURNS):
        rates = machine.rates()
        turns.append(Turn(rates, rates.floor_seconds(parameters, peers), processor_seconds(act, repetitions)))
    return turns


def compare_threads(parameters: int, peers: int) -> float:
    """Return how much faster two threads are than one, by the shortest of several wall-clock times."""
    layout = Layout(parameters, 4)
    buffer = bytearray(layout.total_bytes)
    shortest = {1: float("inf"), 2: float("inf")}
    for threads in (1, 2) * 60:
        act = masking(layout, peers, buffer, threads)
        start = time.perf_counter()
        act()
        shortest[threads] = min(shortest[threads], time.perf_counter() - start)
    return shortest[1] / shortest[2]


def main() -> None:
    """Measure masking, and print the times and rates."""
    machine, fractions, seen = Machine(), {}, []
    print(f"{'parameters':>12} {'peers':>5} {'floor ms':>10} {'measured ms':>12} {'ratio':>6}")
    for name, parameters in SIZES.items():
        for peers in PEERS:
            turns = take_turns(machine, parameters, peers)
            floor = statistics.median(turn.floor_seconds for turn in turns) * 1e3
            measured = statistics.median(turn.measured_seconds for turn in turns) * 1e3
            ratio = statistics.median(turn.floor_seconds / turn.measured_seconds for turn in turns)
            print(f"{parameters:>12,} {peers:>5} {floor:>10.3f} {measured:>12.3f} {ratio:>6.2f}", flush=True)
            fractions[f"fraction_{name}_{peers}"] = ratio
            seen += [turn.rates for turn in turns]
    speedup = compare_threads(4_000_000, 9)
    for label in ("aes", "add", "add_out_of_cache", "copy"):
        rate = statistics.median(getattr(rates, label) for rates in seen) / 1e9
        print(f"{label.replace('_', ' ')}: {rate:.2f} GB/s")
    print(" ".join(f"{key}={value:.2f}" for key, value in fractions.items()), f"speedup_two_threads={speedup:.2f}")


if __name__ == "__main__":
    main()
