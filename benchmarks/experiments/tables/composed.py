"""Compares two combinations of federated-prior and Global Layers with each of these methods alone.

Both compositions are measured on the splits of the study "should I join?":

* *prior path*: the others' score is one more private column of every site's network, and a linear path connects the
  columns with the output. *Linear path* is the same network without the score;
* *join of four*: the network is a fourth model of the join. Its weight is fitted like those of the others, from its
  predictions for training rows on which it was not trained. For that the network is trained five more times, each time
  without a fifth of the rows.

The networks, plans and the join are those of the study. Nothing is chosen by these figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.data.natural_sites import SOURCES, NaturalSites
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.tables.join import ALL, NETWORK, Members, federations, network_plan
from benchmarks.experiments.variants import Row, Variant, run_plans
from global_layers.one_process import run_rounds
from site_agent.desk.comparison.evaluation import scores_of
from site_agent.desk.results.joined_model import weighted
from site_agent.desk.results.joining_models import fit_own_models, join_weights
from site_agent.desk.results.prior_report import joined_with
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.site_network import Seeds

FOLDS: Final = 5
LEVELS: Final = (("UCI heart", 50), ("UCI heart", ALL), ("leukaemia", ALL))
PARTS: Final = ("federated-prior", "global-layers")
WAYS: Final = ("linear path", "prior path", "join of four")
COMPOSED: Final = WAYS[1:]  # the others' score is included
_SEEDS_AT_ONCE: Final = 8
Numbers: TypeAlias = npt.NDArray[np.float64]


def variant_name(table: str, rows: int) -> str:
    """Return the name of the variant for a table at this number of training rows."""
    return f"{table}, {rows}, composed"


def variants() -> list[Variant]:
    """Return one variant for each table and number of training rows, with both combinations and both methods alone."""
    return [
        Variant(name=variant_name(*level), run=_Composed(*level).run, seeds_at_once=_SEEDS_AT_ONCE) for level in LEVELS
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Join:
    """The joined model of one site: its parts' outputs (rows, 1) for training rows outside their fit and test rows."""

    unseen: tuple[Numbers, ...]
    tested: tuple[Numbers, ...]
    weights: Numbers


@dataclass(frozen=True)
class _Composed:
    """Computes both combinations for one table and number of training rows. The table must have two classes."""

    table: str
    rows: int

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows. The networks of all seeds are trained as one stack."""
        sites = SOURCES[self.table](folder)
        cells = {seed: dict(federations(sites, self.rows, seed)) for seed in seeds}
        name = variant_name(self.table, self.rows)
        if self.rows == ALL:  # one federation for all tested sites
            whole = {seed: next(iter(cell.values())) for seed, cell in cells.items()}
            tested = {seed: tuple(cell) for seed, cell in cells.items()}
            yield from rows_of(sites, name, whole, tested, is_of_all=True)
            return
        for site in cells[seeds[0]]:
            members = {seed: cell[site] for seed, cell in cells.items()}
            yield from rows_of(sites, name, members, dict.fromkeys(seeds, (site,)), is_of_all=False)


def rows_of(
    sites: NaturalSites,
    variant: str,
    members: Mapping[int, Members],
    tested: Mapping[int, tuple[str, ...]],
    *,
    is_of_all: bool,
) -> Iterator[Row]:
    """Yield the results of both methods and both combinations at the tested sites of one federation, for each seed.

    Args:
        sites: of the table.
        variant: its name in the rows.
        members: of each seed.
        tested: names of each seed.
        is_of_all: whether all sites remove a fold together, because all are tested. Otherwise only the tested site
            does.
    """
    plain = {seed: {name: one.dataset for name, one in each.items()} for seed, each in members.items()}
    joins, scored = {}, {}
    for seed, each in members.items():
        joins[seed], scored[seed] = _joined(sites, each, seed, tested[seed])
    path = {"architecture": NETWORK | {"linear_path": True}}
    networks = {
        "global-layers": _outputs(plain),
        "linear path": _outputs(plain, **path),
        "prior path": _outputs(scored, **path),
    }
    folds = [
        _outputs(
            {seed: left_out(each, tuple(each) if is_of_all else tested[seed], fold) for seed, each in plain.items()}
        )
        for fold in range(FOLDS)
    ]
    for seed, names in tested.items():
        for site in names:
            own, join = members[seed][site], joins[seed][site]
            unseen, places = np.zeros((len(own.dataset.training), 1)), _folds(own.dataset.training)
            for fold, outputs in enumerate(folds):
                unseen[places == fold] = outputs[seed, site]
            four = join_weights("binary", (*join.unseen, unseen), own.dataset.training.targets)
            known = {name: found[seed, site] for name, found in networks.items()}
            known["federated-prior"] = weighted(join.tested, join.weights)
            known["join of four"] = weighted((*join.tested, known["global-layers"]), four)
            metrics = {name: own.auroc(scores_of(own.preprocessing, said)) for name, said in known.items()}
            metrics["weight"] = float(four[-1])
            yield Row(variant=variant, seed=seed, site=site, chosen_round=-1, metrics=metrics)


def _joined(
    sites: NaturalSites, members: Members, seed: int, tested: Sequence[str]
) -> tuple[dict[str, _Join], dict[str, Dataset]]:
    """Return the joined model at each tested site, and all sites' rows with the others' score as a further column."""
    plan = sites.plan(members, seed)
    studies = {name: member.study(plan, name) for name, member in members.items()}
    run_rounds(plan, studies)
    joins, scored = {}, {}
    for name, member in members.items():
        study, own = studies[name], member.dataset
        known = study.known_by_others()
        is_of_use = known.guard is not None and known.guard > 0
        lines = {
            part: known.design(study.part(part), len(getattr(own, part))) @ known.others.T * is_of_use
            for part in ("training", "validation", "test")
        }
        scored[name] = _with_column(own, lines)
        if name in tested:
            fits = fit_own_models(own, Seeds.published(seed, name).own("join"))
            model = joined_with(study, known, member.preprocessing, fits).model
            design = known.design(study.part("test"), len(own.test)).astype(np.float32)
            alone = [replace(model, weights=only).outputs(own.test.features, design) for only in np.eye(3)]
            count = 3 if is_of_use else 2
            joins[name] = _Join(
                unseen=(*fits.unseen, lines["training"] + model.others.starts)[:count],
                tested=tuple(alone[:count]),
                weights=model.weights[:count],
            )
    return joins, scored


def _with_column(dataset: Dataset, lines: Mapping[str, Numbers]) -> Dataset:
    """Return the same rows with an additional private column, standardised by the training rows."""
    mean, deviation = lines["training"].mean(), max(float(lines["training"].std()), 1e-9)

    def wider(part: str) -> Examples:
        rows: Examples = getattr(dataset, part)
        column = ((lines[part] - mean) / deviation).astype(np.float32)
        return replace(rows, features=np.ascontiguousarray(np.concatenate([rows.features, column], axis=1)))

    return replace(
        dataset,
        training=wider("training"),
        validation=wider("validation"),
        test=wider("test"),
        columns=(*dataset.columns, "score of the others"),
    )


def left_out(sites: Sites, whose: Sequence[str], fold: int) -> dict[str, Dataset]:
    """Return the sites. For some sites, one fold of the training rows is moved to the test rows."""
    found = dict(sites)
    for name in whose:
        rows = sites[name].training
        is_out = _folds(rows) == fold
        kept, out = (
            Examples(features=np.ascontiguousarray(rows.features[some]), targets=rows.targets[some])
            for some in (~is_out, is_out)
        )
        found[name] = replace(sites[name], training=kept, test=out)
    return found


def _folds(rows: Examples) -> npt.NDArray[np.int64]:
    """Return the fold of each row, stratified by class. The sizes of folds depend only on the counts of the classes."""
    found = np.empty(len(rows), dtype=np.int64)
    found[np.argsort(rows.targets, kind="stable")] = np.arange(len(rows)) % FOLDS
    return found


def _outputs(federations_of: Mapping[int, Sites], **changes: Any) -> dict[tuple[int, str], Numbers]:
    """The outputs of Global Layers' network for each site's test rows, float64 of shape (rows, 1)."""
    plans = [network_plan(each, seed, "global-layers", **changes) for seed, each in federations_of.items()]
    return {
        (one.seed, one.site): np.asarray(one.outputs, dtype=np.float64)
        for one in run_plans(plans, list(federations_of.values()))
    }
