"""A trainer without a study frees its memory, and continues with the next request."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from protos.plan.manifest import manifest_of
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer import standby
from site_agent.trainer_socket import Agreed, Check, Prepare, Prepared, Trained
from tests.rehearsal.programs import wait_until
from tests.site_agent.trainer.asked import Asked, as_bytes, train, trainer
from tests.site_agent.trainer.sites import approve_plan, make_plan, make_site

IMPATIENT = """
import site_agent.trainer.standby
site_agent.trainer.standby.PATIENCE_SECONDS = 0
from site_agent.trainer.__main__ import main
main()
"""
LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "scipy", "sklearn", "torch", "cryptography", "google")


def _stands_by(asked: Asked) -> bool:
    process = Path("/proc") / str(asked.process.pid)
    return b"-m\0site_agent.trainer.standby\0" in (process / "cmdline").read_bytes()


@pytest.mark.slow
def test_a_trainer_that_waits_for_a_plan_holds_no_library(tmp_path: Path) -> None:
    """After the check the same process holds none of them; with the configuration of its start it trains a round."""
    plan, config = make_plan(), make_site(tmp_path)
    approve_plan(config, plan)

    with trainer(config, ("-c", IMPATIENT)) as asked:
        checked = asked.ask(Check())
        wait_until(lambda: _stands_by(asked))
        held = (Path("/proc") / str(asked.process.pid) / "maps").read_text()
        config.write_text("site: somewhere-else")
        prepared = asked.ask(Prepare("law-1", plan.canonical))
        trained = asked.ask(train(0, as_bytes(manifest_of(plan).initial_parameters(plan.seed))))
        status, said = asked.end()

    assert isinstance(checked, Agreed)
    assert [library for library in LIBRARIES if f"/{library}/" in held] == []
    assert isinstance(prepared, Prepared), said
    assert isinstance(trained, Trained), said
    assert status == 0, said


def test_a_configuration_with_every_key_survives_the_wait() -> None:
    """What `stand_by` keeps is read back as the same configuration."""
    hospital = read_hospital(Path(__file__).parents[3] / "deploy" / "examples" / "hospital.yaml")

    assert Hospital.model_validate_json(hospital.model_dump_json()) == hospital


def test_a_configuration_that_cannot_be_kept_leaves_the_trainer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path need not be UTF-8, and JSON is. The trainer then waits with its libraries."""
    monkeypatch.setattr(standby, "PATIENCE_SECONDS", 0)

    def configuration() -> bytes:
        return "/srv/f\udcfcr".encode()

    gate, connection = socket.socketpair()
    with gate, connection:
        standby.stand_by(connection, configuration)


def test_a_trainer_that_waits_ends_with_its_gate(tmp_path: Path) -> None:
    """Without a study it holds no library, and the end of the gate is the end of the trainer, and no failure."""
    with trainer(make_site(tmp_path), ("-c", IMPATIENT)) as asked:
        wait_until(lambda: _stands_by(asked))
        held = (Path("/proc") / str(asked.process.pid) / "maps").read_text()

        assert [library for library in LIBRARIES if f"/{library}/" in held] == []
        assert asked.end()[0] == 0
