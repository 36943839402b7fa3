"""The processes that torchrun starts train the same models as one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from quickstart.ports import free_port
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.parted_gradients import GradientParts
from site_agent.trainer.training.training_model import Model, Recipe
from tests.for_each import some
from tests.laws.catalogue import NAMES
from tests.laws.parted_training import DROPOUT, NETWORK, Values, trained
from tests.protos.architectures import KINDS

REPOSITORY = Path(__file__).parents[2]
FEW = ("fedavg", "global-layers", "fedprox", "fenda-fl", "moon", "fedavg" + DROPOUT, "convolutional" + NETWORK)
NETWORKS = tuple(kind + NETWORK for kind in KINDS)
ALL = (*NAMES, *NETWORKS, *(name + DROPOUT for name in NAMES))
# Its two columns are trained one after the other, on a loss of their own.
NOT_PARTED = ("chfl",)

prepare_arithmetic(1)


def by_processes(folder: Path, cases: tuple[str, ...], processes: int, computers: int = 1) -> Values:
    """Train with this many real processes, which exchange tensors with gloo.

    Each further computer is another torchrun on this one. Its processes join those of the first.
    """
    each = ["--nproc-per-node", processes // computers, "--nnodes", computers, "--master-port", free_port()]
    program = ["-m", "tests.laws.parted_training", folder / "models", *cases]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    running = []
    for number in range(computers):
        words = ["-m", "site_agent.trainer.by_torchrun", *each, "--node-rank", number, *program]
        command = [sys.executable, *map(str, words)]
        running.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for process in running:
            told = process.communicate(timeout=240)[1]
            assert process.returncode == 0, told
    finally:
        for process in running:
            process.kill()
    return dict(load_file(folder / "models"))


class Counted(GradientParts):
    """One process, which counts the batches that it has cut."""

    cut = 0

    def gradient(self, flat: FlatNetwork, recipe: Recipe, batch: Rows) -> bool:
        """Count a batch that was cut."""
        is_cut = super().gradient(flat, recipe, batch)
        self.cut += is_cut
        return is_cut


def in_one_process(cases: tuple[str, ...], parts: GradientParts) -> Values:
    """Train in this process, which computes one part after another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "in_parts", parts)
        return {name: values for case in cases for name, values in trained(case).items()}


def whole(cases: tuple[str, ...]) -> Values:
    """Train in this process with whole batches."""
    return {name: values for case in cases for name, values in trained(case).items()}


def require_equal(one: Values, other: Values) -> None:
    """All bits are equal."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize(
    ("cases", "processes", "computers"),
    [
        pytest.param(ALL, 2, 1, marks=pytest.mark.slow, id="all"),
        pytest.param(ALL, 7, 1, marks=pytest.mark.slow, id="more processes than rows"),
        pytest.param(FEW, 4, 2, marks=pytest.mark.slow, id="two computers"),
    ],
)
def test_several_processes_train_the_model_of_one(
    tmp_path: Path, cases: tuple[str, ...], processes: int, computers: int
) -> None:
    """All bits are equal to one process that computes the same parts, also if a batch has fewer rows than that."""
    found = by_processes(tmp_path, cases, processes, computers)

    require_equal(found, in_one_process(cases, GradientParts(processes)))


@pytest.mark.parametrize("case", some([*NAMES, *NETWORKS], 2))
def test_parts_differ_from_whole_batches_only_by_rounding(case: str) -> None:
    """The gradients of the parts, weighted by their shares, add up to the gradient of the batch."""
    parts = Counted(2)

    parted, of_whole = in_one_process((case,), parts), whole((case,))

    assert parted.keys() == of_whole.keys()
    for name, values in parted.items():
        np.testing.assert_allclose(values, of_whole[name], rtol=0, atol=1e-5, err_msg=name)
    assert (parts.cut == 0) == (case in NOT_PARTED)
