"""Runs variants for which the Global Layers paper has no results: sums instead of means, and batch normalisation.

It also finds the difference that lowers the published FedAvg, by one change at a time to the FedAvg of the heart table.

Source: Obeidi, "Global Layers", and docs/design/methods.md. The page also shows the lines of the heart table for the
same seeds. There are two sums: that of the sites' layers, as printed, and that of their changes, which is the mean's
step times the number of sites. A coordinator can compute both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.data.heart import FILES
from benchmarks.experiments.data.recipes import Paper
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.views import aligned, aligned_as_authors
from benchmarks.experiments.federations import federate
from benchmarks.experiments.modules import heart_batch_normalisation
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.single_vectors import Build, SumOfLayers, SumOfUpdates, federate_vectors
from benchmarks.experiments.statistics import Mean, by_seed, difference, mean_of
from benchmarks.experiments.store import read_rows
from benchmarks.experiments.tables.heart import (
    NETWORK,
    OPTIMISER,
    PUBLISHED,
    READINGS,
    OneReading,
    Reading,
    heart_plan,
    heart_sites,
)
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row, Variant, predicted_by, predicted_by_stack, row_of
from protos.plan.architecture import GlobalLayersNetwork, Part, Uniform, network_tensors
from protos.plan.plan import Plan

SEEDS: Final = range(20)
MEAN: Final = "global-layers, authors, equal start"
ALONE: Final = "local, authors"
SUMS: Final[dict[str, Build]] = {
    "sum of changes": lambda _plan, _manifest, _sites: SumOfUpdates(),
    "sum of layers": lambda _plan, _manifest, _sites: SumOfLayers(),
}
MEASURED: Final = {"global-layers, measuring": "global-layers", "local, measuring": "local"}
FEDAVG: Final = "fedavg, authors"
_OWN: Final = READINGS[FEDAVG]
_ALL_BUT_EMBEDDING: Final = tuple(
    dict.fromkeys(
        tensor.layer
        for tensor in network_tensors(GlobalLayersNetwork.model_validate(NETWORK), columns=31, outputs=1)
        if tensor.layer != "input.embedding"
    )
)
# FedAvg of the heart table with one change each: first of the order and alignment of columns, then of the training.
CHANGES: Final[dict[str, Reading]] = {
    "columns by name": replace(_OWN, view=aligned),
    "one place to the right": replace(_OWN, view=partial(aligned_as_authors, places=1)),
    "order of appearance, to the right": replace(
        _OWN, view=partial(aligned_as_authors, in_alphabetical_order=False, places=1)
    ),
    "private embedding": replace(_OWN, keys={"method": {"name": "global-layers", "layers": _ALL_BUT_EMBEDDING}}),
    "own start": replace(_OWN, keys={"start": "own"}),
    "mean after every batch": replace(_OWN, aggregate="every-batch"),
    "best common checkpoint": replace(_OWN, keys={"checkpoint": "global"}),
    "a third of the rate": replace(_OWN, keys={"optimiser": OPTIMISER | {"learning_rate": 3e-4}}),
    "classes balanced in the loss": replace(_OWN, keys={"loss": {"name": "task-default", "class_weights": "balanced"}}),
    "paper's encoding": replace(_OWN, recipe=Paper()),
}
_PAIRS: Final = (
    *((name, MEAN) for name in (*SUMS, "global-layers, measuring")),
    ("local, measuring", ALONE),
    ("global-layers, measuring", "local, measuring"),
)
_MODULE: Final = Path(heart_batch_normalisation.__file__)
_KINDS: Final = {"weight": "gain", "bias": "shift"}


def variants() -> list[Variant]:
    """Return the variants: both sums, FedAvg with one change each, and both methods with batch normalisation."""
    sums = [Variant(name=name, run=_Sum(name).run, seeds_at_once=5) for name in SUMS]
    changes = [Variant(name=name, run=OneReading(name, reading).run) for name, reading in CHANGES.items()]
    return sums + changes + [Variant(name=name, run=_Measured(name).run, seeds_at_once=1) for name in MEASURED]


@dataclass(frozen=True)
class _Sum:
    """A variant with sums, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows. If the numbers of a seed and site overflow, there is no row for them."""
        reading = READINGS[MEAN]
        data = {seed: heart_sites(folder, seed, reading) for seed in seeds}
        plans = [heart_plan(data[seed], seed, reading) for seed in seeds]
        sites = {name: [data[seed][name] for seed in seeds] for name in FILES}
        for predicted in predicted_by_stack(seeds, federate_vectors(plans, sites, SUMS[self.name])):
            if np.isfinite(predicted.outputs).all():
                yield row_of(self.name, predicted, data[predicted.seed][predicted.site])


@dataclass(frozen=True)
class _Measured:
    """Runs a method with the module heart_batch_normalisation.py as its network."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """See Variant."""
        for seed in seeds:
            sites = heart_sites(folder, seed, READINGS[MEAN])
            _, outcomes = federate(measured_plan(sites, seed, MEASURED[self.name]), sites, own_module=_MODULE)
            for name, outcome in outcomes.items():
                yield replace(row_of(self.name, predicted_by(seed, name, outcome), sites[name]), variant=self.name)


def measured_plan(sites: Sites, seed: int, method: str) -> Plan:
    """Return the authors' plan with a hospital's own module as network, whose layers 2 to 4 are shared."""
    return experiment_plan(
        sites,
        seed,
        method={"name": method},
        architecture={"name": "named-tensors", "tensors": listed_tensors()},
        schedule={"aggregate": "every-epoch", "epochs": 10, "batches_per_epoch": 5},
        optimiser=OPTIMISER,
        weighting={"name": "equal"},
        checkpoint="latest",
    )


def listed_tensors() -> list[dict[str, Any]]:
    """Return the tensors of the network's body, with the module's names, in the form in which a plan lists tensors."""
    found = []
    network = network_tensors(heart_batch_normalisation.NETWORK, columns=1, outputs=1)
    for tensor in (tensor for tensor in network if tensor.part is Part.BODY):
        owner, _, kind = tensor.name.removeprefix("body.").rpartition(".")
        kind = _KINDS[kind] if tensor.is_normalisation else kind
        bound = tensor.initial.bound if isinstance(tensor.initial, Uniform) else 0.0
        found.append({"name": f"{owner}.{kind}", "shape": list(tensor.shape), "bound": bound})
    return found


def render_readings(rows: list[Row], path: Path) -> None:
    """Write the AUROC of each variant beside the mean and local training on the same seeds, with differences."""
    seeds = {row.seed for row in rows}
    beside = [row for row in read_rows(path.with_name("heart.csv")) if row.seed in seeds]
    every, names = [*rows, *beside], [MEAN, ALONE, *SUMS, *MEASURED]
    lines = begin_page("Heart: the published sum, measuring normalisation, and FedAvg", "heart-readings", path)
    lines += [
        f"The lines *{MEAN}*, *{ALONE}* and *{FEDAVG}* are those of the [heart table](heart.md) for the same seeds. A "
        "sum with fewer seeds than another lost them to numbers that overflowed.",
        "",
        "## AUROC, percent",
        "",
    ]
    lines += table_lines(["variant", *FILES, "seeds"], [_areas(every, name) for name in names])
    lines += ["## Differences on the same seeds, points", "", *_differences(every, _PAIRS)]
    lines += ["## Why FedAvg is published so low: AUROC, percent, and one change at a time", ""]
    published = ["paper", *(f"{PUBLISHED[FEDAVG][site][0]:.2f}" for site in FILES), "101"]
    levels = [_areas(every, name) for name in (ALONE, FEDAVG)]
    lines += table_lines(["variant", *FILES, "seeds"], [published, *levels])
    lines += [*_differences(every, [(name, FEDAVG) for name in CHANGES]), _LOW, "", _READING]
    write_page(path, lines)
    _plot(every, names, path)


def _areas(rows: list[Row], name: str) -> list[str]:
    """Return the row of a variant: its AUROC at each site, and its number of seeds."""
    found = [list(by_seed(rows, name, site, "auroc").values()) for site in FILES]
    counts = ", ".join(dict.fromkeys(str(len(values)) for values in found))
    return [name, *(mean_of(values).text() if values else "-" for values in found), counts]


def _differences(rows: list[Row], pairs: Iterable[tuple[str, str]]) -> list[str]:
    body = []
    for first, second in pairs:
        found = [difference(*(by_seed(rows, name, site, "auroc") for name in (first, second))) for site in FILES]
        runs = max((mean.runs for mean in found if mean), default=0)
        body.append([f"{first} minus {second}", *(mean.text() if mean else "-" for mean in found), str(runs)])
    return table_lines(["difference on the same seeds, points", *FILES, "seeds"], body)


def _plot(rows: list[Row], names: Sequence[str], path: Path) -> None:
    panels = {}
    for site in FILES:
        found = {name: list(by_seed(rows, name, site, "auroc").values()) for name in names}
        means = {name: mean_of(values) for name, values in found.items() if values}
        panels[site] = [
            Dot(name=name, mean=Mean(100 * mean.value, 100 * mean.half_width, mean.runs), published=None)
            for name, mean in means.items()
        ]
    if all(panels.values()) and len({len(dots) for dots in panels.values()}) == 1:
        plot_dots(path.with_suffix(".svg"), panels, title="Heart: other readings of the paper", axis="AUROC, percent")


_LOW: Final = """\
The order of the columns explains it. This order was found by trial. Pandas, which the authors use, sorts the columns of
an outer alignment. With South Africa's values one place to the left, its tobacco stands in Faisalabad's column `time`,
and four other columns meet foreign ones too. This costs South Africa and Faisalabad what the paper reports, and
Cleveland little. One place to the right, or in order of appearance, other columns meet and little is lost. With a
private embedding little is lost either, because each site then reads a column in its own way. Start, interval of the
mean, rate, checkpoint and loss change little. The paper's encoding scales words too and spares South Africa, not
Faisalabad. South Africa loses more here than in the paper. Which columns meet depends on their names, and Cleveland's
file has none.
"""
_READING: Final = """\
## Which to use

The defaults stay the mean and the affine normalisation; both other readings cost AUROC at every site over these
seeds. The sum of layers makes three sites' layers three times as large in every round, and little is left of what
they had learnt. The sum of changes is the mean's step three times as long, which takes what federation had gained
over training alone; with masks it would be as possible as the mean, because the coordinator knows the sum.
Normalisations that measure cost Global Layers and training alone about the same, so federation gains with them
too. They are in `benchmarks/experiments/modules/heart_batch_normalisation.py`, which trains as a hospital's
`own_module` does: running means and variances are private buffers. Its private layers start otherwise than those of
the plan's own network, and its shared scale is 1 + gain, so weight decay pulls the scale to 1 and not to 0.
"""
