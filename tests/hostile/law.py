"""The law of answered sums, searched: `python -m tests.hostile.law [--quick]`.

The law: no linear combination of all sums that honest hospitals answer depends on fewer sites than the smallest set, or
on fewer patients than the smallest cell; and what leaves a hospital is the same for tables that differ in one patient.

law_histories.py draws histories of two or three approved plans of all kinds whose settings vary, with changes of tables
between them, and later rounds with other announced values. Which sums are answered is decided by the real code alone:
the policy, the comparison of sets and rules with the gate's store, the witness of the memory, the memory of answered
values, the trainer's voids, and the masks' contexts. law_sums.py writes each answered sum as a function of the rows of
each site. A combination that depends on a set of few sites or of few patients alone breaks the law. Each rule is also
removed in turn, and the search must find its lack.

The last line is `histories= combinations_searched= isolating= transcripts_compared= differing=`.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

import site_agent.gate.itinerary
import site_agent.trainer.data.dataset
from protos.masking.answered_sets import Answer, why_unlike
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.statistics import group_curves, table_one
from protos.wire import positions
from protos.wire.messages import Bind, MalformedMessage, Offer, Stage
from site_agent.gate import policy, site_masking
from site_agent.gate.itinerary import Itinerary
from site_agent.gate.policy import refusals
from site_agent.gate.site_masking import SiteMasking
from site_agent.trainer import answered_values, before_rounds
from site_agent.trainer.answered_values import ReleasedBefore, Values, newest_head
from site_agent.trainer.data import run_table
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.prior import prior_study
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics import statistics_study
from tests.federation import identity_key, identity_of
from tests.hostile.attack import patched
from tests.hostile.attacks_on_voids import refused_by_the_trainer
from tests.hostile.compared_transcripts import is_told_apart
from tests.hostile.law_histories import House, change, houses_of, plan_of
from tests.hostile.law_isolating import isolating
from tests.hostile.law_sums import Sum, sums_of

Gates = dict[str, tuple[SiteMasking, Itinerary]]


def _is_admitted(house: House, plan: Plan, gates: Gates, answers: dict[str, Any]) -> bool:
    manifest, rules = manifest_of(plan), house.hospital
    if refusals(rules.policy, plan, manifest, site=house.name, identity=identity_of(house.name)):
        return False
    masking = SiteMasking(
        plan=plan, manifest=manifest, site=house.name, identity_key=identity_key(house.name), store=house.store
    )  # fmt: skip
    try:
        if masking._why_not is not None:
            raise MaskingRefused(masking._why_not)
        answered_values.require_head(house.folder / "models", house.head)
        answers[house.name] = _answer(house, plan)
    except (MaskingRefused, answered_values.MemoryLost, ReleasedBefore):
        return False
    house.head = newest_head(house.folder / "models")
    masking._steps.add(0, 0, bytes(32), bytes(32))
    masking._transcript = bytes(32)  # of all sites' keys
    gates[house.name] = masking, Itinerary(plan, manifest, ())
    return True


def _answer(house: House, plan: Plan) -> Any:
    """Answer the first round, and remember its values; the study, and what it sends. A network's study is not made."""
    table = house.table
    rows = SplitRows(training=np.arange(table.rows), validation=np.arange(0), test=np.arange(0))
    if isinstance(plan, NetworkPlan):
        return before_rounds._remember_network(house.hospital, plan, table, rows)
    patients = site_agent.trainer.data.dataset._patients(table, rows.training)
    dataset = SimpleNamespace(digest="", training=rows.training, columns=(), training_patients=patients)
    with (
        patched(run_table, table_for_run=lambda *_: (table, rows), table_digest=lambda _: ""),
        patched(site_agent.trainer.data.dataset, prepare_rows=lambda *_: (dataset, None)),
    ):
        study: Any = (
            before_rounds.begin_prior(house.hospital, plan)[0]
            if isinstance(plan, PriorPlan)
            else before_rounds.begin_statistics(house.hospital, plan, house.folder)
        )
    sent = study.train(Asked(round=0, stage=Stage.STATISTICS), np.empty(0, np.float32)).scalars
    study.remember()
    return study, sent


def announced(generator: np.random.Generator, plan: Plan, gates: Gates) -> list[dict[str, str]]:
    """Offer later rounds, some with other values to some sites. Return what each site received for each readable sum.
    The real gates decide what they answer. Masks cancel if all sites of the plan masked in one context."""
    found: dict[bytes, dict[str, str]] = defaultdict(dict)
    if plan.bits != 32:
        return []  # the scales of short integers follow from sums, and are another announcement
    exchanges = Exchanges(plan, manifest_of(plan))
    for number, attempt in ((0, 0), (1, 0), (1, 1), (2, 0)):
        stage = stage_at(plan, number)
        if stage is None or generator.random() < 0.2 * attempt:
            continue
        exchange, usual = exchanges.of(number, stage, b""), str(generator.choice(["one", "other"], p=[0.8, 0.2]))
        to = dict.fromkeys(plan.site_names, usual)
        if generator.random() < 0.5:
            to[str(generator.choice(plan.site_names))] = "special"
        for name, values in to.items():
            masking, itinerary = gates[name]
            digest = positions.parameters_digest(np.frombuffer(values.encode() * 4, np.float32))
            offer = Offer(number, attempt, digest if number else exchanges.start_digest(exchange), stage)
            try:
                itinerary.accept(offer)
                here = positions.position(plan.run_name, offer)
                if number:
                    masking._steps.add(number, attempt, here, digest)
                    bind = Bind(number, attempt, plan.site_names, 0)
                    found[masking._context(here, bind, exchange.layout)][name] = values
            except (MalformedMessage, MaskingRefused):
                continue
    return [one for one in found.values() if len(one) == len(plan.site_names)]


def history(seed: int, folder: Path) -> tuple[int, list[str]]:
    """Play one history in which persons allow no plan beside another; the sets that were searched, what isolates."""
    generator, numbers = np.random.default_rng(seed), iter(range(10**9))
    houses, plan = houses_of(generator, folder, numbers), None
    sums, kinds = list[Sum](), list[Mapping[str, Any]]()
    for place in range(int(generator.integers(2, 4))):
        plan, answers, gates = plan_of(generator, place, plan), dict[str, Any](), Gates()
        taking_part = [houses[name] for name in plan.site_names]
        decisions = [_is_admitted(house, plan, gates, answers) for house in taking_part]  # all decide
        if all(decisions):
            later = announced(np.random.default_rng((seed, place)), plan, gates)
            sums += sums_of(plan, taking_part, len(kinds), answers, later)
            kinds.append({house.name: house.kinds(plan) for house in taking_part})
        for name in generator.choice(plan.site_names, generator.integers(0, 3), replace=False):
            change(generator, houses[str(name)], numbers)
    for house in houses.values():
        house.store.close()
    return isolating(sums, kinds, generator) if sums else (0, [])


def searched(seeds: range, without: str = "") -> tuple[int, list[str]]:
    """Play histories; how many sets were searched, and what isolates. A weakened copy stops at the first finding."""
    logging.disable(logging.CRITICAL)
    sets, broken = 0, list[str]()
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # made-up patients, and many small files
    with weakened(without):
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="law-", dir=fast) as folder:
                count, found = history(seed, Path(folder))
            sets, broken = sets + count, [*broken, *(f"history {seed}: {one}" for one in found)]
            if without and broken:
                break
    return sets, broken


def _found_without(name: str) -> str:
    start = WEAKENED[name][0]
    return next(iter(searched(range(start, start + 1000), name)[1]), "")


def _lenient(reason: Reason) -> Callable[[Answer, Iterable[Answer]], Reason | None]:
    """Return a comparison of sums that never refuses for this reason."""
    return lambda answer, others: next(
        (one for other in others if (one := why_unlike(answer, other)) not in (None, reason)), None
    )


def _position(run: str, offer: Offer, real: Callable[[str, Offer], bytes] = positions.position) -> bytes:
    return real(run, replace(offer, parameters_digest=bytes(32)))


# What each weakened copy lacks: the first history in which its lack was found, from which the search goes on, and what
# stands in place of the check.
WEAKENED: Final[dict[str, tuple[int, str, Any, Sequence[Any]]]] = {
    "the sets of sites": (38, "why_not_answered", _lenient(Reason.OTHER_SETS), [site_masking]),
    "the rules": (31, "why_not_answered", _lenient(Reason.OTHER_RULES), [site_masking]),
    "the memory of values": (9, "remember", lambda *_: None, [answered_values]),
    "pairs of columns in the memory": (
        559, "_surely_enough", lambda new, *_: np.ones((new.shape[1],) * 2, np.bool_), [answered_values],
    ),
    "mapped values in the memory": (61, "numbers_of", lambda name, x, *_: {name: Values(values=x)}, [answered_values]),
    "the witness of the memory": (40, "require_head", lambda *_: None, [answered_values]),
    "the smallest set of each number": (380, "kinds_of", lambda _: {}, [policy]),
    "announced values in the masks": (0, "position", _position, [positions, site_agent.gate.itinerary]),
    "small cells": (7, "void_groups", lambda *_: frozenset(), [table_one, group_curves]),
    "rare columns": (21, "without_rare", lambda mapped, *_: tuple(mapped), [prior_study]),
    "patients of rare columns": (460, "_patients", lambda *_: None, [site_agent.trainer.data.dataset]),
    "claimed columns": (0, "_check_own", lambda *_: None, [prior_study.PriorStudy]),
    "random numbers in voids": (0, "voids", lambda *given: [0 for _ in given[3]], [statistics_study, prior_study]),
}  # fmt: skip


@contextmanager
def weakened(name: str) -> Iterator[None]:
    """Return a copy that lacks a rule; without a name our programs."""
    with pytest.MonkeyPatch.context() as patch:
        _, check, instead, owners = WEAKENED.get(name, (0, "", None, ()))
        for owner in owners:
            patch.setattr(owner, check, instead)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Search; the exit status is 0 only if the law holds, and each weakened copy breaks it."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.law", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Play 100 histories instead of 1,000.")
    options = parser.parse_args(arguments)
    count, pairs = (100, 8) if options.quick else (1000, 100)
    kinds = "statistics", "prior", "network", "network"  # every other pair has two rounds
    with refused_by_the_trainer():
        is_found = all(is_told_apart(kind, 1) for kind in kinds)
    print(f"without voids: {'transcripts differ' if is_found else 'NO DIFFERENCE FOUND'}", flush=True)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, finding in zip(WEAKENED, pool.map(_found_without, WEAKENED), strict=True):
            print(f"without {name}: {finding or 'NOTHING FOUND'}", flush=True)
            is_found = is_found and bool(finding)
        parts = [*pool.map(searched, (range(start, start + 20) for start in range(0, count, 20)))]
        told = [*pool.map(is_told_apart, (kinds[pair % 4] for pair in range(pairs)), [1, 2] * pairs)]
    broken = [one for _, found in parts for one in found]
    print(*broken, sep="\n", end="\n" if broken else "")
    print(
        f"histories={count} combinations_searched={sum(sets for sets, _ in parts)} isolating={len(broken)} "
        f"transcripts_compared={pairs} differing={sum(told)}"
    )
    return 0 if is_found and not broken and not any(told) else 1


if __name__ == "__main__":
    sys.exit(main())
