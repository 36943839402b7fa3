"""The wall of attacks: each is refused by the real programs and succeeds against a weakened copy.

Usage: python -m tests.hostile.wall [--only NAME ...] [--list] [--processes N]

Prints a line per attack, in a fixed order: its name, what it tries, what the real programs did, and what the
weakened copy did. The last line is `attacks=N refused=N succeed_when_weakened=N`. The exit status is 0 only if
every attack was refused and every attack succeeded against its weakened copy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.attack import Attack

MODULES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("attacks_*.py")))  # none is forgotten


@dataclass(frozen=True)
class Outcome:
    """The result of an attack. A failure is the text of an error in the attack itself."""

    is_refused: bool
    succeeds_when_weakened: bool
    seconds: float
    failure: str = ""


def all_attacks() -> dict[str, Attack]:
    """Return every attack by its name, in the order of the wall."""
    found: dict[str, Attack] = {}
    for module in MODULES:
        for attack in importlib.import_module(f"tests.hostile.{module}").ATTACKS:
            if attack.name in found:
                raise ValueError(f"two attacks are named {attack.name}")
            found[attack.name] = attack
    return found


def outcome_of(name: str) -> Outcome:
    """Run an attack against the real programs and against its weakened copy."""
    attack, began = all_attacks()[name], time.monotonic()
    logging.disable(logging.CRITICAL)
    failure = ""
    results = {}
    for is_weak in (False, True):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                results[is_weak] = attack.run(is_weak)
        except Exception:  # an attack that breaks is neither refused nor successful, and its error is shown
            failure += traceback.format_exc()
    return Outcome(results.get(False) is False, results.get(True) is True, time.monotonic() - began, failure)


def _line_of(attack: Attack, outcome: Outcome) -> str:
    real = "refused by the real programs" if outcome.is_refused else "NOT REFUSED by the real programs"
    weak = "succeeds" if outcome.succeeds_when_weakened else "DOES NOT SUCCEED"
    return f"{attack.name}: {attack.sentence}: {real}; {weak} against a copy without {attack.without}"


def show(attacks: Sequence[Attack], outcomes: Iterable[Outcome]) -> int:
    """Print the lines as the outcomes arrive, then the figures; the exit status."""
    refused = succeeded = 0
    for number, (attack, outcome) in enumerate(zip(attacks, outcomes, strict=True), 1):
        print(f"{number}/{len(attacks)} {_line_of(attack, outcome)}", flush=True)
        if outcome.failure:
            print(outcome.failure, file=sys.stderr, flush=True)
        refused += outcome.is_refused
        succeeded += outcome.succeeds_when_weakened
    print(f"attacks={len(attacks)} refused={refused} succeed_when_weakened={succeeded}", flush=True)
    return 0 if refused == succeeded == len(attacks) > 0 else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the wall; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.wall", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="Run this attack alone. Repeat for several.")
    parser.add_argument("--list", action="store_true", help="Print the names and stop.")
    parser.add_argument("--processes", type=int, default=2, help="Attacks that run at the same time (default 2).")
    options = parser.parse_args(arguments)
    attacks = all_attacks()
    if unknown := set(options.only or ()) - set(attacks):
        parser.error(f"no attack has the name {', '.join(sorted(unknown))}. --list prints the names.")
    chosen = [attack for attack in attacks.values() if not options.only or attack.name in options.only]
    if left_out := [attack.name for attack in chosen if attack.needs_root and os.geteuid() != 0]:
        print(f"Left out, because they need root: {', '.join(left_out)}", file=sys.stderr)
        chosen = [attack for attack in chosen if attack.name not in left_out]
    if options.list:
        print("\n".join(f"{attack.name}: {attack.sentence}" for attack in chosen))
        return 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, options.processes), mp_context=context) as pool:
        return show(chosen, pool.map(outcome_of, [attack.name for attack in chosen]))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
