"""EfficientNet-B0: its published size and names, and published values give the same results here."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from host.starting_files import starting_values
from protos.errors import ConfigurationError
from protos.plan.architecture import EfficientNetwork, network_tensors
from protos.plan.image_size import ImageSize
from site_agent.trainer.models.image_models import Efficient, load_torchvision
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.site_network import Seeds, SiteNetworks
from tests.host.starting import write_starting_file
from tests.site_agent.trainer.sites import make_plan

DOCS: Final = Path(__file__).parents[4] / "docs" / "researcher.md"
LAYERS: Final = ["input.features.0", *(f"body.features.{number}" for number in range(1, 9))]


def by_torchvision(classes: int) -> nn.Module:
    """torchvision's own EfficientNet-B0, with batch normalisation and blocks that are left out at random."""
    network: nn.Module = load_torchvision().efficientnet_b0(weights=None, num_classes=classes)
    return network


def published(network: nn.Module) -> nn.Module:
    """The network with random values and the means and variances of some images: its outputs differ between images."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the mean of all batches, not one tenth of the newest
    network.train()
    with torch.no_grad():
        for values in network.parameters():
            values.add_(0.2 * torch.randn_like(values) * (values.dim() == 1))
        network(torch.rand(8, 3, 64, 64))
    return network.eval()


def converted(network: nn.Module, folder: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """What the program in the docs writes for a file of published values."""
    (program,) = (
        block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "efficientnet_b0" in block
    )
    torch.save(network.state_dict(), folder / "efficientnet_b0.pth")
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(program, {})  # the program of our own page
    finally:
        os.chdir(before)
    found = safetensors.torch.load_file(folder / "efficientnet_b0.safetensors")
    return {name: value.numpy() for name, value in found.items()}


def architecture(side: int) -> dict[str, object]:
    """The network of the docs, for images of another size."""
    image = {"height": side, "width": side, "channels": 3}
    return {"name": "efficientnet-b0", "image": image, "normalisation": "fixed"}


def test_names_and_sizes_are_those_of_the_published_network() -> None:
    """With 1,000 classes it has 5,288,548 numbers in 213 tensors, which have the published names in their order."""
    size = ImageSize(height=224, width=224, channels=3)
    network = EfficientNetwork(name="efficientnet-b0", image=size, normalisation="fixed")

    tensors = network_tensors(network, columns=size.numbers, outputs=1000)

    wanted = [(name, tuple(values.shape)) for name, values in by_torchvision(1000).named_parameters()]
    assert [(tensor.name.partition(".")[2], tensor.shape) for tensor in tensors] == wanted
    assert (len(tensors), sum(tensor.number_count for tensor in tensors)) == (213, 5_288_548)
    assert list(dict.fromkeys(tensor.layer for tensor in tensors)) == [*LAYERS, "head.classifier.1"]


@pytest.mark.parametrize("side", [32, 45])
def test_published_values_compute_the_same_from_a_starting_file(tmp_path: Path, side: int) -> None:
    """The docs' program folds running means into weights; the head starts at random and is not in the file."""
    torch.manual_seed(0)
    original = published(by_torchvision(7))
    values = converted(original, tmp_path)
    named = {"name": "file", "seed": 11, "sha256": write_starting_file(tmp_path, values), "layers": LAYERS}
    plan = make_plan(method={"name": "fedavg"}, architecture=architecture(side), outputs=3, start=named)
    networks = SiteNetworks(
        plan=plan, columns=3 * side**2, outputs=3, module_seed=0, starts=starting_values(tmp_path, plan)
    )
    flat = networks.lay(networks.tensors)
    networks.start(flat, networks.tensors, Seeds.published(0, "ahus"))
    images = torch.rand(2, 3, side, side)

    network = flat.network.eval()
    with torch.no_grad():
        (represented,) = network.represent(images.flatten(1))  # type: ignore[operator]  # of our own network
        wanted = original.get_submodule("features")(images).mean((2, 3))

    assert wanted.std(0).mean() > 5e-3  # the images differ in it by far more than rounding
    assert network(images.flatten(1)).shape == (2, 3)
    torch.testing.assert_close(represented, wanted, rtol=1e-4, atol=1e-5)
    assert len(values) == 211


def test_it_is_the_function_of_torchvision_in_float64(tmp_path: Path) -> None:
    """Logits and all gradients are equal, without blocks left out at random and with the running means fixed."""
    torch.manual_seed(0)
    original = published(by_torchvision(7)).double()
    values = {name: torch.from_numpy(value) for name, value in converted(original, tmp_path).items()}
    named = original.state_dict()
    head = {f"head.{name}": value for name, value in named.items() if name.startswith("classifier")}
    network = build_network(EfficientNetwork.model_validate(architecture(64)), 3 * 64**2, 7).double()
    network.load_state_dict(values | head)
    images, classes = torch.rand(4, 3, 64, 64, dtype=torch.float64), torch.tensor([0, 1, 2, 3])

    torch.testing.assert_close(network.eval()(images.flatten(1)), original(images), rtol=0, atol=1e-12)
    assert original(images).std(0).mean() > 0.1  # the images differ in it

    original.train()
    for layer in original.modules():
        if type(layer).__name__ in ("BatchNorm2d", "StochasticDepth"):
            layer.eval()
    for one, read in ((original, images), (network.train(), images.flatten(1))):
        torch.manual_seed(1)  # of dropout
        nn.functional.cross_entropy(one(read), classes).backward()
    found, wanted = ({name: value.grad for name, value in one.named_parameters()} for one in (network, original))
    for name, gradient in found.items():
        owner, _, kind = name.partition(".")[2].rpartition(".")
        assert gradient is not None
        if f"{owner}.running_var" in named and kind == "weight":  # the chain rule of the docs' conversion
            shift = found[f"{name.removesuffix('weight')}bias"] * named[f"{owner}.running_mean"]
            gradient = (gradient - shift) / (named[f"{owner}.running_var"] + 1e-5).sqrt()
        torch.testing.assert_close(gradient, wanted[f"{owner}.{kind}"], rtol=1e-9, atol=1e-12)


def test_dropout_leaves_the_representation_as_it_was() -> None:
    """Penalties read a representation after `decide`, so dropout works on a copy."""
    network = build_network(EfficientNetwork.model_validate(architecture(32) | {"dropout": 0.5}), 3 * 32**2, 7).train()
    assert isinstance(network, Efficient)
    means = torch.rand(4, 1280)
    before = means.clone()

    network.decide((means,))

    assert torch.equal(means, before)


def test_a_plan_is_refused_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without the extra reads how to install it, before anything is trained."""
    for module in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, module, None)
    plan = make_plan(method={"name": "fedavg"}, architecture=architecture(32), outputs=3)
    networks = SiteNetworks(plan=plan, columns=3 * 32**2, outputs=3, module_seed=0)

    with pytest.raises(ConfigurationError, match=r"torchvision is not installed.*Nothing was trained") as refused:
        networks.lay(networks.tensors)

    assert refused.value.remedy.endswith("-m pip install --constraint constraints.txt '.[site,torchvision]'")
