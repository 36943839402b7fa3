"""A law as a loop runs over all values and names the one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.for_each import for_each, in_turns, some


def test_every_value_runs_with_a_folder_and_changes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of one run remains for the next."""
    seen = []

    @for_each("seed", range(5))
    def law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        """Leaves a file and a variable behind."""
        assert not list(tmp_path.iterdir())
        assert not hasattr(law, "left")
        (tmp_path / "left").touch()
        monkeypatch.setattr(law, "left", seed, raising=False)
        seen.append(seed)

    law(tmp_path=tmp_path, monkeypatch=monkeypatch)

    assert seen == [0, 1, 2, 3, 4]


def test_a_failure_names_its_value() -> None:
    """The note stands below the failure, so that the one run can be repeated."""

    @for_each("seed", range(5))
    def law(seed: int) -> None:
        """Is broken for one seed."""
        assert seed != 3

    with pytest.raises(AssertionError) as failed:
        law()

    assert failed.value.__notes__ == ["with seed=3"]


def test_a_law_without_values_is_no_law() -> None:
    """It would pass with any code."""
    with pytest.raises(ValueError, match="no value"):
        for_each("seed", ())(lambda seed: None)
    with pytest.raises(ValueError, match="no argument"):
        for_each("seed", range(3))(lambda other: None)


def test_each_case_takes_its_turn_and_the_rest_is_slow() -> None:
    """Nothing is lost: every case has every value, and every value runs by default if there are as many cases."""
    made = in_turns(["a", "b", "c", "d"], [0, 1, 2])
    default = [one.values for one in made if not one.marks]

    assert [one.values for one in made] == [(case, other) for case in "abcd" for other in range(3)]
    assert default == [("a", 0), ("b", 1), ("c", 2), ("d", 0)]
    assert [one.values for one in in_turns([("a", 1)], [True])] == [("a", 1, True)]
    every_second = in_turns(["a", "b", "c", "d", "e"], [0, 1, 2], every=2)
    assert len(every_second) == 15
    assert [one.values for one in every_second if not one.marks] == [("a", 0), ("c", 1), ("e", 2)]


def test_some_cases_run_by_default_and_the_rest_is_slow() -> None:
    """The first one always runs."""
    made = some([("a", 1), ("b", 2), ("c", 3)], 2)

    assert [(one.values, bool(one.marks)) for one in made] == [(("a", 1), False), (("b", 2), True), (("c", 3), False)]
