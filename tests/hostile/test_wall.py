"""Every attack is refused by the real programs and succeeds against its weakened copy. The wall reports both."""

from __future__ import annotations

import os

import pytest

from tests.hostile import wall
from tests.hostile.attack import Attack
from tests.hostile.wall import Outcome, all_attacks, show

# Every attack on the real programs, and every fourth on its weakened copy. `python -m tests.hostile.wall` plays all of
# both, and continuous integration runs it.
ATTACKS = [
    pytest.param(name, is_weak, marks=pytest.mark.slow if is_weak and number % 4 else ())
    for number, name in enumerate(all_attacks())
    for is_weak in (False, True)
]


@pytest.mark.parametrize(("name", "is_weak"), ATTACKS)
def test_an_attack_succeeds_against_its_weakened_copy_alone(name: str, is_weak: bool) -> None:
    """The attacker gets what it wants if, and only if, the named protection is missing."""
    if all_attacks()[name].needs_root and os.geteuid() != 0:
        pytest.skip("only root can become somebody else")

    assert all_attacks()[name].run(is_weak) is is_weak


def attack(name: str = "made-up") -> Attack:
    """An attack that nobody runs."""
    return Attack(name=name, tries="nothing", without="a door", run=lambda weakened: weakened)


@pytest.mark.parametrize(
    ("outcome", "last", "status"),
    [
        (Outcome(True, True, 0.0), "attacks=2 refused=2 succeed_when_weakened=2", 0),
        (Outcome(False, True, 0.0), "attacks=2 refused=1 succeed_when_weakened=2", 1),
        (Outcome(True, False, 0.0), "attacks=2 refused=2 succeed_when_weakened=1", 1),
        (Outcome(False, False, 0.0, "an error"), "attacks=2 refused=1 succeed_when_weakened=1", 1),
    ],
)
def test_the_last_line_and_the_exit_status_report_every_attack(
    outcome: Outcome, last: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attack that is not refused, or that does not succeed against its weakened copy, fails the wall."""
    assert show([attack("one"), attack("two")], [Outcome(True, True, 0.0), outcome]) == status

    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_wall_without_attacks_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty wall proves nothing."""
    assert show([], []) == 1
    assert capsys.readouterr().out == "attacks=0 refused=0 succeed_when_weakened=0\n"


def test_two_attacks_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two attacks have the same name."""
    monkeypatch.setattr(wall, "MODULES", (wall.MODULES[0], wall.MODULES[0]))

    with pytest.raises(ValueError, match="two attacks are named"):
        all_attacks()


@pytest.mark.slow  # continuous integration runs the command itself, with every attack
def test_the_wall_runs_an_attack_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a line for the attack and ends with the figures."""
    name = next(iter(all_attacks()))

    assert wall.main(["--only", name, "--processes", "1"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"1/1 {name}: ")
    assert "refused by the real programs; succeeds against a copy without" in lines[0]
    assert lines[-1] == "attacks=1 refused=1 succeed_when_weakened=1"
