"""What an administrator's command leaves in the state folder can be read by the service that it belongs to."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protos.durable import replace_file
from site_agent.boundary.audit import AuditLog
from site_agent.trainer.examination.acceptance import Acceptance, accept, find_acceptance, moment
from site_agent.trainer.files import write_whole

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")


def _owned(folder: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of everything in a folder."""
    return {
        str(found.relative_to(folder)): (found.stat().st_uid, stat.S_IMODE(found.stat().st_mode))
        for found in folder.rglob("*")
    }


@as_root
def test_an_acceptance_by_the_administrator_is_the_services_to_read(tmp_path: Path) -> None:
    """With the folders and the first record of the audit log, which are made on the way; the modes stay narrow."""
    state = tmp_path / "state"
    state.mkdir(mode=0o710)
    os.chown(state, NOBODY, NOBODY)
    now = datetime(2026, 1, 1, tzinfo=UTC)

    log = AuditLog(state / "audit.log", site="st-mary", now=lambda: now)
    log.write("data_accepted", by="A. Jones")
    log.close()
    accept(state, Acceptance(digest="0" * 64, warnings=("x",), query_digest=None, by="A. Jones", at=moment(now)))
    replace_file(state / "approved.json", b"{}")

    assert _owned(state) == {
        "audit.log": (NOBODY, 0o600),
        "approved.json": (NOBODY, 0o600),
        "data": (NOBODY, 0o700),
        "data/accepted": (NOBODY, 0o700),
        f"data/accepted/{'0' * 64}.json": (NOBODY, 0o600),
    }
    assert find_acceptance(state, "0" * 64) is not None


@as_root
def test_the_trainers_own_folder_decides_where_two_users_share_a_state(tmp_path: Path) -> None:
    """As in the packages: the state is the agent's, the folder of the table's records the trainer's."""
    (tmp_path / "data").mkdir(mode=0o700)
    os.chown(tmp_path / "data", NOBODY, NOBODY)

    write_whole(tmp_path / "data" / "accepted" / "x.json", b"{}")
    write_whole(tmp_path / "mine.json", b"{}")

    assert {owner for owner, _ in _owned(tmp_path / "data").values()} == {NOBODY}
    assert (tmp_path / "mine.json").stat().st_uid == 0


@as_root
def test_a_folder_for_everybody_hands_nothing_over(tmp_path: Path) -> None:
    """What root writes into a folder such as /tmp stays root's, whoever owns the folder."""
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, NOBODY, NOBODY)

    write_whole(tmp_path / "report.html", b"")

    assert (tmp_path / "report.html").stat().st_uid == 0
