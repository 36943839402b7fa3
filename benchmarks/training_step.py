"""Measures the time of one training step, of the trainer and of a simple implementation of the same network.

All start from the same parameters, see the same batches in the same order and must make the same
losses, so the references really train. Shapes are those of a heart site: 182 rows, 13 columns, 5
batches an epoch, s = 128. A step is choosing the batch, forward, loss, backward and optimiser.

* ours: `LocalTraining` over a `FlatNetwork`, in the arithmetic that the site's trainer prepares;
* reference: a loop over columns, `attention(x, x, x)[0]`, torch.optim.AdamW as it comes;
* fast reference: the same, but attention runs with need_weights=False and uses torch's fused kernel.

They take turns in one process on one thread, so the arithmetic of ours (matrix products that do not
depend on the CPU's kind, deterministic algorithms) is also that of the references. Seconds are of
this thread's processor time, which other programs on the machine disturb least.

    python -m benchmarks.training_step
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.reference.global_layers import ReferenceNetwork, copy_parameters
from protos.plan.architecture import GlobalLayersNetwork, network_tensors
from protos.plan.ingredients import Method
from protos.plan.optimisers import AdamW
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.site_network import build_network
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.flat_network import FlatNetwork
from site_agent.trainer.training.local import LocalTraining
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.training_model import Recipe

ROWS, COLUMNS, BATCHES = 182, 13, 5
TURNS, STEPS_PER_TURN, SEED = 20, 4 * BATCHES, 1
LARGEST_DIFFERENCE = 1e-5
HEART = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)


@dataclass(frozen=True)
class Contestant:
    """A program to compare: a network, and a function that makes a number of training steps."""

    network: nn.Module
    train: Callable[[int], None]


def table() -> Rows:
    """Return 182 standardised rows with 13 columns of a public clinical table, and their labels 0 and 1."""
    rows, labels = load_breast_cancer(return_X_y=True)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:ROWS]
    values = torch.from_numpy(rows).float()[chosen, :COLUMNS]
    return Rows((values - values.mean(0)) / values.std(0), torch.from_numpy(labels).float()[chosen])


def batches() -> Iterator[Tensor]:
    """Yield the row numbers of each batch, without end, as `LocalTraining` draws them."""
    generator = np.random.default_rng(SEED)
    while True:
        order = torch.from_numpy(generator.permutation(ROWS))[: ROWS // BATCHES * BATCHES]
        yield from order.view(BATCHES, -1)


def ours(data: Rows) -> Contestant:
    """Return the unchanged trainer of a site as a program to compare."""
    flat = FlatNetwork(build_network(HEART, COLUMNS, 1), [])
    flat.start(network_tensors(HEART, columns=COLUMNS, outputs=1), 0)
    recipe = Recipe(
        build=lambda: flat,
        loss=LossFunction(task="binary"),
        optimiser=AdamW(name="adamw", learning_rate=1e-3, weight_decay=1e-4),
    )
    training = LocalTraining(
        build_procedure(Method(), flat, recipe),
        rows=data,
        batches=Batches(ROWS, BATCHES, np.random.default_rng(SEED)),
        dropout_seed=0,
    )
    return Contestant(flat.network, lambda steps: training.train_round(steps, torch.empty(0)))


def reference(data: Rows, start: nn.Module, *, attention_weights: bool) -> Contestant:
    """Return a simple program that starts from the same parameters."""
    network = ReferenceNetwork(HEART, COLUMNS, 1, attention_weights=attention_weights)
    copy_parameters(start, network, HEART.heads)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-4)
    order = batches()

    def train(steps: int) -> None:
        for _ in range(steps):
            rows = next(order)
            optimiser.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(network(data.features[rows])[:, 0], data.targets[rows])
            torch.autograd.backward(loss)
            optimiser.step()

    return Contestant(network, train)


def largest_difference(data: Rows, contestants: list[Contestant]) -> float:
    """Train one epoch with both programs. Return the largest difference of their losses before a step.

    Later, rounding grows apart as in any two runs of training.
    """
    difference = 0.0
    for rows, _ in zip(batches(), range(BATCHES), strict=False):
        losses = []
        for contestant in contestants:
            with torch.no_grad():
                logits = contestant.network(data.features[rows])[:, 0]
            losses.append(functional.binary_cross_entropy_with_logits(logits, data.targets[rows]).item())
            contestant.train(1)
        print("loss  ours {:.7f}  reference {:.7f}  fast reference {:.7f}".format(*losses))
        difference = max(difference, max(losses) - min(losses))
    return difference


def median_seconds(contestants: list[Contestant]) -> list[float]:
    """Return each program's processor seconds for one step: the median over turns, without the first turn."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(TURNS + 1):
        for contestant, of_turns in zip(contestants, seconds, strict=True):
            began = time.thread_time()
            contestant.train(STEPS_PER_TURN)
            of_turns.append((time.thread_time() - began) / STEPS_PER_TURN)
    return [statistics.median(of_turns[1:]) for of_turns in seconds]


def main() -> None:
    """Compare the first epoch's losses, then time all three in turns and print medians."""
    prepare_arithmetic(1)
    data = table()
    trained = ours(data)
    plain = reference(data, trained.network, attention_weights=True)
    fast = reference(data, trained.network, attention_weights=False)
    difference = largest_difference(data, [trained, plain, fast])
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"the losses differ by {difference}")
    gc.freeze()  # so that garbage collection does not scan the objects of imported modules again
    our_seconds, plain_seconds, fast_seconds = median_seconds([trained, plain, fast])
    print(
        f"median over {TURNS} turns of {STEPS_PER_TURN} steps  ours {our_seconds * 1e3:.2f} ms  "
        f"reference, attention(x, x, x)[0]: {plain_seconds * 1e3:.2f} ms  "
        f"fast reference, need_weights=False: {fast_seconds * 1e3:.2f} ms"
    )
    print(
        f"ours_step_s={our_seconds:.6f} reference_step_s={plain_seconds:.6f} "
        f"ratio={plain_seconds / our_seconds:.2f} fast_reference_step_s={fast_seconds:.6f} "
        f"fast_ratio={fast_seconds / our_seconds:.2f} loss_difference={difference:.2e}"
    )


if __name__ == "__main__":
    main()
