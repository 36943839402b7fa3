"""A few seconds of every decoder's fuzzing, and the findings of longer runs. The long run is a command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.calls import besiege
from tests.fuzz.feeding import bounded_memory, feed
from tests.fuzz.targets import Target, targets

REPOSITORY = Path(__file__).parents[2]
FOUND = Path(__file__).with_name("found")


def fuzz(*words: str, findings: Path) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--findings", findings, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_decoder_ends_otherwise_than_it_says(tmp_path: Path) -> None:
    """Within limits of memory and time, mutated inputs are accepted or refused with the declared errors."""
    done = fuzz("--inputs", "1000", "--seconds", "0.1", findings=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("findings=0") == len(done.stdout.splitlines()) > 15


def test_what_was_found_once_is_borne_now(tmp_path: Path) -> None:
    """Every stored input ends as its decoder declares."""
    known = targets(tmp_path)
    kept = sorted(FOUND.glob("*/*.hex"))
    assert kept

    for path in kept:  # in hexadecimal, since an editor would change some of them
        target = known[path.parent.name]
        try:
            target.decode(bytes.fromhex(path.read_text()))
        except target.errors:
            continue


def endless(raw: bytes) -> str:
    """A decoder that never returns for some inputs."""
    while len(raw) % 2:
        time.monotonic()
    return "even"


def _greedy(raw: bytes) -> str:
    return str(len(bytearray(1 << 40 if len(raw) % 2 else 1)))


@pytest.mark.parametrize("decode", [endless, _greedy])
def test_a_decoder_that_hangs_or_hoards_is_found(decode: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that takes more time or memory than allowed is a finding, and the fuzzing continues."""
    monkeypatch.setattr("tests.fuzz.feeding.LONGEST_SECONDS", 0.05)
    target = Target(examples=[b"some bytes"], decode=decode, errors=(ValueError,))  # type: ignore[arg-type]

    with bounded_memory():
        done = feed(target, seed=0, inputs=12)

    assert 0 < len(done.findings) < 12 == done.inputs
    assert {finding.what.split(":")[0] for finding in done.findings} <= {"TooSlow", "MemoryError"}


def test_malformed_calls_do_not_disturb_a_run(tmp_path: Path) -> None:
    """In a site's own name, with its certificate and without: the coordinator ends each call and goes on."""
    told = besiege(tmp_path, 150, 0)
    assert told.is_borne, told
