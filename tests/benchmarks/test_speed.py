"""The history of ratios: what is read, compared and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed import MEASURED, Measured, Unmeasured, measure, read, verdict, write

WHAT = "training step"


def of(ratio: float, what: str = WHAT) -> Measured:
    """A measurement with this ratio."""
    return Measured(day="2026-11-23", commit="12345678", what=what, ratio=ratio)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Rows, and their order."""
    history = [of(1.25), of(0.5, "round of 1,000 parameters")]
    path = tmp_path / "new" / "speed.csv"

    assert read(path) == []
    write(path, history)
    assert read(path) == history


@pytest.mark.parametrize(("ratio", "is_slower"), [(2.19, False), (2.21, True), (0.5, False)])
def test_a_tenth_above_the_usual_ratio_is_marked(ratio: float, is_slower: bool) -> None:
    """Usual is the median of the last five of the same benchmark; older ones and others do not count."""
    history = [of(90.0)] * 9 + [of(2.0), of(1.0), of(2.0), of(50.0), of(2.0)] + [of(70.0, "another")] * 5

    assert ("SLOWER" in verdict(of(ratio), history)) is is_slower
    assert "first" in verdict(of(ratio), [of(1.0, "another")])


def test_ratios_come_from_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's time by the floor's; without them, or after a failure, nothing is measured."""

    def prints(text: str) -> float:
        monkeypatch.setitem(MEASURED, WHAT, (("-c", f"print({text!r})"), "a_s", "b_s"))
        return measure(WHAT)

    assert prints("words\na_s=6.0 b_s=4.0 other=x") == 1.5
    for text in ("a_s=6.0", "", "a_s=6.0 b_s=4.0\nwords"):
        with pytest.raises(Unmeasured):
            prints(text)
    monkeypatch.setitem(MEASURED, WHAT, (("-c", "print('a_s=1 b_s=1'); exit(1)"), "a_s", "b_s"))
    with pytest.raises(Unmeasured):
        measure(WHAT)
