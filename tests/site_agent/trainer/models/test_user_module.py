"""A hospital's own module: who may change its file, its required content, and the operator's messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protos.errors import ConfigurationError
from protos.plan.architecture import NamedTensor, NamedTensors, TensorSpec, network_tensors
from site_agent.trainer.models.layers import Represents
from site_agent.trainer.models.user_module import build_user_module, check_batch

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Widths:
    inner: int = 4


class Own(nn.Module):
    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        width = Widths().inner
        self.entry = nn.Linear(columns, width)
        self.normalisation = nn.BatchNorm1d(width)
        self.shared = nn.Linear(width, width)
        self.exit = nn.Linear(width, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.exit(self.shared(self.normalisation(self.entry(rows))))


def build(columns: int, outputs: int) -> nn.Module:
    return Own(columns, outputs)
"""


SHARED = ("shared.weight", "shared.bias")


def federated(**shapes: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    """A plan's tensors; in a keyword `_` stands for the dot of a name."""
    tensors = (
        NamedTensor(name=name.replace("_", "."), shape=shape, bound=0.5)
        for name, shape in (shapes or {"shared_weight": (4, 4), "shared_bias": (4,)}).items()
    )
    return network_tensors(NamedTensors(name="named-tensors", tensors=tuple(tensors)), columns=1, outputs=1)


def written(folder: Path, text: str) -> Path:
    """A module's file that only its owner can write."""
    path = folder / "own.py"
    path.write_text(text)
    path.chmod(0o600)
    folder.chmod(0o700)
    return path


def refusal(path: Path, tensors: tuple[TensorSpec, ...] = federated()) -> ConfigurationError:
    """The error with which the file is refused."""
    with pytest.raises(ConfigurationError) as caught:
        build_user_module(path, 3, 2, tensors, 0)
    assert caught.value.consequence == "Nothing was trained and nothing was sent."
    return caught.value


def test_a_good_module_is_built_as_the_file_says(tmp_path: Path) -> None:
    """The module has its own parts, trains, and its running values and counters are as at the start."""
    network = build_user_module(written(tmp_path, GOOD), 3, 2, federated(), 0)

    assert network.training
    assert network(torch.zeros(5, 3)).shape == (5, 2)
    fresh = build_user_module(tmp_path / "own.py", 3, 2, federated(), 0)
    assert fresh.get_buffer("normalisation.num_batches_tracked").item() == 0
    assert fresh.get_buffer("normalisation.running_var").tolist() == [1.0] * 4
    assert not isinstance(network, Represents)
    assert not list(tmp_path.glob("__pycache__"))


def test_building_twice_gives_the_same_start_and_draws_nothing_from_others(tmp_path: Path) -> None:
    """Private parameters start with the same bits each time, and the process's generator is as before."""
    path = written(tmp_path, GOOD)

    before = torch.get_rng_state()
    first, second = (build_user_module(path, 3, 2, federated(), 0).state_dict() for _ in range(2))

    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_batches_too_small_for_the_module_are_refused_before_training(tmp_path: Path) -> None:
    """Batch normalisation has no variance of one row; the refusal quotes the file's error and names the rows."""
    path = written(tmp_path, GOOD)
    network = build_user_module(path, 3, 2, federated(), 0)

    check_batch(path, network, 3, 2, SHARED)
    with pytest.raises(ConfigurationError, match="training batch of 1 rows") as caught:
        check_batch(path, network, 3, 1, SHARED)

    assert "more than 1 value per channel" in caught.value.what
    assert network.get_buffer("normalisation.num_batches_tracked").item() == 0


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("self.exit(self.shared(", "(self.exit.weight.sum() * 0.0 + 1.0) * self.exit((", "does not use shared"),
        ("return self.exit(", "return self.exit.weight[:, 0] + 0.0 * float('nan') * self.exit(", "or undefined"),
        ("(self.entry(rows))))", "(self.entry(rows)))).detach()", "failed on a training batch"),
    ],
)
def test_a_module_that_would_not_train_what_is_shared_is_refused(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    """An unused layer, numbers that are not finite, and a result without gradients are reported."""
    path = written(tmp_path, GOOD.replace(before, after))
    network = build_user_module(path, 3, 2, federated(), 0)

    with pytest.raises(ConfigurationError, match=words):
        check_batch(path, network, 3, 2, SHARED)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o664])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Code that other accounts can change does not run, and the remedy names the command."""
    path = written(tmp_path, "raise SystemExit('it ran')")
    path.chmod(mode)

    error = refusal(path)

    assert "other accounts" in error.what
    assert f"chmod go-w {path}" in error.remedy


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_in_which_others_can_exchange_the_file_is_refused(tmp_path: Path, depth: int) -> None:
    """The folder of the file, and each one above it, has to be safe from other accounts as well."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    path = written(inner, "raise SystemExit('it ran')")
    folder = inner.parents[depth - 1] if depth else inner
    folder.chmod(0o777)

    error = refusal(path)

    assert f"{folder} can be written by other accounts" in error.what


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_a_path_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """A missing file and a folder are refused in words."""
    assert "cannot be read" in refusal(tmp_path / name).what


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = (", "SyntaxError"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("x = 1", "no attribute 'build'"),
        ("def build(columns, outputs):\n    raise ValueError('seven')\n", "line 2, in build"),
        ("import sys\nsys.exit('enough')", "SystemExit: enough"),
        ("def build(columns, outputs):\n    return 3\n", "type int"),
    ],
)
def test_what_fails_in_the_file_is_shown_to_its_author(tmp_path: Path, text: str, shown: str) -> None:
    """The operator reads the file's own error and line, and no line of this program."""
    error = refusal(written(tmp_path, text))

    assert shown in error.what
    assert "user_module.py" not in error.what


@pytest.mark.parametrize(
    ("tensors", "shown"),
    [
        ({"other_weight": (4, 4)}, "no parameter other.weight"),
        ({"shared_weight": (4, 5)}, "has shape (4, 4), the plan says (4, 5)"),
        ({"normalisation_running.var": (4,)}, "no parameter normalisation.running.var"),
    ],
)
def test_a_tensor_that_does_not_fit_the_plan_is_named(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], shown: str
) -> None:
    """A federated tensor that is missing or has another shape is refused by name; buffers never count."""
    error = refusal(written(tmp_path, GOOD), federated(**tensors))

    assert shown in error.what


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("nn.Linear(width, outputs)", "nn.Linear(width, outputs + 1)", "torch.float32 (2, 3)"),
        ("return self.exit(", "return str(", "returned str for"),
        ("return self.exit(", "return torch.ones(2, 2).double() * 0 + self.exit(", "torch.float64 (2, 2)"),
        ("self.entry(rows)", "self.entry(rows[:, :2])", "in forward"),
        ("return Own(columns, outputs)", "return Own(columns, outputs).double()", "entry.weight"),
        ("nn.Linear(columns, width)", "nn.LazyLinear(width)", "entry.weight"),
        ("return Own(columns, outputs)", "return Own(columns, outputs).requires_grad_(False)", "register it as"),
    ],
)
def test_a_module_that_does_not_fit_the_table_is_refused(tmp_path: Path, old: str, new: str, shown: str) -> None:
    """Wrong outputs, a forward that fails on zeros, and parameters of another kind are refused in words."""
    assert old in GOOD

    error = refusal(written(tmp_path, GOOD.replace(old, new)))

    assert shown in str(error)
