"""A masked federation of the real programs, in which torchrun starts the trainer of one hospital with two processes.

The trainer's processes have a network namespace of their own, with the loopback interface alone, as under their unit.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.ports import free_port
from tests.chaos.test_processes import REPOSITORY, Nursery, Services, copied, prepared, run
from tests.rehearsal.programs import children, own_environment

PROCESSES = 2
ALONE = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net"]
HELPERS_KILLED = 3


def only_loopback() -> bool:
    """Whether this user may create a network namespace with a loopback interface."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not only_loopback(), reason="this user may not create network namespaces")


class PartedNursery(Nursery):
    """Starts the trainers of one hospital in two parts, by torchrun or in one process, and all others as usual."""

    def __init__(self, hospital: str, *, has_processes: bool) -> None:
        """Divide the batches of this hospital."""
        self._hospital, self._has_processes = hospital, has_processes
        self.started: list[subprocess.Popen[bytes]] = []
        self.helpers_killed, self._journal = 0, 0

    def __exit__(self, *reason: object) -> None:
        """End torchrun, which ends its processes."""
        for process in self.started:
            process.terminate()
            process.wait(60)
        super().__exit__(*reason)

    def born(self, config: Path, log: Path, parts: int = 1) -> int:
        """Start a trainer; the id of torchrun's process if torchrun starts it."""
        if config.parent.name != self._hospital:
            return super().born(config, log, parts)
        if not self._has_processes:
            return super().born(config, log, PROCESSES)
        words = ["--nproc-per-node", PROCESSES, "--master-port", free_port(), "-m", "site_agent.trainer"]
        torchrun = [sys.executable, "-m", "site_agent.trainer.by_torchrun", *words, "--config", config]
        command = [*ALONE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *map(str, torchrun)]
        with log.open("ab") as file:
            self.started.append(
                subprocess.Popen(
                    command, cwd=REPOSITORY, env=own_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
            )
        return self.started[-1].pid

    def watch(self, services: Services) -> None:
        """Kill a helper whenever the run has gone on."""
        for process in self.started:
            process.poll()  # so that the kernel removes ended processes at once
        journals = services.rehearsal.folder.glob("coordinator/runs/*/journal.jsonl")
        size = sum(journal.stat().st_size for journal in journals)
        helpers = [child for child in children(self.started[-1].pid) if rank_of(child) == 1] if self.started else []
        if helpers and self.helpers_killed < HELPERS_KILLED and size > self._journal + 2000:
            os.kill(helpers[0], signal.SIGKILL)
            self.helpers_killed, self._journal = self.helpers_killed + 1, size


def rank_of(process: int) -> int | None:
    """The rank that torchrun gave a process."""
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks = [int(word.removeprefix(b"RANK=")) for word in words if word.startswith(b"RANK=")]
    return ranks[0] if ranks else None


@needs_namespaces
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_processes_of_a_hospital_and_killed_helpers_change_no_bit(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The run ends with the bits of a run in which one process of this hospital computes the same two parts."""
    folder = tmp_path_factory.mktemp("parted")  # a socket's path has at most 107 bytes
    rehearsal = prepared(folder / "one", is_masked=True, has_services=True)
    others = [copied(rehearsal, folder / name, has_services=True) for name in ("whole", "two", "killed")]
    hospital = rehearsal.hospitals[0].name
    with PartedNursery(hospital, has_processes=False) as nursery:
        expected, _ = run(rehearsal, 0, 0, nursery)
    with Nursery() as usual:
        whole, _ = run(others[0], 0, 0, usual)

    with PartedNursery(hospital, has_processes=True) as nursery:
        found, _ = run(others[1], 0, 0, nursery)
    with PartedNursery(hospital, has_processes=True) as nursery:
        after_kills, _ = run(others[2], 0, 0, nursery, nursery.watch)

    assert whole["shared"] != expected["shared"]  # the parts were really computed
    assert found == expected
    assert nursery.helpers_killed == HELPERS_KILLED
    assert after_kills == expected
