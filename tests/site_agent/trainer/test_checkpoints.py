"""A checkpoint is complete or absent."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError, UnavailableError
from site_agent.trainer.disk import Json, Tensors, load, save
from tests.for_each import for_each

FACTS: dict[str, Json] = {"round": 3, "loss": 0.1, "columns": ["age", "größe"], "nothing": None}


@for_each("seed", range(10))
def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path: Path, seed: int) -> None:
    """Any shape and kind of number, transposed or not, facts included."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {
        "body.weight": generator.normal(size=(3, 4)).astype(np.float32).T,
        "steps": np.array(7, dtype=np.int64),
        "moments": generator.normal(size=(2, 3, 4))[:, ::2],
        "generator": generator.integers(0, 256, size=50, dtype=np.uint8),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }

    save(tmp_path / "new folder", "local", tensors, FACTS)
    loaded = load(tmp_path / "new folder", "local")

    assert loaded.facts == FACTS
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded.tensors[name], tensor)


def test_only_the_owner_may_read_it_and_nothing_is_left_beside(tmp_path: Path) -> None:
    """Mode 0600 whatever the mask of the process, also where an earlier crash left half a file."""
    (tmp_path / ".local.safetensors.partial").write_bytes(b"half")
    mask = os.umask(0)
    try:
        path = save(tmp_path, "local", {"a": np.ones(2)}, {})
    finally:
        os.umask(mask)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["local.safetensors"]


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    """In header, facts, digest or values; an end anywhere before the end, or behind it."""
    path = save(tmp_path, "local", {"a": np.arange(3, dtype=np.float32), "n": np.array(1)}, {"round": 1})
    whole = path.read_bytes()
    number = int.from_bytes(whole, "big")
    flipped = ((number ^ 1 << bit).to_bytes(len(whole), "big") for bit in range(8 * len(whole)))

    for content in (*flipped, *(whole[:length] for length in range(len(whole))), whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="damaged or from another version"):
            load(tmp_path, "local")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A failure before the rename is reported, and the earlier file is still there, and no other."""
    save(tmp_path, "local", {"a": np.ones(2)}, {"round": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(UnavailableError, match="unchanged, and nothing more was sent"):
        save(tmp_path, "local", {"a": np.zeros(2)}, {"round": 2})
    monkeypatch.undo()

    assert load(tmp_path, "local").facts == {"round": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["local.safetensors"]


def test_an_absent_checkpoint_is_told(tmp_path: Path) -> None:
    """With the reason of the operating system."""
    with pytest.raises(ConfigurationError, match="No such file"):
        load(tmp_path, "local")


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".hidden", "UPPER", "a\n"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    """A checkpoint is written to its folder or nowhere."""
    with pytest.raises(ValueError, match="name"):
        save(tmp_path, name, {}, {})


def test_what_is_no_number_is_not_saved(tmp_path: Path) -> None:
    """No objects, which would need pickle, and no NaN among the facts, which is no JSON."""
    with pytest.raises(ValueError, match="numbers only"):
        save(tmp_path, "local", {"a": np.array([object()])}, {})
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, "local", {}, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
