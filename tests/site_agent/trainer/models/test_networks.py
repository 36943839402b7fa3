"""Laws of every network: its parameters, and its two halves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from protos.plan.architecture import ColumnsNetwork, network_tensors
from site_agent.trainer.models.dense_models import Columns
from site_agent.trainer.models.layers import Represents
from site_agent.trainer.site_network import build_network
from tests.for_each import for_each
from tests.protos.architectures import KINDS, Drawn, drawn
from tests.site_agent.trainer.models.starting import start


def built(network: Drawn) -> nn.Module:
    """The network of these sizes, not started."""
    return build_network(network.architecture, network.columns, network.outputs, network.common)


def started(network: Drawn, seed: int) -> nn.Module:
    """The network with its first values, moved a little so that nothing is 0 or 1 by chance."""
    module = built(network)
    start(module, network_tensors(network.architecture, **network.sizes), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for values in module.parameters():
            values.add_(0.2 * torch.randn(values.shape, generator=generator))
    return module


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def moved(module: nn.Module, rows: Tensor, seed: int) -> Tensor:
    """The logits of a float64 network after each parameter and input changed by half a unit of float32 at most."""
    generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(module)

    def near(values: Tensor) -> Tensor:
        return values * (1 + 2**-24 * (2 * torch.rand(values.shape, generator=generator, dtype=values.dtype) - 1))

    with torch.no_grad():
        for values in other.parameters():
            values.copy_(near(values))
        return other(near(rows))  # type: ignore[no-any-return]  # every module returns a tensor


@pytest.mark.parametrize("kind", KINDS)
@for_each("seed", range(20))
def test_parameters_are_the_listed_tensors(kind: str, seed: int) -> None:
    """The parameters equal the plan's tensors in names, order and shapes; there is no buffer."""
    network = drawn(kind, seed)

    module = built(network)

    listed = network_tensors(network.architecture, **network.sizes)
    assert [(name, tuple(values.shape)) for name, values in module.named_parameters()] == [
        (spec.name, spec.shape) for spec in listed
    ]
    assert list(module.state_dict()) == [spec.name for spec in listed]


@pytest.mark.parametrize("kind", ["parallel", "columns"])
@for_each("seed", range(5))
def test_the_common_part_sees_the_common_columns_alone(kind: str, seed: int) -> None:
    """A site's own columns change the unique representation and leave the common one."""
    network = drawn(kind, seed)
    module = started(network, seed)
    assert isinstance(module, Represents)
    rows = draw(seed, 4, network.columns, dtype=torch.float32).requires_grad_()

    common, unique = module.represent(rows)

    (of_common,) = torch.autograd.grad(common.sum(), rows, retain_graph=True)
    assert not of_common[:, network.common :].any()
    assert unique.shape[0] == common.shape[0] == 4


@pytest.mark.parametrize("lateral", [0.0, 0.4])
@for_each("seed", range(10))
def test_columns_are_the_formula_of_chfl(lateral: float, seed: int) -> None:
    """z_u(i+1) = a(W z_u(i) + b + mu U z_c(i)), and the logits are z_c(L) + z_u(L)."""
    network = Drawn(ColumnsNetwork(name="columns", hidden=(5, 4, 3), activation="tanh", lateral=lateral), 7, 2, 4)
    module, rows = started(network, seed), draw(seed, 6, 7, dtype=torch.float32)
    tensors = dict(module.named_parameters())
    names = ["layer1", "layer2", "layer3", "output"]

    z_c, z_u = [rows[:, :4]], [rows[:, 4:]]
    for i, name in enumerate(names):
        hears = lateral * z_c[i] @ tensors[f"unique.{name}.lateral.weight"].T if lateral and i else 0.0
        mapped_c = z_c[i] @ tensors[f"common.{name}.weight"].T + tensors[f"common.{name}.bias"]
        mapped_u = z_u[i] @ tensors[f"unique.{name}.weight"].T + tensors[f"unique.{name}.bias"] + hears
        z_c.append(mapped_c if name == "output" else torch.tanh(mapped_c))
        z_u.append(mapped_u if name == "output" else torch.tanh(mapped_u))

    assert isinstance(module, Columns)
    torch.testing.assert_close(module(rows), z_c[-1] + z_u[-1])
    for found, expected in zip(module.common_outputs(rows), z_c[1:], strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(module.joint(rows, module.common_outputs(rows)), z_c[-1] + z_u[-1])


def test_the_joint_loss_leaves_a_detached_common_column_alone() -> None:
    """With detached outputs only the unique column and its lateral matrices get a gradient."""
    network = Drawn(ColumnsNetwork(name="columns", hidden=(5, 4), lateral=0.5), 7, 2, 4)
    module, rows = started(network, 0), draw(0, 6, 7, dtype=torch.float32)
    assert isinstance(module, Columns)

    outputs = tuple(values.detach() for values in module.common_outputs(rows))
    module.joint(rows, outputs).square().sum().backward()

    assert all((values.grad is None) == name.startswith("common.") for name, values in module.named_parameters())


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "dense", "hidden": (9,), "dropout": 0.5},
        {"name": "parallel", "common": (9,), "unique": (9,), "dropout": 0.5},
        {"name": "global-layers-network", "latent": 8, "gate": False, "input_normalisation": False,
         "transformer_blocks": 1, "input_dropout": 0.4},
    ],
)  # fmt: skip
def test_dropout_works_in_training_only(fields: dict[str, object]) -> None:
    """With dropout two training passes differ and two evaluations do not."""
    kind = drawn(str(fields["name"]), 0).architecture
    network = Drawn(type(kind).model_validate(fields), 5, 2, 3)
    module, rows = started(network, 0), torch.ones(8, 5)

    assert not torch.equal(module.train()(rows), module(rows))
    assert torch.equal(module.eval()(rows), module(rows))
