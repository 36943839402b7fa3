"""Answers "should I join?": compares a hospital's federated model with the best model that it could train alone.

No paper has this study. One hospital at a time has few training rows and the others use all of their rows, as when a
hospital joins a federation. A third of each class of its rows is the test set. All models of a cell are tested on the
same rows. The sums, the guard and the join are the hospitals' own code. Every number passes the gate's door and the
coordinator's sum.

Nothing is chosen by these figures. The recipe and its settings were fixed before the study, and no earlier study used
the splits in SEEDS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from benchmarks.experiments.data.natural_sites import FEWEST_SITES, SOURCES, NaturalSites
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.views import placebo, union_of_columns
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, row_of, run_plan
from benchmarks.prior.prior_gain import split_of
from global_layers.one_process import run_rounds
from protos.plan.architecture import Architecture
from protos.plan.compatibility import agreed_sizes
from protos.plan.methods import NETWORK_METHODS, MethodChoice
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from site_agent.desk.comparison.evaluation import Scores, measure, scores_of
from site_agent.desk.results.joined_model import JoinedModel, of_others
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.desk.results.simple_models import best_simple_model, simple_scores
from site_agent.trainer.data.dataset import Dataset, Examples, SplitRows, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import mapped_columns, values_of
from site_agent.trainer.prior.prior_study import KnownByOthers, PriorStudy
from site_agent.trainer.site_network import Seeds

SEEDS: Final = range(400, 408)
TEST_SHARE: Final = 1 / 3
ALL: Final = 0  # training rows: all rows of a site
# If there are at least this many sites, each site is tested in only one split.
MANY_SITES: Final = 10
_SPLITS_OF_MANY: Final = 5
NEARLY_ALL: Final = 0.9  # fraction of a site's training rows above which we use all rows
_PERMUTED: Final = 7
# Methods that train each split separately, or train many epochs in a round, run in fewer splits.
_SLOW: Final = ("player-fl", "player-fl-random", "fedrep")
_SPLITS_OF_SLOW: Final = 3
Numbers: TypeAlias = npt.NDArray[np.float64]
NETWORK: Final = {
    "name": "global-layers-network", "latent": 32, "gate": False, "input_normalisation": False,
    "transformer_blocks": 0, "entities": False, "dropout": 0.3, "input_dropout": 0.2,
}  # fmt: skip
_PARALLEL: Final = {"architecture": {"name": "parallel", "common": (32,), "unique": (32,)}}
# The additional keys that a method needs in the plan. Nothing else differs.
_KEYS_OF: Final[Mapping[str, Mapping[str, Any]]] = {
    "chfl": {"architecture": {"name": "columns", "hidden": (32,), "lateral": 0.25}},
    "fenda-fl": _PARALLEL,
    "perfcl": _PARALLEL,
    "scaffold": {"optimiser": {"name": "sgd", "learning_rate": 0.1}},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings for one table: the numbers of training rows, and the number of splits.

    Attributes:
        levels: numbers of training rows of the joining hospital.
        splits: how many of SEEDS.
        is_pooled: whether a model of all rows in one place is fitted too.
        network_levels: numbers of training rows at which the methods with networks run.
        has_own_columns: whether a site has columns that not all sites have, as CHFL needs.
        has_equal_classes: whether all sites predict the same classes, as a shared last layer needs.
        is_over_sites: whether there are enough sites that each is tested in one split, and intervals are over sites.
    """

    levels: tuple[int, ...]
    splits: int
    is_pooled: bool = True
    network_levels: tuple[int, ...] = (ALL,)
    has_own_columns: bool = False
    has_equal_classes: bool = True
    is_over_sites: bool = False


SETTINGS: Final = {
    "UCI heart": Setting(levels=(30, 50, 100, 200, 400, ALL), splits=8, network_levels=(50, ALL), has_own_columns=True),
    "heart studies": Setting(levels=(30, 50, 100, 200, 400, ALL), splits=5, has_own_columns=True),
    "preterm birth": Setting(levels=(30, 50, 100, 200, 400, ALL), splits=5),
    "covertype areas": Setting(levels=(30, 50, 100, 200, 400, ALL), splits=4, is_pooled=False, has_equal_classes=False),
    "leukaemia": Setting(levels=(30, 50, ALL), splits=_SPLITS_OF_MANY, is_over_sites=True),
    "dialysis": Setting(levels=(30, 50, 100, ALL), splits=_SPLITS_OF_MANY, is_over_sites=True),
}


def variants() -> list[Variant]:
    """Return a variant for every table and number of training rows, and for the methods with networks that can run."""
    found = []
    for table, setting in SETTINGS.items():
        for rows in setting.levels:
            run = _Prior(table, rows).run
            found.append(Variant(name=f"{table}, {rows}", run=run, most_seeds=setting.splits))
        for rows in setting.network_levels:
            for method in methods_at(table):
                network = _Networks(table, rows, method)
                splits = min(setting.splits, _SPLITS_OF_SLOW) if method in _SLOW else setting.splits
                name = f"{table}, {rows}, {method}"
                found.append(Variant(name=name, run=network.run, most_seeds=splits))
    return found


def methods_at(table: str) -> tuple[str, ...]:
    """The methods with networks that can run at a table, in the order of the catalogue."""
    setting = SETTINGS[table]
    return tuple(
        method
        for method in NETWORK_METHODS
        if (setting.has_own_columns or method != "chfl")
        and (setting.has_equal_classes or "outputs" not in _agreed_sizes(method))
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One site's rows in one split, encoded by this site."""

    table: Table
    split: SplitRows
    dataset: Dataset
    preprocessing: Preprocessing

    @staticmethod
    def of(table: Table, rows: int, seed: int) -> Member:
        """Split and encode a site's rows. `rows` is the number of training rows."""
        split = split_of(table, rows, seed)
        dataset, preprocessing = prepare_rows(table, split)
        return Member(table=table, split=split, dataset=dataset, preprocessing=preprocessing)

    def study(self, plan: Plan, site: str) -> PriorStudy:
        """Return this site's study of a plan with federated-prior."""
        return PriorStudy(plan, self.dataset, self.table, self.split, site=site, secret=bytes(32), fewest=0)

    def permuted(self, seed: Sequence[int]) -> Member:
        """Return the same rows with shuffled outcomes."""
        assert self.table.target is not None
        target = np.random.default_rng(seed).permutation(self.table.target)
        return replace(self, table=replace(self.table, target=target))

    def auroc(self, scores: Scores) -> float:
        """Return the AUROC of scores of the test rows."""
        found = measure(self.dataset.task, self.dataset.test.targets, scores, self.dataset.classes)["auroc"]
        assert found is not None  # the test rows are a third of each class
        return found


Members = Mapping[str, Member]


@dataclass(frozen=True)
class _Prior:
    """Runs federated-prior at one number of training rows, and the methods with which it is compared."""

    table: str
    rows: int

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        sites = SOURCES[self.table](folder)
        for site, members in federations(sites, self.rows, seed):
            metrics = measured(sites, members, site, seed)
            if SETTINGS[self.table].is_pooled:
                metrics["pooled"] = _pooled(sites, members, site, _chosen_for_pooled(self.table, folder, seed), seed)
            yield Row(variant=f"{self.table}, {self.rows}", seed=seed, site=site, chosen_round=-1, metrics=metrics)


def federations(sites: NaturalSites, rows: int, seed: int) -> Iterator[tuple[str, Members]]:
    """Yield the federation of each tested site with all other sites. Only the tested site has few training rows."""
    whole = {name: Member.of(table, ALL, seed) for name, table in sites.tables.items()}
    names = list(whole)
    if len(names) >= MANY_SITES:
        names = names[(seed - SEEDS[0]) % _SPLITS_OF_MANY :: _SPLITS_OF_MANY]
    for name in names:
        if rows == ALL:
            yield name, whole
        elif rows < NEARLY_ALL * len(whole[name].dataset.training):
            yield name, whole | {name: Member.of(sites.tables[name], rows, seed)}


def measured(sites: NaturalSites, members: Members, site: str, seed: int) -> dict[str, float]:
    """Return the AUROC of each model at one site, and the weight of the others' score in the joined model."""
    own, seeds, plan = members[site], Seeds.published(seed, site), sites.plan(members, seed)
    studies = {name: member.study(plan, name) for name, member in members.items()}
    run_rounds(plan, studies)
    known, fits = studies[site].known_by_others(), fit_own_models(own.dataset, seeds.own("join"))
    join = joined_with(studies[site], known, own.preprocessing, fits)
    strangers = {
        name: member if name == site else member.permuted((seed, place, _PERMUTED))
        for place, (name, member) in enumerate(members.items())
    }
    others = {name: member.study(plan, name) for name, member in strangers.items()}
    run_rounds(plan, others)
    noise = others[site].known_by_others()
    misled = joined_with(others[site], noise, own.preprocessing, fits)
    found = {
        "best local": _best_local(own, seeds),
        "federated-prior": _joined(own, studies[site], known, join.model),
        "without others": _joined(own, studies[site], known, join.alone),
        "permuted": _joined(own, others[site], noise, misled.model),
        "weight": float(join.model.weights[2]),
        "guard": _guard(known),
        "guard of permuted": _guard(noise),
        "rows": float(len(own.dataset.training)),
    }
    return found | _without_outcomes(sites, members, site, seed)


def _joined(member: Member, study: PriorStudy, known: KnownByOthers, model: JoinedModel) -> float:
    design = known.design(study.part("test"), len(member.dataset.test)).astype(np.float32)
    return member.auroc(scores_of(member.preprocessing, model.outputs(member.dataset.test.features, design)))


def _guard(known: KnownByOthers) -> float:
    assert known.guard is not None  # only the private form has none
    return known.guard


def _best_local(member: Member, seeds: Seeds) -> float:
    """Return the regression, forest or boosting that cross-validation within the training rows chooses."""
    name = best_simple_model(member.dataset, seeds.own("best local"))
    return member.auroc(_fitted(member, name, seeds.own("simple models")))


def _fitted(member: Member, wanted: str, seed: int) -> Scores:
    every = simple_scores(member.dataset, member.preprocessing, seed)
    return next(scores for name, scores in every if name == wanted)


def _without_outcomes(sites: NaturalSites, members: Members, site: str, seed: int) -> dict[str, float]:
    """Return the AUROC of the received score at a site without outcomes.

    Return nothing if it cannot receive a score.
    """
    contributors = {name: member for name, member in members.items() if name != site}
    if len(contributors) < FEWEST_SITES:
        return {}
    plan, own = sites.plan(contributors, seed), members[site]
    studies = {name: member.study(plan, name) for name, member in contributors.items()}
    run_rounds(plan, studies)
    known = next(iter(studies.values())).known_by_others()
    if _guard(known) <= 0:
        return {}
    assert isinstance(plan, PriorPlan)
    mapped = mapped_columns(plan.concepts, own.table.contract, None)
    features = {name: values[own.split.test] for name, values in own.table.features.items()}
    lines = known.standard.applied(values_of(mapped, features, len(own.split.test))) @ known.joint.T
    if sites.classes:
        lines = lines[:, [sites.classes.index(name) for name in own.dataset.classes]]
    return {"no outcomes": own.auroc(scores_of(own.preprocessing, of_others(own.dataset.task, lines)))}


@cache
def _chosen_for_pooled(table: str, folder: Path, seed: int) -> str:
    """Return the simple model that would be chosen if all sites' rows were pooled."""
    sites = SOURCES[table](folder)
    whole = {name: Member.of(each, ALL, seed) for name, each in sites.tables.items()}
    return best_simple_model(_together(sites, whole, next(iter(whole)), seed).dataset, seed)


def _pooled(sites: NaturalSites, members: Members, site: str, chosen: str, seed: int) -> float:
    """Return the result of a model of all sites' pooled rows, with the concepts and a column for each site."""
    return members[site].auroc(_fitted(_together(sites, members, site, seed), chosen, seed))


def _together(sites: NaturalSites, members: Members, site: str, seed: int) -> Member:
    """Return the training rows of all sites, and the test rows of one site."""
    plan = sites.plan(members, seed)
    parts = [_concepts(plan, member, name, member.split.training) for name, member in members.items()]
    raw = np.concatenate(parts)
    own = _concepts(plan, members[site], site, members[site].split.test)
    where = np.repeat(np.arange(len(members)), [len(part) for part in parts])
    here = np.full(len(own), list(members).index(site))
    means, deviations = np.nanmean(raw, axis=0), np.nanstd(raw, axis=0)
    is_flagged = np.isnan(raw).any(axis=0)

    def encoded(values: Numbers, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        filled = np.nan_to_num((values - means) / np.where(deviations > 0, deviations, 1.0))
        flags, indicators = np.isnan(values[:, is_flagged]), np.eye(len(members))[places]
        return np.ascontiguousarray(np.concatenate([filled, flags, indicators], axis=1), dtype=np.float32)

    training = Examples(
        features=encoded(raw, where),
        targets=np.concatenate([member.dataset.training.targets for member in members.values()]),
    )
    test = Examples(features=encoded(own, here), targets=members[site].dataset.test.targets)
    columns = tuple(f"column {place}" for place in range(test.features.shape[1]))
    dataset = replace(members[site].dataset, training=training, test=test, validation=test, columns=columns)
    return replace(members[site], dataset=dataset)


def _concepts(plan: Plan, member: Member, name: str, rows: npt.NDArray[np.int64]) -> Numbers:
    assert isinstance(plan, PriorPlan)
    mapped = mapped_columns(plan.concepts, member.table.contract, name)
    return values_of(mapped, {key: values[rows] for key, values in member.table.features.items()}, len(rows))


@dataclass(frozen=True)
class _Networks:
    """Runs a method with networks at one number of training rows, and its placebo at the same sites."""

    table: str
    rows: int
    method: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant. With many sites there is one federation for all and no placebo, because both are slow."""
        cell = dict(federations(SOURCES[self.table](folder), self.rows, seed))
        whole: dict[str, float] = {}
        for site, members in cell.items():
            datasets = {name: member.dataset for name, member in members.items()}
            changes = {"columns": _recorded_by_all(datasets)} if self.method == "chfl" else {}
            if self.rows != ALL or not whole:
                whole |= self._tested(seed, datasets, **changes)
            metrics = {"federated": whole[site]}
            if not SETTINGS[self.table].is_over_sites:
                copies = placebo(datasets[site], len(datasets) - 1, seed)
                metrics["placebo"] = self._tested(seed, copies, **changes)["itself"]
            name = f"{self.table}, {self.rows}, {self.method}"
            yield Row(variant=name, seed=seed, site=site, chosen_round=-1, metrics=metrics)

    def _tested(self, seed: int, sites: Sites, **changes: Any) -> dict[str, float]:
        predicted = run_plan(network_plan(sites, seed, self.method, **changes), sites)
        return {one.site: row_of("", one, sites[one.site]).metrics["auroc"] for one in predicted}


def _recorded_by_all(sites: Sites) -> list[str]:
    """Return CHFL's common columns, which all sites have. A site can also have columns of its own."""
    return [column for column in union_of_columns(sites) if all(column in each.columns for each in sites.values())]


def network_plan(sites: Sites, seed: int, method: str, **changes: Any) -> Plan:  # Any: keys of a plan, checked by it
    """Return the plan of a method with networks: 20 epochs of 5 batches, AdamW at 0.001, the last model is kept."""
    keys: dict[str, Any] = {"architecture": NETWORK} | dict(_KEYS_OF.get(method, {})) | changes
    sizes = _agreed_sizes(method)
    if "columns" in sizes and "columns" not in changes:
        columns = union_of_columns(sites)
        recorded_by = {column: [name for name, each in sites.items() if column in each.columns] for column in columns}
        keys["columns"] = [{"name": column, "recorded_by": names} for column, names in recorded_by.items()]
    if "outputs" in sizes:
        keys["outputs"] = 1
    content: dict[str, Any] = {
        "method": {"name": method},
        "schedule": {"aggregate": "every-epoch", "epochs": 20, "batches_per_epoch": 5},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-4},
        "weighting": {"name": "equal"},
        "checkpoint": "latest",
    }
    return experiment_plan(sites, seed, **content | keys)


def _agreed_sizes(method: str) -> Collection[str]:
    """Return the sizes of the network that must be equal at all sites."""
    definition: MethodChoice = TypeAdapter(MethodChoice).validate_python({"name": method})
    content = _KEYS_OF.get(method, {}).get("architecture", NETWORK)
    network: Architecture = TypeAdapter(Architecture).validate_python(content)
    return agreed_sizes(definition.method(), network)
