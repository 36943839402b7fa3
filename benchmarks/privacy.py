"""Measures the accuracy that differential privacy costs federated-prior and networks on UCI heart.

It also audits the guarantee.

Terms are those of the deployed trainer, noise that of the deployed gate. Nothing is masked, since masks cancel. AUROC
is of the shared regression as a model of its own, on a third of each clinic's rows, with an intercept from the clinic's
own training rows. The clip is half the root of the regression's unknowns, and ridge is the method's default. Neither
was tuned here.

The audits are in private_audit.py and private_prior_audit.py. Each trains once with tens of thousands of canaries, and
gives a lower bound of epsilon (95%). With half the noise the bound has to exceed the claim.

Networks are in private_networks.py. `step_ratio` is the largest ratio of processor seconds: a private round of all
clinics over a plain full-batch round of the same network, in one process with the gates' builders and the
coordinator's sum. Run:

    python -m benchmarks.privacy --quick
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import CONCEPTS, plan_of_tables, split_of, uci_tables
from benchmarks.private_audit import audited_training, canary_plan, with_a_share_of_the_noise
from benchmarks.private_networks import declared, network_plan_of, network_step_ratio, print_networks
from benchmarks.private_prior_audit import audited_prior, wide_content
from protos.plan.noisy_results import noisy_fit
from protos.plan.plan import Plan, plan_from_json
from protos.plan.prior_plan import PriorPlan
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import discrete_gaussian
from protos.wire.messages import Stage
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.prior.site_sums import profiled_intercept
from site_agent.trainer.requests import Asked

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
CLAIM: Final = 1.0
DELTA: Final = 1e-5
RIDGE: Final = 10.0  # the default of the method


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split of the four clinics: the sums of terms without noise, and each clinic's study."""

    studies: Mapping[str, PriorStudy]
    terms: Mapping[str, Integers]

    @property
    def total(self) -> Integers:
        """Return the sum of the terms over all clinics, without noise."""
        return np.sum(list(self.terms.values()), axis=0)


def private_plan(tables: Mapping[str, Table], epsilon: float, without: Sequence[str] = ()) -> Plan:
    """Return a private plan with these tables' concepts, except for those in `without`, that promises `epsilon`."""
    content: dict[str, Any] = json.loads(plan_of_tables(tables, 3).canonical)
    content["concepts"] = [one for one in declared(content["concepts"]) if one["name"] not in without]
    plain = plan_from_json(json.dumps(content))
    assert isinstance(plain, PriorPlan)
    clip = sqrt(len(plain.columns) + 1) / 2
    content["ridge"] = RIDGE
    content["masking"]["required"] = True
    content["privacy"] = {"unit": "patient", "epsilon": epsilon, "delta": DELTA, "clip": clip}
    return plan_from_json(json.dumps(content))


def sums_of(plan: Plan) -> PrivateSums:
    """Return the description of a plan's private sums."""
    assert isinstance(plan, PriorPlan)
    assert plan.private is not None
    return plan.private


def split_at(tables: Mapping[str, Table], plan: Plan, seed: int) -> Split:
    """Return the clinics' studies at one split, and the sums that their trainers send to the gates."""
    studies, terms = {}, {}
    for name, table in tables.items():
        rows = split_of(table, 0, seed)
        study = PriorStudy(plan, prepare_rows(table, rows)[0], table, rows, site=name, secret=bytes(32), fewest=0)
        studies[name] = study
        terms[name] = np.array(_trained(study).scalars, np.int64)
    return Split(studies=studies, terms=terms)


def _trained(study: PriorStudy) -> Any:
    return study.train(Asked(round=0, stage=Stage.STATISTICS), np.zeros(4 * study.prior.words, np.float32))


def area(split: Split, slopes: Numbers) -> float:
    """Return the AUROC over the test rows of all clinics together."""
    scores, outcomes = [], []
    for study in split.studies.values():
        standard = study.prior.private
        assert standard is not None
        lines = {}
        for part in ("training", "test"):
            rows = study._rows_of[part]
            means, deviations = standard.standard
            values = np.array(study._table.target)[rows]
            design = np.nan_to_num((_values(study, part) - means) / deviations)
            lines[part] = design @ slopes[0], values
        start = profiled_intercept(*lines["training"], is_number=False)
        scores.append(lines["test"][0] + start)
        outcomes.append(lines["test"][1])
    return float(roc_auc_score(np.concatenate(outcomes), np.concatenate(scores)))


def _values(study: PriorStudy, part: str) -> Numbers:
    from site_agent.trainer.prior.concept_columns import values_of

    return values_of(study.mapped, study.part(part), len(study._rows_of[part]))


def noisy_total(split: Split, plan: Plan) -> Integers:
    """Return the sum that the coordinator sends: each clinic's terms with the noise that its gate added."""
    return np.sum([with_noise(plan, terms.tolist()) for terms in split.terms.values()], axis=0)


def areas(tables: Mapping[str, Table], splits: list[Split], epsilon: float, draws: int) -> dict[str, float]:
    """Return mean AUROC with noise divided among sites, with a trusted curator, and with full noise at each site."""
    plan = private_plan(tables, epsilon)
    private = sums_of(plan)
    alone = PRIVATE_SCALE / private.promise.ratio
    found: dict[str, list[float]] = {"shared": [], "curator": [], "each": []}
    for split in splits:
        for _ in range(draws):
            size = len(private.names)
            curator = split.total + discrete_gaussian(size, round(alone**2), np.random.bytes)
            every = split.total + sum(discrete_gaussian(size, round(alone**2), np.random.bytes) for _ in private.sites)
            for name, numbers, noise in (
                ("shared", noisy_total(split, plan), private.noise),
                ("curator", curator, alone / PRIVATE_SCALE),
                ("each", every, alone * sqrt(len(private.sites)) / PRIVATE_SCALE),
            ):
                slopes, _errors = noisy_fit(private, numbers / PRIVATE_SCALE, RIDGE, noise=noise)
                found[name].append(area(split, slopes))
    return {name: float(np.mean(values)) for name, values in found.items()}


def print_audits(tables: Mapping[str, Table], runs: int) -> tuple[float, float]:
    """Print audited lower bounds of epsilon for whole runs of networks and federated-prior, with full and half noise.

    Returns:
        The two bounds of the first training of a network with shared noise at CLAIM.
    """
    first: list[tuple[float, float]] = []
    for epsilon, steps in product((CLAIM, 4.0), (1, 3)):
        content = json.loads(network_plan_of(tables, epsilon).canonical)
        kind = {"noise": "local"} if steps > 1 else {}
        plan = canary_plan(content, 10 if steps == 1 else 3, steps=steps, **kind)
        both = (plan, with_a_share_of_the_noise(plan, 0.5))
        found = [(audited_training(both[0]).bound(DELTA), audited_training(both[1]).bound(DELTA)) for _ in range(runs)]
        first += found[:1]
        _print_bounds(f"network, {kind.get('noise', 'shared')} noise", epsilon, found)
    for epsilon in (CLAIM, 4.0):
        content = wide_content(json.loads(private_plan(tables, epsilon).canonical))
        plan = plan_from_json(json.dumps(content))
        pairs = [audited_prior([plan, with_a_share_of_the_noise(plan, 0.5)]) for _ in range(max(1, runs // 2))]
        found = [(honest.bound(DELTA), halved.bound(DELTA)) for honest, halved in pairs]
        _print_bounds("federated-prior", epsilon, found)
    return first[0]


def _print_bounds(what: str, epsilon: float, found: Sequence[tuple[float, float]]) -> None:
    honest, halved = np.array(found).T
    below, above = (honest < epsilon).sum(), (halved > epsilon).sum()
    print(f"audit of one run, {what}, epsilon {epsilon:g}: {below} of {len(found)} lower bounds below epsilon, "
          f"{honest.min():.2f} to {honest.max():.2f}; with half the noise {above} above it, "
          f"{halved.min():.2f} to {halved.max():.2f}")  # fmt: skip


def main() -> None:
    """Print the table, then one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Use few splits and draws, for less than two minutes.")
    quick = parser.parse_args().quick
    prepare_arithmetic(1)  # limited as in the trainer: waiting threads of the math library use processor time
    splits_wanted, draws = (10, 5) if quick else (40, 20)
    tables = uci_tables(CONCEPTS.parent)
    plan = private_plan(tables, CLAIM)
    splits = [split_at(tables, plan, seed) for seed in range(splits_wanted)]
    private = sums_of(plan)
    plain = [area(split, noisy_fit(private, split.total / PRIVATE_SCALE, RIDGE, noise=0.0)[0]) for split in splits]
    counts = f"{len(private.columns)} columns, {len(private.names)} numbers"
    print(f"UCI heart, 4 clinics, {counts}, clip {private.promise.clip:.3g}, delta {DELTA:g}")
    print(f"AUROC, mean of {splits_wanted} splits and {draws} draws of noise. Without noise: {np.mean(plain):.4f}")
    print("epsilon  shared  curator  full noise at each site")
    found = {}
    for epsilon in EPSILONS:
        here = found[epsilon] = areas(tables, splits, epsilon, draws)
        print(f"{epsilon:7g}  {here['shared']:.4f}  {here['curator']:.4f}   {here['each']:.4f}")
    print_networks(tables, EPSILONS, 5 if quick else splits_wanted, 1 if quick else draws)
    ratios = [network_step_ratio(tables, hidden) for hidden in ((), (8,), (32,))]
    bound, halved = print_audits(tables, 1 if quick else 20)
    gap = found[CLAIM]["curator"] - found[CLAIM]["shared"]
    bounds = f"audited_lower_bound={bound:.3f} audited_when_halved={halved:.3f}"
    print(f"claimed_epsilon={CLAIM:g} {bounds} gap_to_curator={gap:.4f} step_ratio={max(ratios):.2f}")


if __name__ == "__main__":
    main()
