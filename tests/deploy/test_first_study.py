"""The first study, exactly as in docs/first-study.md; the test counts what a hospital types and edits."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from deploy.quickstart.ports import free_port
from tests.deploy.test_documentation import ROOT, fenced
from tests.institutions.runbook import Commands, File, is_answered, steps
from tests.rehearsal.programs import PROGRAMS, own_environment, running, says, wait_until

PAGE: Final = ROOT / "docs" / "first-study.md"
OFFICE: Final = "office"
HOSPITALS: Final = ("st-mary", "riverside", "northfield")
EXAMPLE: Final = HOSPITALS[0]
PATIENCE_SECONDS: Final = 120.0


class Walk:
    """Three hospitals and an office in folders side by side, and the programs that run there."""

    def __init__(self, folder: Path, stack: ExitStack, page: Path) -> None:
        self.folder, self.page, self.statuses = folder, page, dict[str, int]()
        self._stack, self._programs = stack, dict[str, subprocess.Popen[bytes]]()
        # The differences from the page: its ports, its fingerprints, the name of its run.
        self._real = {f"localhost:{port}": f"localhost:{free_port()}" for port in (8443, 8444)}

    def deal(self) -> None:
        """Run the page's lines of Python, which deal the tables."""
        (lines,) = fenced(self.page, "python")
        paths = os.environ | {"PYTHONPATH": str(ROOT / "deploy")}
        subprocess.run([sys.executable, "-c", lines], cwd=self.folder.parent, env=paths, check=True)

    def follow(self, heading: str) -> None:
        """Do what a section describes, and compare every output with the page."""
        for step in steps(heading, self.page):
            where = step.where.removeprefix("the ")
            for place in HOSPITALS if where == "each hospital" else (where,):
                if isinstance(step, File):
                    (self.folder / place / step.path).write_text(self._filled(step.content, place))
                else:
                    self._do(step, place)

    def end(self, place: str) -> int:
        """Wait until the program of a place has ended; its exit status."""
        self.statuses[place] = self._programs[place].wait(PATIENCE_SECONDS)
        return self.statuses[place]

    def log(self, place: str) -> str:
        """Return the output of the program that runs at a place."""
        return (self.folder / f"{place}.log").read_text()

    def _do(self, step: Commands, place: str) -> None:
        own_terminal, _, word = step.how.partition(", until it says ")
        if word:
            (line,) = step.lines
            if own_terminal.endswith(", after Ctrl-C there"):
                self._programs[place].send_signal(signal.SIGINT)
                assert self.end(place) == 0
            self._start(place, self._filled(line, place), word)
            return
        status = re.fullmatch(r"with status (\d+)", step.how)
        self._await("" if status or step.how == "in an editor" else step.how, place)
        expected = int(status[1]) if status else 0
        said = [self._typed(self._filled(line, place), place, expected) for line in step.lines]
        answer, text = self._filled(step.answer, place), "\n".join(part for part in said if part)
        if answer and not is_answered(answer, text):
            raise AssertionError(f"{place}: {step.lines}\nThe page promises:\n{answer}\nIt said:\n{text}")

    def _start(self, place: str, line: str, word: str) -> None:
        log = self.folder / f"{place}.log"
        log.unlink(missing_ok=True)
        self._programs[place] = self._stack.enter_context(running(log, *shlex.split(line), folder=self.folder / place))
        wait_until(says(log, word), PATIENCE_SECONDS)
        if told := re.search(r'"identity": "([a-z0-9-]+)", .*"event": "enrolment_awaits_approval"', log.read_text()):
            self._real[f"fingerprint-of-{place}"] = told[1]

    def _await(self, how: str, place: str) -> None:
        """Wait for the output that a person reads before typing."""
        if how == "when all programs have ended":
            assert {self.end(name) for name in (OFFICE, *HOSPITALS)} == {0}
        elif said := re.fullmatch(r"when the (agent|coordinator) says (\w+)", how):
            wait_until(says(self.folder / f"{place}.log", said[2]), PATIENCE_SECONDS)
        else:
            assert how == ""

    def _typed(self, line: str, place: str, status: int = 0) -> str:
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        line += " --yes" if line.startswith("site-agent approve ") else ""  # a person answers at a terminal
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder / place,
            env=own_environment() | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == status, f"{place}: {line}\n{done.stdout}{done.stderr}"
        if "site-agent identity " in line:
            self._real[f"fingerprint-of-{place}"] = done.stdout.split()[-1]
        if digest := re.search("digest of this examination is ([0-9a-f]+)", done.stdout):
            self._real[f"digest-of-{place}"] = digest[1]
        return done.stdout.strip()

    def _filled(self, text: str, place: str) -> str:
        text = text if place == OFFICE else text.replace(EXAMPLE, place)
        for shown, real in self._real.items():
            text = text.replace(shown, real)
        return text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_study(tmp_path: Path) -> None:
    """Every block, typed unchanged, has the effect and the output of the page, and a hospital gets its report."""
    with ExitStack() as stack:
        walk = Walk(tmp_path / "walkthrough", stack, PAGE)
        walk.deal()
        for heading in re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE):
            walk.follow(heading)

    assert set(walk.statuses.values()) == {0}
    assert set(walk.statuses) == {OFFICE, *HOSPITALS}
    assert not any("Traceback" in walk.log(place) for place in walk.statuses)
    assert any((walk.folder / EXAMPLE / "state" / "reports").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_statistics(tmp_path: Path) -> None:
    """After the rehearsal, the commands of its page print the plan and odds ratios, and where the page is."""
    (tmp_path / ".venv").symlink_to(PROGRAMS.parent)
    words = [sys.executable, ROOT / "deploy" / "quickstart", "--method", "fedavg", "--rounds", "1"]
    subprocess.run(words, cwd=tmp_path, env=own_environment(), check=True, timeout=600)
    rehearsal, *typed = next(iter(fenced(ROOT / "docs" / "statistics.md", "console"))).splitlines()
    said = subprocess.check_output(["bash", "-ec", "\n".join(typed)], cwd=tmp_path, env=own_environment(), text=True)

    assert rehearsal == "deploy/quickstart.sh"
    assert all(one in said for one in ("kind: statistics", "odds ratio", "results.html"))
