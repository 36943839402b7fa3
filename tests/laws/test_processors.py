"""Numbers with the same bits on every processor, computed once, and others: the table in docs/neighbours.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from blake3 import blake3

from protos.numbers.newton_sums import NewtonSums
from protos.plan.manifest import manifest_of
from protos.plan.server_rules import apply_rule, begin_rule
from protos.privacy.discrete_gaussian import discrete_gaussian
from site_agent.trainer.arithmetic import prepare_arithmetic
from tests.coordinator.totals import plan_of, sums_of
from tests.laws.catalogue import SITES, catalogue_plan, rows_at
from tests.laws.masked_runs import reference
from tests.site_agent.trainer.methods.tiny import Federation

ROOT: Final = Path(__file__).parents[2]
ONE: Final = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
KINDS: Final[dict[str, dict[str, str]]] = {
    "as it is": ONE,
    "two threads": dict.fromkeys(ONE, "2"),
    "SSE": ONE | {
        "ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott", "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX,-FMA,-FMA4",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX2 FMA3 AVX512F AVX512_SKX",  # numpy skips names that it lacks
    },
    "AVX": ONE | {"ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Sandybridge", "MKL_CBWR": "AVX"},
}  # fmt: skip
OTHERS: Final = ("protos/test_initial_values.py", "protos/masking/test_vectors.py", "statistics/test_cox.py")
WIDE: Final[dict[str, Any]] = {"architecture": {"hidden": [70, 33]}}
KNOWN: Final = {
    "fedavg": "caf6e4d6e92bea94", "fedadam": "556eeaf1244b6bd0", "fedyogi": "a258452dca296b2c",
    "fedadagrad": "828bea676378ee13", "scaffold": "1bc0a490edba5c5f",
    "32 bits": "3113e1cf07e9f4cd", "16 bits": "c00ad493121e3259", "noise": "d2c137be66063d6b",
}  # fmt: skip


def _bytes_of(name: str) -> bytes:
    """Return noise, parameters from sums of a width, or parameters and state of a rule after three rounds."""
    if name == "noise":
        return discrete_gaussian(20_000, 1 << 40, blake3(b"noise").digest).tobytes()
    if name.endswith("bits"):
        plan = catalogue_plan("fedavg", **WIDE, masking={"bits": int(name[:2])})
        return reference(plan, lambda _: "ab").tobytes()
    plan, generator = (
        plan_of({"name": name}, parameters=5_001, optimiser={"name": "sgd", "learning_rate": 0.1}),
        np.random.default_rng(2),
    )
    parameters = manifest_of(plan).initial_parameters(7)
    state = begin_rule(plan.ingredients.server_rule, parameters.size)
    for _ in range(3):
        totals = generator.integers(-(2**24), 2**24, parameters.size) / 2**24
        apply_rule(plan, manifest_of(plan), sums_of(plan, totals), parameters, state)
    return parameters.tobytes() + b"".join(array.tobytes() for array in state.values())


@pytest.mark.parametrize("name", KNOWN)
def test_sums_rules_and_noise_have_known_bits(name: str) -> None:
    """Each has the first half of a SHA-256 digest that was computed once."""
    assert sha256(_bytes_of(name)).hexdigest()[:16] == KNOWN[name]


@cache
def on(kind: str, again: int = 0) -> dict[str, Any]:  # another number is another process
    """Return what a process with these instructions and threads computes."""
    command, environment = [sys.executable, "-m", "tests.laws.test_processors"], os.environ | KINDS[kind]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return dict(json.loads(ran.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_known_answers_are_the_same_on_every_processor(kind: str) -> None:
    """Known bits are equal. Estimates of statistics are those of the references, within the tests' own limits."""
    files = (__file__, *(str(ROOT / "tests" / name) for name in OTHERS))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", "-m", "not slow", *files]
    ran = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=os.environ | KINDS[kind])

    assert ran.returncode == 0, ran.stdout.decode()[-2000:]


@pytest.mark.slow
def test_training_and_coefficients_need_one_kind_of_processor() -> None:
    """A second process of a kind has the same bits. Another kind trains otherwise, and other threads sum otherwise."""
    here, sse, threads = on("as it is"), on("SSE"), on("two threads")
    assert here == on("as it is", again=1)
    for name in ("training", "first weights of torch", "sigmoid of torch"):
        assert here[name] != sse[name]
        assert here[name] == threads[name]  # at these sizes
    assert here["sum of torch"] != threads["sum of torch"]
    one, other = (np.array(on(kind)["coefficients"]) for kind in ("as it is", "AVX"))
    assert (one != other).any()
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-13)  # twelve columns of a condition below 2


if __name__ == "__main__":
    prepare_arithmetic(int(os.environ["OMP_NUM_THREADS"]))
    federation = Federation(catalogue_plan("fedavg", **WIDE), {site: rows_at(site) for site in SITES})
    updates = [answer.updates for number in range(4) for answer in federation.round(number).values()]
    columns = np.random.default_rng(3).integers(-99, 99, (400, 12)) / 64
    sums = NewtonSums(hessian=(columns.T @ columns)[None], gradient=columns.sum(axis=0)[None])
    line = (torch.arange(1 << 17) % 1000).float() / 500 - 1
    torch.manual_seed(0)
    found = {
        "training": np.concatenate(updates),
        "first weights of torch": torch.nn.Linear(70, 33).weight.detach().numpy(),
        "sigmoid of torch": line.sigmoid().numpy(),
        "sum of torch": line.sum().numpy(),
    }
    coefficients = sums.next_coefficients(np.zeros((1, 12)), 1.0).ravel().tolist()
    digests = {name: sha256(array.tobytes()).hexdigest() for name, array in found.items()}
    print(json.dumps(digests | {"coefficients": coefficients}))
