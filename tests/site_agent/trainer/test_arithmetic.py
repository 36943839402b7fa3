"""The libraries that a trainer loads before its first round."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PROGRAM = """
import sys
from site_agent.trainer.arithmetic import prepare_arithmetic
prepare_arithmetic(1)
import site_agent.desk.after_rounds, site_agent.trainer.disk, site_agent.trainer.study, torch
from protos.plan.optimisers import AdamW
from site_agent.trainer.training.training_model import build_optimiser
weights = torch.nn.Parameter(torch.linspace(-1, 1, 101))
optimiser = build_optimiser(AdamW(name="adamw", learning_rate=0.1), [weights])
for _ in range(3):
    optimiser.zero_grad()
    weights.square().sum().backward()
    optimiser.step()
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
print(sorted({"sklearn", "scipy", "pandas", "sympy", "torch._inductor", "matplotlib"} & set(sys.modules)))
"""
SHOWN = """
print(weights.detach().numpy().tobytes().hex(), "sympy" in sys.modules)
"""
COMPILER = """
doubled = torch._dynamo.optimize("eager")(lambda x: 2 * x)
import torch._dynamo.config
print("sympy" in sys.modules, doubled(torch.ones(1)).item())
"""


@cache
def _said(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.splitlines()


def test_a_first_round_loads_no_library_that_only_later_rounds_need() -> None:
    """Neither scikit-learn nor torch's compiler is loaded, and only reproducible operations are allowed."""
    assert _said(PROGRAM)[:2] == ["True False", "[]"]


@pytest.mark.slow
def test_the_compiler_is_there_for_whoever_uses_it() -> None:
    """What stands for it while nobody compiles gives way to the compiler itself."""
    assert _said(PROGRAM + SHOWN + COMPILER)[-1] == "True 2.0"


@pytest.mark.slow
def test_optimisers_make_the_same_steps_with_and_without_the_compiler() -> None:
    """All bits of three steps are equal."""
    without = _said(PROGRAM + SHOWN + COMPILER)[2].split()
    loaded = _said(PROGRAM.replace("import sys\n", "import sys, torch._dynamo\n", 1) + SHOWN)[2].split()

    assert (without[0], without[1], loaded[1]) == (loaded[0], "False", "True")
