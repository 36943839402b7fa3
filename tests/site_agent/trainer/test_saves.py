"""Saved states: complete or absent, of these rows and this plan alone, and only a few."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from host.record_store import StoreError
from protos.errors import DataError
from protos.plan.plan import Plan
from site_agent.trainer.before_rounds import released_count
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.disk import RECORDS, AnsweredRounds, SavedStudy, Saves
from tests.for_each import for_each
from tests.laws.catalogue import catalogue_plan, rows_at

PLAN: Plan = catalogue_plan("fedavg")
ROWS: Dataset = rows_at("ahus")


def _saves_in(folder: Path, rows: Dataset = ROWS, plan: Plan = PLAN) -> Saves:
    return Saves(folder, "run", plan, rows.digest)


def a_study(number: int) -> SavedStudy:
    """A small state, whose values follow from its round."""
    values = torch.from_numpy(np.random.default_rng(number).normal(size=7))
    return SavedStudy(tensors={"weight": values, "steps": torch.tensor([number])}, facts={"position": number})


def written(folder: Path, *numbers: int) -> Saves:
    """Saves of these rounds."""
    saves = _saves_in(folder)
    saves.begin(0)
    for number in numbers:
        saves.write(number, a_study(number))
    return saves


def _file_of(folder: Path, number: int) -> Path:
    return folder / "saves" / "run" / f"before-{number:010d}.safetensors"


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Tensors, facts and the draw that led to it, in a file that only its owner reads; the begin needs no file."""
    written(tmp_path, 3, 5)

    saves = _saves_in(tmp_path)

    assert saves.held == (0, 3, 5)
    found = saves.read(3)
    assert found is not None
    assert found.facts == {"position": 3}
    assert {name: value.numpy().tobytes() for name, value in found.tensors.items()} == {
        name: value.numpy().tobytes() for name, value in a_study(3).tensors.items()
    }
    assert saves.read(0) is None
    assert _file_of(tmp_path, 3).stat().st_mode & 0o777 == 0o600


@for_each("seed", range(15))
def test_a_damaged_state_counts_as_not_there(tmp_path: Path, seed: int) -> None:
    """After a flipped bit or a cut anywhere, this site continues from the state before it."""
    written(tmp_path, 3, 5)
    path, luck = _file_of(tmp_path, 5), np.random.default_rng(seed)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[int(luck.integers(len(content)))] ^= 1 << int(luck.integers(8))

    for damaged in (bytes(flipped), content[: int(luck.integers(len(content)))], b""):
        path.write_bytes(damaged)
        saves = _saves_in(tmp_path)
        assert saves.held == (0, 3)


def test_other_rows_or_another_plan_are_never_gone_on_from(tmp_path: Path) -> None:
    """Other rows end the trainer, since part of what was trained came from those before; another plan finds nothing."""
    written(tmp_path, 3)
    moved = dataclasses.replace(
        ROWS, training=dataclasses.replace(ROWS.training, features=ROWS.training.features + np.float32(1))
    )

    with pytest.raises(DataError):
        _saves_in(tmp_path, rows=moved)
    assert _saves_in(tmp_path, plan=catalogue_plan("fedavg", version=2)).held == (0,)


@pytest.mark.parametrize("content", [b"x" * 600, b"SQLite format 3\0" * 300])
def test_nothing_starts_again_and_nothing_leaves_if_the_records_are_damaged(tmp_path: Path, content: bytes) -> None:
    """No second beginning in the middle of a run, no second answer of a round, and no count one row away."""
    written(tmp_path, 3)._records.close()
    (tmp_path / "models" / RECORDS).write_bytes(content)

    for act in (_saves_in, lambda folder: AnsweredRounds(folder / "models", PLAN)):
        with pytest.raises(StoreError):
            act(tmp_path)
    with pytest.raises(StoreError):
        released_count(tmp_path / "models", 172, 10)


def test_what_is_over_is_forgotten(tmp_path: Path) -> None:
    """States before the oldest round, after the one gone back to, beyond the most, and of other runs are removed."""
    saves = written(tmp_path, *range(1, 13))
    assert saves.held == (0, *range(5, 13))

    saves.forget(before=7)
    saves.forget(after=10)

    assert _saves_in(tmp_path).held == (0, 7, 8, 9, 10)
    Saves(tmp_path, "another", PLAN, ROWS.digest)
    assert not (tmp_path / "saves" / "run").exists()
