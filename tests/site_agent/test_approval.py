"""Approval: nothing trains unless a person has agreed to exactly this plan."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from protos.errors import RefusedError
from protos.plan import Plan
from site_agent.approval import approve, find_approval, keep_plan
from tests.rehearsal.study import made_up_identities, plan_with

PLAN = plan_with(made_up_identities())
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CHANGES: dict[str, dict[str, Any]] = {
    "version": {"version": 2},
    "seed": {"seed": 1},
    "rounds": {"schedule": {"aggregate": "every-round", "epochs": 4, "batches_per_epoch": 1}},
    "quorum": {"quorum": 2},
    "masking": {"secure_aggregation": "required"},
    "clipping range": {"encoding": {"clipping_range": 16.0}},
    "a site's key": {
        "sites": [
            {"name": n, "identity": i} for n, i in ({**made_up_identities(), "c": made_up_identities("d")["d"]}).items()
        ]
    },
    "deadlines": {"deadlines": {"grace_seconds": 1.0}},
}


def test_nothing_is_approved_at_first(tmp_path: Path) -> None:
    """Without a person's yes there is none, also for a plan that was announced."""
    keep_plan(tmp_path, PLAN)

    assert find_approval(tmp_path, PLAN) is None


def test_an_approval_is_found_again_and_names_the_person(tmp_path: Path) -> None:
    """The file says who agreed, when, and to which plan and manifest."""
    given = approve(tmp_path, PLAN, by="A. Jones", at=AT)

    assert find_approval(tmp_path, PLAN) == given
    assert (given.by, given.at, given.plan_digest) == ("A. Jones", "2026-03-01T12:00:00+00:00", PLAN.digest.hex())


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_plan_needs_a_new_approval(tmp_path: Path, name: str) -> None:
    """Whatever is changed in a plan, the old yes does not cover it."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    changed: Plan = plan_with(made_up_identities(), changes=CHANGES[name])

    assert find_approval(tmp_path, changed) is None


@pytest.mark.parametrize("key", ["plan_digest", "manifest_digest"])
def test_an_approval_moved_to_another_plan_is_none(tmp_path: Path, key: str) -> None:
    """A file under the right name that speaks of another plan or manifest is no approval."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    (path,) = (tmp_path / "approvals").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "00" * 32}))

    assert find_approval(tmp_path, PLAN) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"by": "me"}', b"\xff", b"null"])
def test_an_approval_that_cannot_be_read_is_refused_aloud(tmp_path: Path, content: bytes) -> None:
    """A torn or forged file stops the site with a reason; it is not taken for a yes."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    (path,) = (tmp_path / "approvals").iterdir()
    path.write_bytes(content)

    with pytest.raises(RefusedError, match="cannot be read"):
        find_approval(tmp_path, PLAN)


def test_no_unfinished_file_is_left(tmp_path: Path) -> None:
    """Approvals and plans are written whole, in directories of their owner."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    keep_plan(tmp_path, PLAN)

    assert sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file()) == [".json", ".json"]
    assert stat.S_IMODE((tmp_path / "approvals").stat().st_mode) == 0o700
