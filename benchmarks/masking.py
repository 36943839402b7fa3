"""How close masking comes to what this machine can do at best: `python benchmarks/masking.py`.

The rates that bound it are measured between the cases that they judge, on one thread:

* `aes`: AES-256-CTR by `update_into` between two buffers of 1 MiB, the cipher's own speed;
* `add`: uint32 addition in place of 128 KiB blocks that stay in a core's cache;
* `copy`: copying 64 MiB, more than the caches hold; uint32 addition out of the cache is shown beside it.

Source: PROTOCOL.md, section 3. Per peer every parameter needs 4 bytes of keystream and one addition
in cache; once it has to come from memory and go back, which costs no less than a copy:

    floor = 4 * parameters * (peers * (1 / aes + 1 / add) + 1 / copy) seconds

Measured is everything that a round costs a site: deriving the round's keys, building the ciphers
and masking the whole vector. Medians; the ratio is floor / measured, so 1 is the best possible.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protos.masking.stream import Masker
from protos.tensors import Layout

MIB = 1 << 20
SIZES = {"300k": 300_000, "1m": 1_000_000, "25m": 25_000_000}
PEERS = (2, 9, 29)
SECONDS_A_CASE = 3.0
FEWEST, MOST = 7, 201


@dataclass(frozen=True)
class Rates:
    """Bytes per second."""

    aes: float
    add: float
    add_out_of_cache: float
    copy: float

    def floor_seconds(self, parameters: int, peers: int) -> float:
        """The least that masking can take; see the first lines."""
        return 4 * parameters * (peers * (1 / self.aes + 1 / self.add) + 1 / self.copy)


def seconds(act: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def median_seconds(act: Callable[[], object], repetitions: int) -> float:
    """The median of several calls, after one that warms caches and pages."""
    act()
    return statistics.median(seconds(act) for _ in range(repetitions))


def measure_rates() -> Rates:
    """This machine's rates, now."""
    cipher = Cipher(algorithms.AES256(bytes(32)), modes.CTR(bytes(16))).encryptor()
    zeros, stream = bytes(MIB), bytearray(MIB)
    small, other = np.zeros(1 << 15, np.uint32), np.ones(1 << 15, np.uint32)
    large, more = np.zeros(16 * MIB, np.uint32), np.ones(16 * MIB, np.uint32)
    return Rates(
        aes=16 * MIB / median_seconds(lambda: [cipher.update_into(zeros, stream) for _ in range(16)], 15),
        add=32 * MIB / median_seconds(lambda: [np.add(small, other, out=small) for _ in range(256)], 15),
        add_out_of_cache=large.nbytes / median_seconds(lambda: np.add(large, more, out=large), 7),
        copy=large.nbytes / median_seconds(lambda: np.copyto(large, more), 7),
    )


def masking(layout: Layout, peers: int, buffer: bytearray, threads: int) -> Callable[[], None]:
    """One round of masking at the site in the middle: half of its peers are added, half subtracted."""
    names = tuple(f"site-{index:02d}" for index in range(peers + 1))
    own = names[len(names) // 2]
    keys = {name: hashlib.sha256(name.encode()).digest() for name in names}

    def act() -> None:
        context = os.urandom(32)
        masker = Masker(own=own, contributors=names, pair_keys=keys, context=context, layout=layout)
        masker.mask_all(buffer, threads)

    return act


def measure(parameters: int, peers: int, threads: int, budget_seconds: float) -> float:
    """Median seconds of masking a vector."""
    layout = Layout(parameters, 4)
    act = masking(layout, peers, bytearray(layout.total_bytes), threads)
    once = seconds(act)
    return median_seconds(act, max(FEWEST, min(MOST, int(budget_seconds / once))))


def compare_threads(parameters: int, peers: int) -> float:
    """Speed-up of two threads over one, measured in turns so that both meet the same machine."""
    layout = Layout(parameters, 4)
    buffer = bytearray(layout.total_bytes)
    one, two = masking(layout, peers, buffer, 1), masking(layout, peers, buffer, 2)
    one()
    two()
    turns = [(seconds(one), seconds(two)) for _ in range(FEWEST)]
    return statistics.median(alone / both for alone, both in turns)


def main() -> None:
    """Measure and print."""
    fractions: dict[str, float] = {}
    print(f"{'parameters':>12} {'peers':>5} {'floor ms':>10} {'measured ms':>12} {'ratio':>6}")
    seen: list[Rates] = []
    for name, parameters in SIZES.items():
        for peers in PEERS:
            before = measure_rates()
            measured = measure(parameters, peers, 1, SECONDS_A_CASE)
            after = measure_rates()
            # Other programs slow a shared machine now and then; the rates of the same moments judge.
            floor = statistics.mean(rates.floor_seconds(parameters, peers) for rates in (before, after))
            fractions[f"fraction_{name}_{peers}"] = floor / measured
            print(f"{parameters:>12,} {peers:>5} {floor * 1e3:>10.3f} {measured * 1e3:>12.3f} {floor / measured:>6.2f}")
            seen += [before, after]
    speedup = compare_threads(SIZES["25m"], 9)
    for label in ("aes", "add", "add_out_of_cache", "copy"):
        rate = statistics.median(getattr(rates, label) for rates in seen) / 1e9
        print(f"{label.replace('_', ' ')}: {rate:.2f} GB/s")
    print(" ".join(f"{key}={value:.2f}" for key, value in fractions.items()), f"speedup_two_threads={speedup:.2f}")


if __name__ == "__main__":
    main()
