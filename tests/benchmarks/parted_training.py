"""Trains a small federation whose batches are computed in parts, and saves every site's model.

    torchrun --standalone --nproc-per-node 2 parted_training.py OUTPUT     each process computes one part of each batch
    python parted_training.py OUTPUT --parts 2                             one process computes the same parts in turn
    python parted_training.py OUTPUT                                       one process computes whole batches

All processes hold the same rows and draw the same batches. So
after each exchange of gradients they hold the same models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
from safetensors.numpy import save_file
from torch import Tensor, distributed

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.federations import federate
from benchmarks.experiments.tables.rehearsal import rehearsal_plan
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.training_model import Model, Term


def parts_of(batch: Rows, count: int) -> list[tuple[Rows, float]]:
    """Cut a batch into parts, each with its share of the rows."""
    features, targets = batch.features.tensor_split(count), batch.targets.tensor_split(count)
    return [(Rows(x, y), len(x) / len(batch)) for x, y in zip(features, targets, strict=True)]


def compute_in_parts(count: int) -> None:
    """Let every model of this process add up the gradients of this number of parts, in their order."""
    whole, is_alone = Model.gradient, not distributed.is_initialized()

    def gradient(model: Model, batch: Rows, term: Term | None = None) -> None:
        assert term is None  # a contrast is of the whole batch
        stretches = model.flat.stretches
        found: list[list[Tensor]] = []
        for number, (part, share) in enumerate(parts_of(batch, count)):
            if is_alone or number == distributed.get_rank():
                whole(model, part)
                found.append([share * stretch.grad for stretch in stretches if stretch.grad is not None])
        if not is_alone:
            (mine,) = found
            gathered = [[torch.empty_like(own) for _ in range(count)] for own in mine]
            for own, others in zip(mine, gathered, strict=True):
                distributed.all_gather(others, own)
            found = [[others[number] for others in gathered] for number in range(count)]
        for stretch, *parts in zip(stretches, *found, strict=True):
            assert stretch.grad is not None
            stretch.grad.zero_()
            for part_gradient in parts:  # in the order of the parts, so that every process rounds alike
                stretch.grad.add_(part_gradient)

    Model.gradient = gradient  # type: ignore[method-assign]


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--parts", default=1)
def main(output: Path, parts: int) -> None:
    """Train, and write the models of all sites to OUTPUT. Of several processes only the first one writes."""
    prepare_arithmetic(1)
    rank = 0
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
        rank, parts = distributed.get_rank(), distributed.get_world_size()
    if parts > 1:
        compute_in_parts(parts)
    sites = breast_cancer(0)
    _, outcomes = federate(rehearsal_plan(sites, 0, "global-layers"), sites)
    if rank == 0:
        values = {f"{site}: {name}": v for site, outcome in outcomes.items() for name, v in outcome.values.items()}
        save_file(values, output)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
