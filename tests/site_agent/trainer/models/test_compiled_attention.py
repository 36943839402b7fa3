"""Compiled attention against torch's operations and against float64, and the bits that depend on nothing else."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from protos.errors import ConfigurationError
from protos.plan.architecture import GlobalLayersNetwork, network_tensors
from protos.plan.ingredients import Method
from protos.plan.learning_rates import ConstantRate
from protos.plan.optimisers import AdamW
from site_agent.desk.around_rounds import check_table
from site_agent.hospital import read_hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.models import attention
from site_agent.trainer.models.attention import attend, attend_backward, choose_attention, chosen_attention
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Pace
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.training_model import Recipe
from tests.site_agent.trainer.sites import make_plan, make_site, prepare

try:
    from site_agent.trainer.models import compiled_attention
except ImportError:
    compiled_attention = None  # type: ignore[assignment]

needs_llvm = pytest.mark.skipif(compiled_attention is None, reason="the extra `compiled` (llvmlite) is not installed")
# Few and many lanes: one lane, less than a vector, a vector and a rest, several parts of a batch.
SHAPES = [((), 7, 1), ((), 1, 5), ((3,), 13, 36), ((2,), 31, 17), ((), 9, 200), ((), 2, 3000)]


@pytest.fixture(autouse=True)
def _torch_again() -> Iterator[None]:
    yield
    choose_attention("torch")


def both(projections: Tensor, gradient: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The result of attention, and the gradient of the projections, as this process has chosen."""
    result, kept = attend(projections, heads)
    return result, attend_backward(gradient, kept, heads)


def compiled(projections: Tensor, gradient: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The same from compiled code, which really computed it."""
    choose_attention("compiled")
    result, kept = attend(projections, heads)
    assert callable(kept)
    return result, attend_backward(gradient, kept, heads)


def drawn(shape: tuple[int, ...], seed: int, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """Projections (..., 3·e, d, B) and a gradient (..., e, d, B), normal numbers times `size`."""
    generator = torch.Generator().manual_seed(seed)
    *stack, rows, tokens, batch = shape
    gradient = torch.randn(*stack, rows // 3, tokens, batch, generator=generator)
    return size * torch.randn(shape, generator=generator), gradient


def largest_difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected number."""
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


@needs_llvm
@pytest.mark.parametrize(("stack", "tokens", "batch"), SHAPES)
@pytest.mark.parametrize(("width", "heads"), [(1, 4), (2, 8), (3, 5), (4, 1), (8, 2), (1, 600)])
@pytest.mark.parametrize("seed", range(2))
def test_compiled_attention_equals_torch(
    stack: tuple[int, ...], tokens: int, batch: int, width: int, heads: int, seed: int
) -> None:
    """Results and gradients differ from torch's operations by less than 2e-6, relative to the largest number."""
    batch = min(batch, 4) if heads > 100 else batch
    projections, gradient = drawn((*stack, 3 * width * heads, tokens, batch), seed)

    expected = both(projections, gradient, heads)
    found = compiled(projections, gradient, heads)

    assert max(map(largest_difference, found, expected)) < 2e-6


@needs_llvm
@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_compiled_attention_is_as_exact_as_torch(size: float, seed: int) -> None:
    """The distance to float64 is at most twice that of torch's operations, also with large scores."""
    projections, gradient = drawn((3, 48, 13, 36), seed, size)

    exact = both(projections.double(), gradient.double(), 8)
    by_torch = both(projections, gradient, 8)
    found = compiled(projections, gradient, 8)

    for ours, theirs, reference in zip(found, by_torch, exact, strict=True):
        assert largest_difference(ours, reference) <= 2 * largest_difference(theirs, reference) + 1e-7


@needs_llvm
def test_powers_that_are_too_small_are_zero() -> None:
    """Scores far below the largest score add nothing, and scores beyond the range of exp stay finite."""
    projections, gradient = drawn((48, 6, 20), 0, 1e4)

    expected = both(projections, gradient, 8)
    found = compiled(projections, gradient, 8)

    assert all(each.isfinite().all() for each in found)
    assert largest_difference(found[0], expected[0]) < 1e-6


@needs_llvm
@pytest.mark.parametrize("gap", [100.0, 125.0, 126.0, 127.0, 149.0, 1000.0])
def test_the_smallest_powers_are_those_of_torch_or_zero(gap: float) -> None:
    """A key with a score that is `gap` lower, as a power of 2, has the weight 2^-gap. Below 2^-126 the weight is 0."""
    projections = torch.zeros(3, 2, 1)  # one head of width 1, two tokens
    projections[0] = 1.0
    projections[1, 1] = -gap * float(np.log(2))
    projections[2, 1] = 1e37  # the value of the second key shows its weight

    result, _ = compiled(projections, torch.ones(1, 2, 1), 1)

    weight = 2.0**-gap if gap < 126 else 0.0
    assert abs(float(result[0, 0, 0]) - 1e37 * weight) <= 1e-4 * 1e37 * weight + (1e37 * 2.0**-126 if gap == 126 else 0)


@needs_llvm
@pytest.mark.parametrize("place", [(0, 0, 0), (16, 3, 17), (47, 5, 18)])
def test_what_is_no_number_stays_none(place: tuple[int, int, int]) -> None:
    """A NaN in one row of one head makes this lane NaN, and changes no bit of the other lanes."""
    projections, gradient = drawn((48, 6, 20), 0)
    clean = compiled(projections, gradient, 8)[0]
    projections[place] = torch.nan

    result = compiled(projections, gradient, 8)[0]

    head, row = place[0] % 8, place[2]
    lane = result[head::8, :, row]
    assert lane.isnan().any()
    kept = torch.ones_like(result, dtype=torch.bool)
    kept[head::8, :, row] = False
    assert torch.equal(result[kept], clean[kept])


@needs_llvm
@pytest.mark.parametrize("seed", range(5))
def test_the_bits_do_not_depend_on_the_split_of_lanes(seed: int) -> None:
    """Rows alone, copies alone and heads alone have the bits that they have together, twice."""
    projections, gradient = drawn((3, 48, 11, 70), seed)

    whole = compiled(projections, gradient, 8)
    again = compiled(projections, gradient, 8)
    rows = [compiled(p, g, 8) for p, g in zip(projections.split(23, -1), gradient.split(23, -1), strict=True)]
    copies = [compiled(p, g, 8) for p, g in zip(projections, gradient, strict=True)]
    heads = [compiled(projections[:, head::8], gradient[:, head::8], 1) for head in range(8)]

    for place in (0, 1):
        assert torch.equal(whole[place], again[place])
        assert torch.equal(whole[place], torch.cat([part[place] for part in rows], -1))
        assert torch.equal(whole[place], torch.stack([part[place] for part in copies]))
        for head, part in enumerate(heads):
            assert torch.equal(whole[place][:, head::8], part[place])


@needs_llvm
@pytest.mark.parametrize("processor", ["x86-64", "haswell", "skylake-avx512"])
def test_the_bits_do_not_depend_on_the_processor(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for registers of 128, 256 and 512 bits, with and without fma, computes the same bits."""
    binding = compiled_attention.binding
    here = binding.get_host_cpu_features()
    wanted = {"x86-64": "sse2", "haswell": "fma", "skylake-avx512": "avx512dq"}[processor]
    if not here.get(wanted):
        pytest.skip(f"this processor cannot run code for {processor}")
    projections, gradient = drawn((2, 48, 9, 21), 0)
    expected = compiled(projections, gradient, 8)

    compiled_attention._compiled.cache_clear()
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: processor)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: binding.FeatureMap())
    found = compiled(projections, gradient, 8)
    compiled_attention._compiled.cache_clear()

    assert all(map(torch.equal, found, expected))


@needs_llvm
def test_what_has_no_compiled_code_is_computed_by_torch() -> None:
    """Other types, wide heads, an empty batch and tensors without numbers take torch's operations."""
    choose_attention("compiled")
    projections, _ = drawn((48, 4, 3), 0)

    wide, of_wide = attend(projections, 1)
    double, of_double = attend(projections.double(), 8)
    with FakeTensorMode() as mode:
        fake, of_fake = attend(mode.from_tensor(projections), 8)

    assert (wide.shape, double.dtype, fake.shape) == ((16, 4, 3), torch.float64, (16, 4, 3))
    assert not any(map(callable, (of_wide, of_double, of_fake)))
    assert compiled_attention.attend(projections[..., :0], 8) is None


@needs_llvm
def test_a_gradient_of_another_size_is_refused() -> None:
    """The compiled code checks no size, so its caller does."""
    projections, gradient = drawn((48, 4, 3), 0)
    choose_attention("compiled")
    _, kept = attend(projections, 8)

    with pytest.raises(ValueError, match=r"the gradient \(16, 4, 2\) of a result \(16, 4, 3\)"):
        attend_backward(gradient[..., :2], kept, 8)
    assert torch.equal(attend_backward(gradient.mT.contiguous().mT, kept, 8), attend_backward(gradient, kept, 8))


def trained(kind: attention.Kind, seed: int, *, copies: int = 0) -> Tensor:
    """The parameters after 20 steps on made-up rows, with attention of a kind."""
    choose_attention(kind)
    architecture = GlobalLayersNetwork(name="global-layers-network", latent=16, gate=True, input_normalisation=False)
    flat = FlatNetwork(build_network(architecture, 5, 1), [])
    flat.start(network_tensors(architecture, columns=5, outputs=1), seed)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(60, 5, generator=generator)
    recipe = Recipe(
        build=lambda: flat,
        loss=LossFunction(task="binary"),
        optimiser=AdamW(name="adamw", learning_rate=1e-3, weight_decay=1e-4),
    )
    training = LocalTraining(
        build_procedure(Method(), flat, recipe),
        rows=Rows(features, (features[:, 0] > 0).float()),
        batches=Batches(60, 4, [np.random.default_rng(seed)], stacked=False),
        pace=Pace(schedule=ConstantRate(name="constant"), steps=20),
        dropout_seed=seed,
    )
    training.train_round(20, torch.empty(0))
    return torch.cat([parameter.detach().flatten() for parameter in flat.network.parameters()])


@needs_llvm
@pytest.mark.parametrize("seed", range(3))
def test_a_whole_training_differs_by_rounding(seed: int) -> None:
    """After 20 training steps, each parameter differs by at most 1e-5. Two compiled trainings have the same bits."""
    by_torch = trained("torch", seed)

    found, again = trained("compiled", seed), trained("compiled", seed)

    assert not torch.equal(found, by_torch)  # compiled code was used
    assert (found - by_torch).abs().max() <= 1e-5
    assert torch.equal(found, again)


@needs_llvm
def test_the_setting_of_a_hospital_reaches_check_and_training(tmp_path: Path) -> None:
    """Both `site-agent check` and the start of a study choose what hospital.yaml sets. Other hospitals keep torch."""
    prepare(make_site(tmp_path / "torch"), make_plan())
    without = chosen_attention()
    config = make_site(tmp_path / "compiled", attention="compiled")

    check_table(read_hospital(config))
    after_check = chosen_attention()
    choose_attention("torch")
    prepare(config, make_plan())

    assert (without, after_check, chosen_attention()) == ("torch", "compiled", "compiled")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without llvmlite the error names the extra and the setting, and torch's operations stay chosen."""
    load = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("llvmlite"):
            raise ModuleNotFoundError(name)
        return load(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("site_agent.trainer.models.compiled_attention", "llvmlite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("site_agent.trainer.models.compiled_attention", raising=False)

    with pytest.raises(ConfigurationError, match="llvmlite is not installed") as refused:
        prepare_arithmetic(1, attention="compiled")

    assert refused.value.remedy.endswith("-m pip install --constraint constraints.txt '.[site,compiled]'")
    assert "attention: torch" in refused.value.remedy
    assert chosen_attention() == "torch"


def test_a_graphics_card_has_no_compiled_attention(tmp_path: Path) -> None:
    """Both settings together are an error of hospital.yaml, also on a computer without a card or without llvmlite."""
    config = make_site(tmp_path, attention="compiled", device="cuda")

    with pytest.raises(ConfigurationError, match=r"training: .*works only with device: cpu\. Set attention: torch or"):
        read_hospital(config)
