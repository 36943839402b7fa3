"""Training on a graphics card: the refusals without a card, and its bits with one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protos.errors import ConfigurationError
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Asked, Study
from site_agent.trainer.training import local
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import check_memory
from tests.laws.catalogue import NAMES, catalogue_plan, rows_at
from tests.protos.architectures import drawn

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no graphics card here")


def study_of(name: str, device: str = "cpu") -> Study:
    """A study of a method."""
    plan = catalogue_plan(name)
    return Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"), device=device)


def test_a_study_continues_on_its_own_device_only() -> None:
    """A generator of a card has a state of another size. Nothing is changed before the refusal."""
    training = study_of("fedavg")._training
    before = training.flat.federated_values.clone()
    state = training.local.state() | {"dropout": torch.zeros(16, dtype=torch.uint8)}
    state["procedure/federated"] = state["procedure/federated"] + 1

    with pytest.raises(ConfigurationError, match="not trained on cpu, the value of device") as refused:
        training.local.restore(state)

    assert "until this study has ended" in refused.value.remedy
    assert torch.equal(training.flat.federated_values, before)


@pytest.mark.parametrize(
    ("build", "words"), [(None, "a build for processors only"), ("12.8", "finds no graphics card")]
)
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


def test_a_step_that_memory_cannot_hold_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A U-Net's need rises with its batch; networks of columns are never refused."""
    network = drawn("u-net", 1)
    flat = FlatNetwork(build_network(network.architecture, network.columns, network.outputs), [])
    needed = local._STEP_BYTES * flat.network.numbers_per_row * 1000  # type: ignore[operator]
    monkeypatch.setattr(local, "usable_memory_bytes", lambda: needed)
    check_memory(flat, 1000)
    other = drawn("dense", 1)
    check_memory(FlatNetwork(build_network(other.architecture, other.columns, other.outputs), []), 1 << 60)

    both = rf"on 2000 images needs at least {2 * needed / 1e9:.2f} GB .* may use {needed / 1e9:.2f} GB"
    with pytest.raises(ConfigurationError, match=both):
        check_memory(flat, 2000)


@needs_card
def test_a_card_computes_the_same_twice_and_nearly_what_a_processor_computes() -> None:
    """For every method: equal bits on one card; the processor's last bits are others."""
    prepare_arithmetic(1, "cuda")
    for name in NAMES:
        found = []
        for device in ("cuda", "cuda", "cpu"):
            study = study_of(name, device)
            zeros = torch.zeros(sum(tensor.number_count for tensor in study.manifest.tensors))
            study._training.local.train_round(4, zeros, zeros if study.plan.ingredients.has_controls else None)
            found.append(study._training.flat.update(zeros))

        assert torch.equal(found[0], found[1]), name
        torch.testing.assert_close(found[0], found[2], rtol=1e-3, atol=1e-4)


@needs_card
def test_a_round_on_a_card_is_repeated_to_the_bit() -> None:
    """From saved tensors, with dropout, in a study that another process might have begun."""
    plan = catalogue_plan("fedavg", dropout=0.3)
    first, second = (Study(plan, rows_at("ahus"), seeds=Seeds.published(3, "ahus"), device="cuda") for _ in range(2))
    shared = first.manifest.initial_parameters(plan.seed)
    first.train(Asked(round=0), shared)
    saved = first.saved()

    second.restore(replace(saved, tensors={name: tensor.cpu() for name, tensor in saved.tensors.items()}))

    assert (first.train(Asked(round=1), shared).updates == second.train(Asked(round=1), shared).updates).all()
