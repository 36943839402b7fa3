"""Runs ten methods on Fed-Heart-Disease (four centres), with three checkpoint rules and other extractors and heads.

Source: Tavakoli et al. 2024 (FENDA-FL), tables 1, 2 and 5. Each run has 15 rounds of 100 steps with batches of 4, and
AdamW (SCAFFOLD: plain SGD). Weights are by rows on the public grid (SCAFFOLD: equal, because its rule requires it).
Networks with a head have dropout 0.3 before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.uci_centres import CENTRES, fed_heart
from benchmarks.experiments.data.views import placebo, pooled
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, row_of, run_plan

_LOGISTIC: Final = {"name": "dense", "hidden": []}
_HIDDEN: Final = {"name": "dense", "hidden": [10], "dropout": 0.3}
_MIXED: Final = {"name": "dense", "hidden": [5], "dropout": 0.3}
_PARALLEL: Final = {"name": "parallel", "common": [5], "unique": [5], "dropout": 0.3}
# Section 5 and appendix D.
_FEDADAM: Final = {"name": "fedadam", "rate": 0.1, "offset": 1e-9}
_ROWS: Final = {"name": "rows", "largest_rows": 256}
CHECKPOINTS: Final = ("local", "global", "latest")

# Each of the paper's clients 0 to 3 is the model of one centre, tested at all centres.
CLIENTS: Final = {f"client {place}, {centre}": centre for place, centre in enumerate(CENTRES)}

# FENDA-FL, tables 2 and 5: mean accuracy over the centres with the checkpoint local, global and latest.
PUBLISHED: Final = {
    "fedavg": (0.724, 0.724, 0.706),
    "fedadam": (0.742, 0.719, 0.711),
    "fedprox": (0.721, 0.716, 0.703),
    "scaffold": (0.682, 0.711, 0.717),
    "moon": (0.752, 0.727, 0.725),
    "fedper": (0.814, None, 0.814),
    "ditto": (0.802, None, 0.797),
    "apfl": (0.801, None, 0.777),
    "perfcl": (0.805, None, 0.806),
    "fenda-fl": (0.815, None, 0.802),
    "siloed": (0.748, None, None),
    "central": (0.732, None, None),
    "central, own scales": (0.732, None, None),
    **{name: (value, None, None) for name, value in zip(CLIENTS, (0.735, 0.649, 0.589, 0.629), strict=True)},
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method with its network and learning rate."""

    method: Mapping[str, object]
    network: Mapping[str, object]
    rate: float
    keys: dict[str, Any] = field(default_factory=dict)  # Any: keys of a plan


ENTRIES: Final = {
    "fedavg": Entry(method={"name": "fedavg"}, network=_LOGISTIC, rate=0.1),
    "fedadam": Entry(method=_FEDADAM, network=_LOGISTIC, rate=1e-5),
    "fedprox": Entry(method={"name": "fedprox", "strength": 0.01}, network=_LOGISTIC, rate=1e-3),
    "scaffold": Entry(
        method={"name": "scaffold", "rate": 0.1},
        network=_LOGISTIC,
        rate=0.1,
        keys={"optimiser": {"name": "sgd", "learning_rate": 0.1}, "weighting": {"name": "equal"}},
    ),
    "moon": Entry(method={"name": "moon"}, network=_HIDDEN, rate=1e-3),
    "fedper": Entry(method={"name": "fedper"}, network=_HIDDEN, rate=1e-3),
    # Appendix B.1: the paper reports Ditto with the large network.
    "ditto": Entry(method={"name": "ditto", "strength": 0.01}, network=_HIDDEN, rate=0.1),
    "apfl": Entry(method={"name": "apfl"}, network=_MIXED, rate=0.1),
    "perfcl": Entry(method={"name": "perfcl"}, network=_PARALLEL, rate=1e-3),
    "fenda-fl": Entry(method={"name": "fenda-fl"}, network=_PARALLEL, rate=1e-3),
    "siloed": Entry(method={"name": "local"}, network=_LOGISTIC, rate=1e-3),
    "siloed, network of fenda-fl": Entry(method={"name": "local"}, network=_PARALLEL, rate=1e-3),
}
# Figure 3: the small network is a logistic regression. The large network has 151 parameters.
SIZES: Final = {"ditto, small network": replace(ENTRIES["ditto"], network=_LOGISTIC)} | {
    f"{name}, large network": replace(ENTRIES[name], network=_HIDDEN)
    for name in ("fedavg", "fedadam", "fedprox", "scaffold", "siloed")
}
# Figure 3 also has the checkpoint global of methods with one model for all sites.
_LARGE_SHARED: Final = {f"{name}, large network" for name in ("fedavg", "fedadam", "fedprox", "scaffold")}
# These entries show how much the two methods below the published values depend on the paper's learning rates.
RATES: Final = {
    "fedadam at rate 0.001": replace(ENTRIES["fedadam"], rate=1e-3),
    "fedadam at rate 0.1": replace(ENTRIES["fedadam"], rate=0.1),
    "fedadam, coordinator's rate 0.01": replace(ENTRIES["fedadam"], method=_FEDADAM | {"rate": 0.01}),
    "fedprox at rate 0.01": replace(ENTRIES["fedprox"], rate=0.01),
    "fedprox at rate 0.1": replace(ENTRIES["fedprox"], rate=0.1),
}
# The paper varies extractors and heads at tasks whose data are not available here (tables 11 and 12).
NETWORKS: Final = {
    f"fenda-fl, {name}": replace(ENTRIES["fenda-fl"], network=_PARALLEL | widths)
    for name, widths in {
        "wider common": {"common": [10]},
        "wider unique": {"unique": [10]},
        "deeper common": {"common": [10, 5]},
        "deeper unique": {"unique": [10, 5]},
        "head of two layers": {"head": [10]},
        "head of three layers": {"head": [10, 10]},
    }.items()
}
# The same runs with exact row counts. A plan may have these settings only with masking. The sums are the same with
# masking.
EXACT_ROWS: Final = {
    f"{name}, exact rows": replace(
        ENTRIES[name], keys={"weighting": _ROWS | {"exact": True}, "masking": {"required": True}}
    )
    for name in ("fedavg", "fedadam", "fedprox", "moon", "fedper", "fenda-fl")
}
_LOCAL_ALONE: Final = SIZES | NETWORKS | EXACT_ROWS
_ALL: Final = ENTRIES | RATES | _LOCAL_ALONE
_WITH_OUTPUTS: Final = {"fedavg", "fedadam", "fedprox", "scaffold", "moon", "ditto", "apfl"}


def variants() -> list[Variant]:
    """Return every method with every checkpoint rule that is possible for it, and the baselines."""
    names = [
        f"{name}, {checkpoint}"
        for name, entry in _ALL.items()
        for checkpoint in CHECKPOINTS
        if (entry.method["name"] != "local" or checkpoint != "global")
        and (name not in _LOCAL_ALONE or checkpoint == "local" or (name in _LARGE_SHARED and checkpoint == "global"))
    ]
    found = [Variant(name=name, run=_Named(name).run) for name in names]
    return [
        *found,
        Variant(name="central, local", run=_OneModel("central, local", one_scale=True).run),
        Variant(name="central, own scales, local", run=_OneModel("central, own scales, local").run),
        *(Variant(name=f"{name}, local", run=_OneModel(f"{name}, local", own).run) for name, own in CLIENTS.items()),
        Variant(name="placebo of fenda-fl, local", run=_run_placebo),
        Variant(name="majority", run=_run_majority),
    ]


def fed_heart_plan(sites: Sites, seed: int, entry: Entry, checkpoint: str) -> Any:  # a Plan
    """The plan of a method for these sites."""
    columns = list(next(iter(sites.values())).columns)
    keys: dict[str, Any] = {"weighting": _ROWS, "optimiser": {"name": "adamw", "learning_rate": entry.rate}}
    if entry.method["name"] != "local":
        keys["columns"] = columns
    if entry.method["name"] in _WITH_OUTPUTS:
        keys["outputs"] = 1
    return experiment_plan(
        sites,
        seed,
        method=entry.method,
        architecture=entry.network,
        schedule={"aggregate": "every-steps", "rounds": 15, "steps_per_round": 100, "batch_rows": 4},
        checkpoint=checkpoint,
        **(keys | entry.keys),
    )


@dataclass(frozen=True)
class _Named:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        entry_name, checkpoint = self.name.rsplit(", ", 1)
        sites = fed_heart(folder, seed)
        for predicted in run_plan(fed_heart_plan(sites, seed, _ALL[entry_name], checkpoint), sites):
            yield row_of(self.name, predicted, sites[predicted.site])


@dataclass(frozen=True)
class _OneModel:
    """One model that is trained on the rows of all centres or of one centre, and tested at each centre.

    In a deployment no centre's own model reaches another centre. In this experiment all rows are public.
    """

    name: str
    centre: str | None = None
    one_scale: bool = False

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        sites = fed_heart(folder, seed, one_scale=self.one_scale)
        model = pooled(sites)
        if self.centre is not None:
            model = replace(sites[self.centre], test=model.test)
        plan = fed_heart_plan({"model": model}, seed, ENTRIES["siloed"], "local")
        (predicted,) = run_plan(plan, {"model": model})
        start = 0
        for name, dataset in sites.items():
            end = start + len(dataset.test)
            yield row_of(self.name, replace(predicted, site=name, outputs=predicted.outputs[start:end]), dataset)
            start = end


def _run_placebo(folder: Path, seed: int) -> Iterator[Row]:
    """Run FENDA-FL at one centre with three copies of this centre. Yield the results."""
    data = fed_heart(folder, seed)
    for site in CENTRES:
        copies = placebo(data[site], 3, seed)
        for predicted in run_plan(fed_heart_plan(copies, seed, ENTRIES["fenda-fl"], "local"), copies):
            if predicted.site == "itself":
                yield row_of("placebo of fenda-fl, local", replace(predicted, site=site), data[site])


def _run_majority(folder: Path, seed: int) -> Iterator[Row]:
    """Yield the results of predicting the more frequent class of the centre's training rows for every patient."""
    for site, dataset in fed_heart(folder, seed).items():
        guess = float(dataset.training.targets.mean() >= 0.5)
        accuracy = float(np.mean(dataset.test.targets == guess))
        yield Row(variant="majority", seed=seed, site=site, chosen_round=-1, metrics={"accuracy": accuracy})
