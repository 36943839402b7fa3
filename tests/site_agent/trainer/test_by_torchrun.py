"""Several processes of the trainer: which may start, what a helper reads, and with which exit status they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from quickstart.ports import free_port
from site_agent.trainer import by_torchrun
from site_agent.trainer.__main__ import main

REPOSITORY = Path(__file__).parents[3]


def launched(patch: pytest.MonkeyPatch, rank: int, computers: int = 1, *, has_route: bool = False) -> None:
    """Pretend that torchrun has started this process."""
    told = {"TORCHELASTIC_RUN_ID": "none", "RANK": rank, "GROUP_WORLD_SIZE": computers, "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in told.items():
        patch.setenv(name, str(value))
    patch.setattr(by_torchrun, "leads_out", lambda: has_route)


@pytest.mark.parametrize("rank", [0, 1])
def test_on_one_computer_no_process_starts_with_a_route_to_another(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trainer nor a helper starts, and a service manager does not try again."""
    launched(monkeypatch, rank, has_route=True)

    done = CliRunner().invoke(main, ["--config", "nowhere.yaml"])

    assert done.exit_code == 78
    assert "can reach other computers" in done.output
    assert "Nothing was sent." in done.output


def test_several_computers_need_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a route is no error, and the caller learns of it."""
    launched(monkeypatch, 0, computers=2, has_route=True)

    assert by_torchrun.require_own_network()


def test_a_helper_reads_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It helps although the configuration that its command names does not exist; the trainer reads it."""
    launched(monkeypatch, 1)
    helped: list[bool] = []
    monkeypatch.setattr(by_torchrun, "help_trainer", lambda: helped.append(True))

    helper = CliRunner().invoke(main, ["--config", "nowhere.yaml"])
    monkeypatch.setenv("RANK", "0")
    trainer = CliRunner().invoke(main, ["--config", "nowhere.yaml"])

    assert (helper.exit_code, helped) == (0, [True])
    assert trainer.exit_code not in (0, None)
    assert "nowhere.yaml" in trainer.output


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [({0: 78}, 78), ({0: 77, 1: 1}, 77), ({1: 1}, None), ({1: -9}, None), ({0: -15, 1: -9}, None), ({0: 1, 2: 1}, 1)],
)
def test_the_exit_status_is_the_trainers(statuses: dict[int, int], expected: int | None) -> None:
    """A helper fails because the trainer ends, so its status means nothing."""
    assert by_torchrun.trainer_status(statuses) == expected


@pytest.mark.parametrize(
    "options", [["--standalone"], [], ["--rdzv-backend", "c10d", "--master-port", "29500"]], ids=" ".join
)
def test_a_rendezvous_that_unpickles_is_refused(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a port torchrun would also select it."""
    monkeypatch.setattr(sys, "argv", ["by_torchrun", "--nproc-per-node", "2", *options, "-m", "site_agent.trainer"])

    with pytest.raises(SystemExit) as ended:
        by_torchrun.main()

    assert ended.value.code == 2
    assert "received data could be run as program code" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("word", "expected"), [("sys.exit(78)", 78), ("os.kill(os.getpid(), 9)", 1)])
def test_the_service_manager_sees_what_ended_the_trainer(word: str, expected: int, tmp_path: Path) -> None:
    """A refusal keeps its status through a real torchrun; a killed process is explained, and may start again."""
    program = tmp_path / "ends.py"
    program.write_text(f"import os, sys\nif os.environ['RANK'] == '0':\n    {word}\n")
    words = ["--nproc-per-node", "2", "--master-port", str(free_port()), str(program)]

    done = subprocess.run(
        [sys.executable, "-m", "site_agent.trainer.by_torchrun", *words],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == expected, done.stderr
    assert ("A process of the trainer ended or did not answer." in done.stderr) == (expected == 1)
