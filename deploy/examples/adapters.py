"""A frozen transformer with low-rank adapters: an example of a network of a hospital's own (docs/researcher.md).

A row is a sequence of numbers, one for each encoded column. `python adapters.py` prints what the plan lists, and writes
the transformer's values as a starting file. Replace `Block` and its values by a published transformer. Names of tensors
have no capital letters. Source: Hu et al. 2021, LoRA.
"""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

WIDTH, HEADS, RANK = 32, 4, 4


class Adapted(nn.Module):
    """A linear layer that stays as it was published, plus a trained change of low rank that starts at 0."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.down = nn.Parameter(torch.empty(RANK, inputs))
        self.up = nn.Parameter(torch.empty(outputs, RANK))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs)."""
        return self.frozen(values) + values @ self.down.T @ self.up.T


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.joined = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map (rows, columns, WIDTH) to the same shape."""
        query, key, value = self.mixed(self.before(values)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        values = values + self.joined(seen)
        return values + self.narrow(functional.gelu(self.wide(self.between(values))))


class Own(nn.Module):
    """Private layers of this hospital before and behind the transformer."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(columns, WIDTH) / 10)
        self.entry = nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.exit = nn.Linear(WIDTH, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (rows, columns) to (rows, outputs)."""
        values = self.entry(rows.unsqueeze(-1)) + self.places
        for block in self.blocks:
            values = block(values)
        return self.exit(values.mean(dim=1))


def build(columns: int, outputs: int) -> nn.Module:
    """Return the network for this hospital's columns."""
    return Own(columns, outputs)


def is_adapter(name: str) -> bool:
    """Return whether a tensor of the blocks is trained and shared."""
    return name.endswith((".down", ".up"))


if __name__ == "__main__":
    tensors = {name: one.detach() for name, one in build(1, 1).named_parameters() if name.startswith("blocks.")}
    for name, one in tensors.items():
        first = f"bound: {0.1 if name.endswith('.down') else 0.0}{'' if is_adapter(name) else ', frozen: true'}"
        print(f"    - {{name: {name}, shape: {list(one.shape)}, {first}}}")
    save_file({name: one for name, one in tensors.items() if not is_adapter(name)}, "frozen.safetensors")
    digest = hashlib.sha256(Path("frozen.safetensors").read_bytes()).hexdigest()
    layers = sorted({name.rpartition(".")[0] for name in tensors if not is_adapter(name)})
    print(f"start: {{name: file, seed: 0, sha256: {digest}, layers: [{', '.join(layers)}]}}")
