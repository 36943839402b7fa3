"""How much memory a process may use: the least of the computer's and its control groups'."""

from __future__ import annotations

import os
from pathlib import Path

from site_agent.trainer.arithmetic import usable_memory_bytes

WHOLE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def put_limit(groups: Path, group: str, limit: str) -> None:
    """Write the limit of a control group."""
    (groups / group).mkdir(parents=True, exist_ok=True)
    (groups / group / "memory.max").write_text(f"{limit}\n")


def test_the_least_limit_of_all_groups_counts(tmp_path: Path) -> None:
    """That of a service, of its slice, or of the computer; a group without a limit changes nothing."""
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/other\n0::/system.slice/site-trainer.service\n")
    assert usable_memory_bytes(tmp_path, own) == WHOLE
    put_limit(tmp_path, "system.slice/site-trainer.service", "max")
    assert usable_memory_bytes(tmp_path, own) == WHOLE
    put_limit(tmp_path, "system.slice", "5000000")
    assert usable_memory_bytes(tmp_path, own) == 5_000_000
    put_limit(tmp_path, "system.slice/site-trainer.service", "4000000")
    assert usable_memory_bytes(tmp_path, own) == 4_000_000


def test_without_control_groups_it_is_the_computer_s(tmp_path: Path) -> None:
    """A missing file, or a file of another version, means no limit."""
    assert usable_memory_bytes(tmp_path, tmp_path / "missing") == WHOLE
