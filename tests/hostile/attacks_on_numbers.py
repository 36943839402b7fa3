"""An observer who searches a sum for numbers from one site alone. Nobody has to cheat for that. Real tables, real
training, real gates and masks. The attacker wants a part of one site's update, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import site_agent.trainer.fitting
from protos.errors import ConfigurationError, OperatorError
from protos.numbers.newton_sums import NewtonSums
from protos.plan.exchange import Exchange
from protos.plan.manifest import manifest_of, slices_of
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import AnnouncedSums, place_sums
from protos.wire.messages import Announcement, Join, Stage
from site_agent.hospital import read_hospital
from site_agent.trainer.before_rounds import begin_prior
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior import concept_columns, prior_study
from site_agent.trainer.prior.concept_columns import values_of
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.requests import Asked
from tests.federation import Site, of_kind, settle
from tests.hostile.attack import Attack, as_attack, patched, scratch
from tests.hostile.imprinting import COLUMNS, PLAN
from tests.hostile.masking_coordinator import agree
from tests.hostile.real_trainers import Sum, exchange_of, hospitals, plan_for, sum_of_updates, trainers_of
from tests.site_agent.trainer.prior.prior_federation import SITES, concepts_of, make_hospital, prior_plan
from tests.site_agent.trainer.sites import NAMES

ROUNDS = 4
SMALL: dict[str, Any] = PLAN | {
    "architecture": {"name": "dense", "hidden": [4, 4], "activation": "relu"},
    "schedule": {"aggregate": "every-epoch", "epochs": ROUNDS, "batches_per_epoch": 1},
}


def _is_exposed(exchange: Exchange, sites: list[Site], update: Sum) -> bool:
    own = [_columns(exchange, trainer.update) for trainer in trainers_of(sites)]
    for place, column in enumerate(_columns(exchange, update)):
        filled = [columns[place] for columns in own if np.any(columns[place])]
        if len(filled) == 1 and np.allclose(column, filled[0], atol=1e-7):
            return True
    return False


def _columns(exchange: Exchange, update: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The tensors of an update, the first layer's weights column by column."""
    found: list[npt.NDArray[Any]] = []
    for tensor, place in zip(exchange.up, slices_of(exchange.up), strict=True):
        values = update[place].reshape(tensor.shape)
        found += list(values.T) if tensor.name == "input.layer1.weight" else [values]
    return found


def _without_comparing_columns() -> AbstractContextManager[None]:
    return patched(site_agent.trainer.fitting, _check_recorded=lambda plan, dataset, site: None)


@as_attack(_without_comparing_columns)
async def column_of_one_site(folder: Path) -> bool:
    """Share the input layer of sites of which one alone records a column: its weights' sum is that site's update."""
    plan = plan_for(**SMALL)
    columns = {name: slice(0, COLUMNS if name == NAMES[0] else COLUMNS - 1) for name in NAMES}
    sites = hospitals(plan, folder, columns)
    await settle()
    announced = Announcement(plan.run_name, plan.canonical)
    joined = [of_kind(await site.tell(announced), Join) for site in sites]
    if not all(joined):
        assert joined == [joined[0], [], []]
        assert all(isinstance(site.error, OperatorError) for site in sites[1:])
        return False
    await agree(sites)
    update = await sum_of_updates(plan, sites, 0, manifest_of(plan).initial_parameters(plan.seed))
    return update is not None and _is_exposed(exchange_of(plan, 0), sites, update)


def _with_concepts_that_are_nowhere() -> AbstractContextManager[None]:
    return patched(concept_columns, _recording_column=lambda concept, recorded, _: recorded.get(concept.name))


def concept_of_one_site(weakened: bool) -> bool:
    """Leave out of a plan who records a concept: if one site does, its count and moments are the sums."""
    with _with_concepts_that_are_nowhere() if weakened else nullcontext(), suppress(ConfigurationError):
        return _has_sums_of_one_site()
    return False


def _has_sums_of_one_site() -> bool:
    plan = prior_plan("breast-cancer")
    concept = plan.columns[0].name

    def without_the_concept(contract: dict[str, Any]) -> None:
        for column in contract["columns"]:
            if column.get("concept") == concept:
                del column["concept"]

    with scratch() as folder:
        changes = dict.fromkeys(SITES[1:], without_the_concept)
        places = {site: make_hospital(folder / site, site, "breast-cancer", change=changes.get(site)) for site in SITES}
        return _are_of_the_first(plan, places)


def _are_of_the_first(plan: PriorPlan, places: Mapping[str, Path]) -> bool:
    """Whether the sums of the first column are those of the first site."""
    each = []
    for place in places.values():
        study, _ = begin_prior(read_hospital(place), plan)
        each.append(dict(zip(plan.statistics_names, _statistics(study), strict=True)))
    names = [f"{kind} {plan.columns[0].name}" for kind in ("count", "sum", "squares")]
    sums = [sum(found[name] for found in each) for name in names]
    return sums == [each[0][name] for name in names] and all(sums)


def column_rare_elsewhere(weakened: bool) -> bool:
    """Ask for the sums of a column that varies at one site alone: all others have the same value in each row."""
    plan = prior_plan("breast-cancer")

    def zeros(key: bytes, round_number: int, place: int, limits: Sequence[tuple[int, int]]) -> list[int]:
        return [0] * len(limits)

    with scratch() as folder:
        places = {site: make_hospital(folder / site, site, "breast-cancer") for site in SITES}
        for place in [*places.values()][1:]:
            head, *rows = (place.parent / "table.csv").read_text().splitlines(keepends=True)
            (place.parent / "table.csv").write_text(head + "".join(f"10.0,{row.partition(',')[2]}" for row in rows))
        with patched(prior_study, voids=zeros) if weakened else nullcontext():
            return _are_of_the_first(plan, places)


def product_of_one_patient(weakened: bool) -> bool:
    """Read from H the product of two numbers that all patients have apart, and one has together."""
    plan = prior_plan("breast-cancer", concepts=concepts_of("breast-cancer")[:3])
    draw, rows, studies = np.random.default_rng(0), np.arange(400), []
    for site in SITES:
        values = draw.normal((14.0, 19.0, 92.0), (3.0, 4.0, 20.0), (len(rows), 3))
        values[rows % 20 != 0, 0], values[rows % 20 != 1, 1] = np.nan, np.nan
        if site == SITES[0]:
            values[0, :2] = 28.0, 39.0
        with scratch() as folder:
            contract = read_contract(make_hospital(folder / site, site, "breast-cancer").with_name("contract.yaml"))
        features = dict(zip([feature.name for feature in contract.features], values.T, strict=False))
        table = Table(contract=contract, rows=len(rows), features=features, target=rows % 2.0, patients=None)
        dataset: Any = SimpleNamespace(digest="", training=rows, columns=(), training_patients=None)
        with patched(concept_columns, _share_few=lambda *_: False) if weakened else nullcontext():
            split = SplitRows(training=rows, validation=rows[:0], test=rows[:0])
            studies.append(PriorStudy(plan, dataset, table, split, site=site, secret=bytes(32), fewest=10))
    announced = np.zeros(4 * plan.place(0, 1).stop, np.float32)
    place_sums(announced, plan.place(0, 1), np.sum([_statistics(study) for study in studies], axis=0).tolist())
    asked, standard = Asked(round=1, stage=Stage.NEWTON), AnnouncedSums(plan, plan.whole(1, announced)).standard
    words = np.sum([study.train(asked, announced).scalars for study in studies], axis=0).tolist()
    (hessian,) = NewtonSums.decoded(words, 3, 1).hessian
    own = values_of(studies[0]._recorded, studies[0].part("training"), len(rows))[:1]
    theirs = (own - standard.means) / standard.deviations
    # Without these columns their entry of H is 0, and their means are those of random numbers.
    is_read = abs(hessian[0, 1] / hessian[2, 2] * 4 * len(rows) - theirs[0, :2].prod()) < 0.5
    return bool(standard.is_used[:2].all() and is_read)


def _statistics(study: PriorStudy) -> tuple[int, ...]:
    asked = Asked(round=0, stage=Stage.STATISTICS)
    return study.train(asked, np.zeros(study.exchange(asked).down_numbers, np.float32)).scalars


ATTACKS = (
    Attack(
        "product-of-two-numbers-of-one-patient",
        "the least number of rows that two numbers share",
        product_of_one_patient,
    ),
    Attack(
        name="column-rare-at-all-others",
        tries="a plan asks for the sums of a column that few patients of all but one site have",
        without="the random integers of a void: it has zeros",
        run=column_rare_elsewhere,
    ),
    Attack(
        "concept-that-one-site-records",
        "the refusal of a site that lacks a concept for which the plan counts it",
        concept_of_one_site,
    ),
    Attack(
        "column-that-one-site-records",
        "the comparison of a table with the columns that a plan says it records",
        column_of_one_site,
    ),
)
