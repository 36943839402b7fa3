"""A site's training could be divided among processes: two processes of torchrun compute the same as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

PROGRAM = Path(__file__).with_name("parted_training.py")


def models(output: Path, *launcher: str, parts: int = 1) -> dict[str, npt.NDArray[np.float32]]:
    """Every site's model, from processes of their own."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *launcher, str(PROGRAM), str(output), f"--parts={parts}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return dict(load_file(output))


@pytest.mark.slow
def test_two_processes_train_the_model_of_one(tmp_path: Path) -> None:
    """With the same batches all bits are equal to one process that computes the same parts, and nearly all to one
    that computes whole batches."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

    two = models(tmp_path / "two", *launcher)
    parted = models(tmp_path / "parted", parts=2)
    whole = models(tmp_path / "whole")

    assert len(two) > 3
    assert two.keys() == parted.keys() == whole.keys()
    for name, values in two.items():
        np.testing.assert_array_equal(values, parted[name], err_msg=name)
        np.testing.assert_allclose(values, whole[name], rtol=0, atol=1e-5, err_msg=name)
    assert any(not np.array_equal(parted[name], whole[name]) for name in whole)  # the parts were really computed
