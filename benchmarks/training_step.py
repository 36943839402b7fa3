"""Time of one training step: our network against the same one written plainly.

Both start from the same parameters, see the same batches in the same order and must reach the same
losses, so the reference really trains. Shapes are those of a heart site: 182 rows, 13 columns, 5
batches an epoch, s = 128. Epochs alternate between the two in one process on one thread; a step
is forward, loss, backward and optimiser. Ours uses the fused AdamW, the reference torch's default.

    python -m benchmarks.training_step
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.reference.global_layers import ReferenceNetwork, copy_parameters
from protos.architecture import GlobalLayersNetwork, network_tensors
from site_agent.trainer.models.catalogue import build_network, start

ROWS, COLUMNS, BATCHES, EPOCHS = 182, 13, 5, 40
HEART = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)


def table() -> tuple[Tensor, Tensor]:
    """Standardised rows (182, 13) and labels (182, 1) of a public clinical table."""
    rows, labels = load_breast_cancer(return_X_y=True)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:ROWS]
    values = torch.from_numpy(rows).float()[chosen, :COLUMNS]
    return (values - values.mean(0)) / values.std(0), torch.from_numpy(labels).float()[chosen].unsqueeze(1)


def step_of(network: nn.Module, optimiser: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """One full training step on one batch, returning its loss."""

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(network(rows), labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def timed_epoch(
    step: Callable[[Tensor, Tensor], Tensor], batches: list[tuple[Tensor, Tensor]]
) -> tuple[list[float], list[float]]:
    """The seconds and the loss of each step."""
    seconds, losses = [], []
    for rows, labels in batches:
        began = time.perf_counter()
        loss = step(rows, labels)
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    return seconds, losses


def pair() -> tuple[nn.Module, ReferenceNetwork]:
    """Our network and the reference, with the same parameters."""
    ours, reference = build_network(HEART, COLUMNS, 1), ReferenceNetwork(HEART, COLUMNS, 1)
    start(ours, network_tensors(HEART, columns=COLUMNS, outputs=1), 0)
    copy_parameters(ours, reference, HEART.heads)
    return ours, reference


def main() -> None:
    """Run both, compare the first epoch's losses, print medians."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory serves to find its misuse; no result depends on it.
    torch.utils.deterministic.fill_uninitialized_memory = False
    rows, labels = table()
    ours, reference = pair()
    our_step = step_of(ours, torch.optim.AdamW(ours.parameters(), lr=1e-3, weight_decay=1e-4, fused=True))
    reference_step = step_of(reference, torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=1e-4))
    gc.freeze()  # what importing left behind is not walked again by either
    generator = torch.Generator().manual_seed(1)
    our_seconds: list[float] = []
    reference_seconds: list[float] = []
    difference = 0.0
    for epoch in range(EPOCHS):
        order = torch.randperm(ROWS, generator=generator)[: ROWS // BATCHES * BATCHES].view(BATCHES, -1)
        batches = [(rows[chosen], labels[chosen]) for chosen in order]
        seconds, losses = timed_epoch(our_step, batches)
        other_seconds, other_losses = timed_epoch(reference_step, batches)
        if epoch == 0:  # later, rounding grows apart as in any two runs of training
            difference = max(abs(a - b) for a, b in zip(losses, other_losses, strict=True))
            print(f"losses of the first epoch  ours {losses}  reference {other_losses}")
            if difference > 1e-5:
                raise SystemExit(f"the losses differ by {difference}")
        else:
            our_seconds += seconds
            reference_seconds += other_seconds
    our_median, reference_median = statistics.median(our_seconds), statistics.median(reference_seconds)
    print(
        f"median of {len(our_seconds)} steps  ours {our_median * 1e3:.2f} ms  reference {reference_median * 1e3:.2f} ms"
    )
    print(
        f"ours_step_s={our_median:.6f} reference_step_s={reference_median:.6f} "
        f"ratio={reference_median / our_median:.2f} loss_difference={difference:.2e}"
    )


if __name__ == "__main__":
    main()
