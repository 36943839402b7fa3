"""A law as a loop runs over all values and names the one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.for_each import for_each


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
