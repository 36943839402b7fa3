"""Should I join? When federation helps: rows a site, number of sites, number of classes, overlap of columns.

A study of no paper. Every setting is run three ways by the same recipe at equal epochs: federated; alone, the
same network at each site; and placebo, each site among copies of itself, so that what averaging does alone is
distinguished from what other sites bring. Federated minus placebo is what the others are worth.

The recipe is a small one: Global Layers' network without
entities and transformer, latent 32, dropout 0.3 (inputs 0.2), AdamW at 0.001, 20 epochs of 5 batches. Where all
sites have the same columns and classes, FedAvg over all parameters stands beside it, and where they have some
columns in common, FENDA-FL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from benchmarks.experiments.data.covertype import covertype
from benchmarks.experiments.data.dealt_columns import Deal, DealtColumns, dealt_covertype
from benchmarks.experiments.data.heart import heart
from benchmarks.experiments.data.recipes import Default
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.uci_centres import fed_heart
from benchmarks.experiments.data.views import placebo, thinned, union_of_columns
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, auroc_row, run_plans

Role: TypeAlias = Literal["federated", "alone", "placebo"]
ROLES: Final[tuple[Role, ...]] = ("federated", "alone", "placebo")
SEEDS: Final = range(10)
# So many sites of a setting are compared with their placebo, which costs as many trainings as there are sites.
MOST_PLACEBOS: Final = 2
BEST_EPOCH: Final = ", best epoch"
ROWS: Final = "training rows a site"
SITES: Final = "sites"
CLASSES: Final = "classes"
OVERLAP: Final = "share of columns in common"

_NETWORK: Final = {
    "name": "global-layers-network",
    "latent": 32,
    "gate": False,
    "input_normalisation": False,
    "transformer_blocks": 0,
    "entities": False,
    "dropout": 0.3,
    "input_dropout": 0.2,
}
_PARALLEL: Final = {"name": "parallel", "common": [32], "unique": [32], "dropout": 0.3}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One place on one axis of the study.

    Attributes:
        axis: what is varied, as the page says it.
        data: which sites.
        value: where on the axis.
        methods: which are run.
        sites: the sites of a seed, and which columns they have in common.
    """

    axis: str
    data: str
    value: float
    methods: tuple[str, ...]
    sites: Callable[[Path, int], DealtColumns]

    @property
    def name(self) -> str:
        """Unique in the study."""
        return f"{self.axis} {self.value:g}, {self.data}"


def settings() -> list[Setting]:
    """The whole study."""
    both, three = ("global-layers", "fedavg"), ("global-layers", "fedavg", "fenda-fl")
    found = [
        Setting(axis=ROWS, data="heart", value=rows, methods=("global-layers",), sites=_Heart(rows).sites)
        for rows in (20, 45, 90, 180)
    ]
    found += [
        Setting(axis=ROWS, data="fed-heart", value=rows, methods=both, sites=_FedHeart(rows).sites)
        for rows in (10, 20, 40, 68)
    ]
    found += [
        Setting(axis=ROWS, data="covertype areas", value=rows, methods=("global-layers",), sites=_Areas(rows).sites)
        for rows in (45, 90, 180, 380)
    ]
    dealt = [(SITES, number, Deal(sites=number, training_rows=60)) for number in (2, 4, 8, 16)]
    dealt += [(CLASSES, number, Deal(sites=4, training_rows=60, classes=number)) for number in (2, 3, 5, 7)]
    found += [
        Setting(axis=axis, data="covertype dealt", value=value, methods=both, sites=_Dealt(deal).sites)
        for axis, value, deal in dealt
    ]
    return found + [
        Setting(
            axis=OVERLAP,
            data="covertype dealt",
            value=share,
            methods=three if share else both,
            sites=_Dealt(Deal(sites=4, training_rows=60, columns=12, common_share=share)).sites,
        )
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]


def variants() -> list[Variant]:
    """Every setting with its methods in three roles; heart also with each one's own best epoch."""
    found = []
    for setting in settings():
        ends = ("", BEST_EPOCH) if setting.data == "heart" else ("",)
        for name in (f"{setting.name}, {m}, {role}{end}" for m in setting.methods for role in ROLES for end in ends):
            found.append(Variant(name=name, run=_Join(name).run, seeds_at_once=10))
    return found


@dataclass(frozen=True)
class _Join:
    """A variant by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """See Variant."""
        setting = next(each for each in settings() if self.name.startswith(f"{each.name}, "))
        method, role = self.name.removesuffix(BEST_EPOCH).removeprefix(f"{setting.name}, ").split(", ")
        checkpoint = "local" if self.name.endswith(BEST_EPOCH) else "latest"
        data = {seed: setting.sites(folder, seed) for seed in seeds}
        names = list(data[seeds[0]].sites)
        if role != "placebo":
            federations = [data[seed] for seed in seeds]
            yield from self._run(seeds, federations, method if role == "federated" else "local", checkpoint, method)
            return
        for site in names[:MOST_PLACEBOS]:
            federations = [
                replace(data[seed], sites=placebo(data[seed].sites[site], len(names) - 1, seed)) for seed in seeds
            ]
            for row in self._run(seeds, federations, method, checkpoint, method):
                if row.site == "itself":
                    yield replace(row, site=site)

    def _run(
        self, seeds: Sequence[int], federations: Sequence[DealtColumns], method: str, checkpoint: str, network: str
    ) -> Iterator[Row]:
        plans = [
            join_plan(federation, seed, method, checkpoint, network)
            for seed, federation in zip(seeds, federations, strict=True)
        ]
        by_seed = {seed: federation.sites for seed, federation in zip(seeds, federations, strict=True)}
        for predicted in run_plans(plans, [federation.sites for federation in federations]):
            yield auroc_row(self.name, predicted, by_seed[predicted.seed][predicted.site])


def join_plan(federation: DealtColumns, seed: int, method: str, checkpoint: str, network: str) -> Any:  # a Plan
    """The plan of a method, or of `local` with the network of a method."""
    sites = federation.sites
    keys: dict[str, Any] = {"architecture": _PARALLEL if network == "fenda-fl" else _NETWORK}
    if method == "fedavg":
        keys |= {"columns": union_of_columns(sites), "outputs": next(iter(sites.values())).outputs}
    if method == "fenda-fl":
        keys["columns"] = federation.common
    return experiment_plan(
        sites,
        seed,
        method={"name": method},
        schedule={"aggregate": "every-epoch", "epochs": 20, "batches_per_epoch": 5},
        optimiser={"name": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-4},
        weighting={"name": "equal"},
        checkpoint=checkpoint,
        **keys,
    )


@dataclass(frozen=True)
class _Heart:
    rows: int

    def sites(self, folder: Path, seed: int) -> DealtColumns:
        """Three hospitals with columns of their own."""
        return _thinned(heart(folder, seed, Default()), self.rows, seed)


@dataclass(frozen=True)
class _FedHeart:
    rows: int

    def sites(self, folder: Path, seed: int) -> DealtColumns:
        """Three centres with the same columns; Switzerland has 24 training rows and is left out."""
        found = fed_heart(folder, seed)
        return _thinned({name: found[name] for name in ("cleveland", "hungarian", "va")}, self.rows, seed)


@dataclass(frozen=True)
class _Areas:
    rows: int

    def sites(self, folder: Path, seed: int) -> DealtColumns:
        """Four wilderness areas with the same columns and three to six classes."""
        return _thinned(covertype(folder, seed, Default(one_hot=False)), self.rows, seed)


@dataclass(frozen=True)
class _Dealt:
    deal: Deal

    def sites(self, folder: Path, seed: int) -> DealtColumns:
        """Sites that differ by chance alone. Columns are named by their place, so that seeds can be stacked."""
        dealt = dealt_covertype(folder, seed, self.deal)
        common = tuple(f"common {place}" for place in range(len(dealt.common)))
        sites = {}
        for name, dataset in dealt.sites.items():
            own = (f"{name} {place}" for place in range(len(common), len(dataset.columns)))
            sites[name] = replace(dataset, columns=(*common, *own))
        return DealtColumns(sites=sites, common=common)


def _thinned(sites: Sites, rows: int, seed: int) -> DealtColumns:
    return DealtColumns(sites={name: thinned(dataset, rows, seed) for name, dataset in sites.items()}, common=())
