"""Training on a graphics card: the refusals without a card, and its bits with one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from protos.errors import ConfigurationError
from site_agent.trainer.arithmetic import card_memory_error, prepare_arithmetic
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.laws.catalogue import NAMES, catalogue_plan, rows_at

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no graphics card here")


def _study_of(name: str, device: str = "cpu", **changes: Any) -> Study:
    plan = catalogue_plan(name, **changes)
    return Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"), device=device)


def test_a_study_continues_on_its_own_device_only() -> None:
    """A generator of a card has a state of another size. Nothing is changed before the refusal."""
    training = _study_of("fedavg")._training
    before = training.flat.federated_values.clone()
    state = training.local.state() | {"dropout": torch.zeros(16, dtype=torch.uint8)}
    state["procedure/network/federated"] = state["procedure/network/federated"] + 1

    with pytest.raises(
        ConfigurationError, match="sets device: cpu, but the saved study used another device"
    ) as refused:
        training.local.restore(state)

    assert "until this study has ended" in refused.value.remedy
    assert torch.equal(training.flat.federated_values, before)


@pytest.mark.parametrize(("build", "words"), [(None, "a build for processors only"), ("12.8", "no graphics card")])
def test_a_card_that_torch_cannot_use_is_refused(
    build: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error tells a build without cards from a computer without a card, and names the key."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)

    with pytest.raises(ConfigurationError, match=f"device: cuda under training, but .*{words}") as refused:
        prepare_arithmetic(1, "cuda")

    assert "device: cpu" in refused.value.remedy


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_a_full_card_is_told_from_other_failures(error: Exception, is_memory: bool) -> None:
    """Only missing memory has a remedy that an operator can use."""
    assert (card_memory_error(error) is not None) is is_memory


def trained(study: Study) -> torch.Tensor:
    """The update of one round."""
    zeros = torch.zeros(sum(tensor.number_count for tensor in study.manifest.tensors))
    study._training.local.train_round(4, zeros, zeros if study.plan.ingredients.has_controls else None)
    return study._training.flat.update(zeros)


@needs_card
@pytest.mark.parametrize("name", NAMES)
def test_a_card_computes_the_same_twice_and_nearly_what_a_processor_computes(name: str) -> None:
    """Equal bits on one card; the processor's last bits are others. Devices are compared by plain descent. Adam's first
    steps are as large for a gradient of 1e-8 as for one of 1, so the sign of a rounding error would decide them."""
    prepare_arithmetic(1, "cuda")
    plain = {"name": "sgd", "learning_rate": 0.1}

    once, again = (trained(_study_of(name, "cuda")) for _ in range(2))
    card, processor = (trained(_study_of(name, device, optimiser=plain)) for device in ("cuda", "cpu"))

    assert torch.equal(once, again)
    torch.testing.assert_close(card, processor, rtol=1e-5, atol=1e-6)


OPTIMISERS = ({"name": "adamw"}, {"name": "adam"}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.9})
CHANGES: list[dict[str, Any]] = [
    {"dropout": 0.3}, *({"optimiser": {**settings, "learning_rate": 0.01}} for settings in OPTIMISERS)
]  # fmt: skip


@needs_card
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_study_continues_on_a_card_to_the_bit(changes: dict[str, Any]) -> None:
    """From tensors that were saved on the processor, as in another process: dropout and each optimiser's memory."""
    plan = catalogue_plan("fedavg", **changes)
    first, second = (Study(plan, rows_at("ahus"), seeds=Seeds.published(3, "ahus"), device="cuda") for _ in range(2))
    shared = first.manifest.initial_parameters(plan.seed)
    first.train(Asked(round=0), shared)
    saved = first.saved()

    second.restore(replace(saved, tensors={name: tensor.cpu() for name, tensor in saved.tensors.items()}))

    assert (first.train(Asked(round=1), shared).updates == second.train(Asked(round=1), shared).updates).all()
