"""Plans that are added while the coordinator runs."""

from __future__ import annotations

from pathlib import Path

from protos.errors import OperatorError
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import plan_with


def test_a_disk_that_does_not_take_an_added_plan_ends_the_program(tmp_path: Path) -> None:
    """The engine keeps the failure, with which the program ends. It does not reach a signal's handler."""

    async def scene() -> None:
        stage, plan = Stage(tmp_path), plan_with(IDENTITIES)
        stage.engine._audit.store.read("PRAGMA query_only = 1")

        stage.engine.add([plan])

        assert isinstance(stage.engine.failure, OperatorError)
        assert stage.engine.finished.is_set()

    play(scene())
