"""Measures federated-prior with differential privacy at 4 and 20 sites, on UCI heart and two larger tables.

Terms are those of the deployed trainer. Noise is drawn by the deployed sampler, with the variances of the deployed
plan: shares of all sites, a trusted curator's, or the whole noise at each site. AUROC is of the shared regression as a
model of its own over the test rows of all sites, with an intercept from each site's own training rows.

The four heart clinics are four sites. For 20 sites each clinic's rows are dealt to five. Rows of the larger tables are
dealt to 4 or to 20 sites. Each class is dealt evenly, because a site needs both classes for its intercept. The clip is
half the root of the regression's columns and one, and ridge is the method's default. Neither was tuned here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from string import ascii_lowercase
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import plan_of_tables, split_of
from benchmarks.private_networks import DELTA, declared
from benchmarks.private_tables import TABLES, clinical_rows, mean_and_error
from protos.plan.noisy_results import noisy_fit, noisy_fit_under
from protos.plan.plan import Plan
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE, share_variance
from protos.privacy.discrete_gaussian import discrete_gaussian
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_mapping import values_of
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.prior.private_terms import clipped_terms
from site_agent.trainer.prior.profiled_regression import profiled_intercept

Float64: TypeAlias = npt.NDArray[np.float64]
Labelled: TypeAlias = tuple[Float64, Float64]  # standardised columns (rows, columns), and outcomes (rows,)

RIDGE: Final = 10.0  # the default of the method
# In units of a patient's term. not 0, because columns whose sum equals another column would have no coefficients.
NO_NOISE: Final = 1e-6
SITES: Final = (4, 20)
KINDS: Final = ("shared", "curator", "each")


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split, divided among sites: each site's training and test rows, and the sum of all terms without noise."""

    training: tuple[Labelled, ...]
    test: tuple[Labelled, ...]
    total: Float64


def sites_plan(concepts: Sequence[Mapping[str, Any]], sites: int, epsilon: float) -> Plan:
    """Return a private plan with federated-prior on these concepts, for a number of sites (at most 26)."""
    letters = ascii_lowercase[:sites]
    plain = {
        "study": "sites", "version": 1, "quorum": sites, "secure_aggregation": "off",
        "method": {"name": "federated-prior", "ridge": RIDGE, "fewest_sites": 3},
        "concepts": [{key: value for key, value in one.items() if key != "recorded_by"} for one in concepts],
        "sites": [{"name": f"site-{one}", "identity": "-".join([f"aaa{one}"] * 8)} for one in letters],
    }  # fmt: skip
    prior = Plan.model_validate_json(json.dumps(plain)).prior
    assert prior is not None
    clip = sqrt(len(prior.columns) + 1) / 2
    promise = {"unit": "patient", "epsilon": epsilon, "delta": DELTA, "clip": clip}
    return Plan.model_validate_json(json.dumps(plain | {"privacy": promise, "secure_aggregation": "required"}))


def heart_concepts(tables: Mapping[str, Table]) -> list[dict[str, Any]]:
    """Return the concepts of the heart clinics, with usual values of adults."""
    return declared(json.loads(plan_of_tables(tables, 3).canonical)["concepts"])


def column_concepts(columns: int) -> list[dict[str, Any]]:
    """Return one concept for each column of a larger table."""
    one = {"kind": "number", "definition": "A column.", "low": 0.0, "high": 1.0}
    return [one | {"name": f"column-{number:03d}"} for number in range(columns)]


def heart_rows(tables: Mapping[str, Table], plan: Plan, seed: int) -> Iterator[tuple[Labelled, Labelled]]:
    """Yield each clinic's training and test rows, with the columns of a private plan on all clinics' concepts."""
    means, deviations = sums_of(plan).standard
    for name, table in tables.items():
        rows = split_of(table, 0, seed)
        study = PriorStudy(plan, prepare_rows(table, rows)[0], table, rows, site=name)
        assert table.target is not None
        parts = []
        for part, places in (("training", rows.training), ("test", rows.test)):
            values = values_of(study.recorded, study.part(part), len(places))
            parts.append((np.nan_to_num((values - means) / deviations), np.asarray(table.target)[places]))
        yield parts[0], parts[1]


def dealt(rows: Labelled, sites: int, seed: int) -> list[Labelled]:
    """Return the rows of several sites, with each class divided evenly."""
    design, outcomes = rows
    order = np.random.default_rng(seed).permutation(len(outcomes))
    order = order[np.argsort(outcomes[order], kind="stable")]
    return [(design[order[site::sites]], outcomes[order[site::sites]]) for site in range(sites)]


def split_of_rows(plan: Plan, parts: Sequence[tuple[Labelled, Labelled]], seed: int) -> Split:
    """Divide the rows among the plan's sites. All parts get the same number of sites."""
    private = sums_of(plan)
    each = len(private.sites) // len(parts)
    training = [one for part, _ in parts for one in dealt(part, each, seed)]
    test = [one for _, part in parts for one in dealt(part, each, seed)]
    terms = [
        clipped_terms(private, site, *rows, None) for site, rows in zip(private.sites, training, strict=True)
    ]  # fmt: skip
    return Split(training=tuple(training), test=tuple(test), total=np.sum(np.array(terms, np.int64), axis=0))


def sums_of(plan: Plan) -> PrivateSums:
    """Return the description of a plan's private sums."""
    assert plan.prior is not None
    assert plan.prior.private is not None
    return plan.prior.private


def noise_of_sites(private: PrivateSums, kind: str) -> tuple[Float64, float]:
    """Return the noise in the sum over all sites, in integers, and its standard deviation for terms of norm 1."""
    sites, whole = len(private.sites), share_variance(private.promise.ratio, 1)
    shares, variance = {"shared": (sites, private.share_variance), "curator": (1, whole), "each": (sites, whole)}[kind]
    drawn = discrete_gaussian(len(private.names) * shares, variance, np.random.bytes)
    return drawn.reshape(shares, -1).sum(axis=0).astype(np.float64), sqrt(shares * variance) / PRIVATE_SCALE


def area(split: Split, slopes: Float64) -> float:
    """Return the AUROC over all sites' test rows. Each site has the intercept that fits its own training rows."""
    scores = [
        test @ slopes + profiled_intercept(design @ slopes, outcomes, is_number=False)
        for (design, outcomes), (test, _) in zip(split.training, split.test, strict=True)
    ]
    return float(roc_auc_score(np.concatenate([outcomes for _, outcomes in split.test]), np.concatenate(scores)))


def noisy_area(private: PrivateSums, split: Split, kind: str) -> float:
    """Return the AUROC with one draw of noise."""
    noise, deviation = noise_of_sites(private, kind)
    return area(split, noisy_fit_under(private, deviation, (split.total + noise) / PRIVATE_SCALE, RIDGE)[0][0])


def print_sites(tables: Mapping[str, Table], epsilons: Sequence[float], splits: int, draws: int) -> None:
    """Print AUROC by epsilon at 4 and 20 sites for three tables, with standard errors over at least two draws."""
    concepts, parts = heart_concepts(tables), {}
    wide = _clinics_plan(tables, concepts)
    parts["UCI heart"] = concepts, [list(heart_rows(tables, wide, seed)) for seed in range(splits)]
    for name, words in TABLES.items():
        many = [clinical_rows(name, seed)[0] for seed in range(splits)]
        pairs = [[(_wide(rows.training), _wide(rows.test))] for rows in many]
        parts[words] = column_concepts(many[0].training[0].shape[1]), pairs
    for words, (used, many_parts) in parts.items():
        for sites in SITES:
            _print_table(words, used, many_parts, sites, epsilons, draws)


def _clinics_plan(tables: Mapping[str, Table], concepts: Sequence[Mapping[str, Any]]) -> Plan:
    """Return a private plan whose sites are the clinics, for the columns of their rows."""
    content = json.loads(sites_plan(concepts, len(tables), 1.0).canonical)
    content["sites"] = [one | {"name": name} for one, name in zip(content["sites"], tables, strict=True)]
    content["concepts"] = concepts
    return Plan.model_validate_json(json.dumps(content))


def _wide(rows: tuple[npt.NDArray[np.float32], Float64]) -> Labelled:
    return rows[0].astype(np.float64), rows[1]


def _print_table(
    words: str,
    concepts: Sequence[Mapping[str, Any]],
    parts: Sequence[Sequence[tuple[Labelled, Labelled]]],
    sites: int,
    epsilons: Sequence[float],
    draws: int,
) -> None:
    began = time.process_time()
    plan = sites_plan(concepts, sites, 1.0)
    private, many = sums_of(plan), [split_of_rows(plan, one, seed) for seed, one in enumerate(parts)]
    rows = sum(len(outcomes) for _, outcomes in many[0].training)
    plain = np.mean(
        [area(one, noisy_fit_under(private, NO_NOISE, one.total / PRIVATE_SCALE, RIDGE)[0][0]) for one in many]
    )
    size = f"{rows} training rows, {len(private.columns)} columns, {len(private.names)} numbers"
    print(f"{words}: the prior at {sites} sites, {size}, {len(parts)} splits with {draws} draws")
    print(f"Without noise: {plain:.4f}. epsilon  shared  curator  full noise at each site (standard errors over draws)")
    for epsilon in epsilons:
        here = sums_of(sites_plan(concepts, sites, epsilon))
        areas = np.array([[[noisy_area(here, one, kind) for _ in range(draws)] for one in many] for kind in KINDS])
        cells = [f"{mean:.4f} ({error:.4f})" for mean, error in zip(*mean_and_error(areas), strict=True)]
        print(f"{epsilon:7g}  {'  '.join(cells)}", flush=True)
    print(f"costs: {costs(private, many[0])}; this table: {time.process_time() - began:.0f} processor seconds")


def costs(private: PrivateSums, split: Split) -> str:
    """Return the processor seconds of a site's sums, its gate's noise and the fit, and the bytes that a site sends."""
    marks = [time.process_time()]
    for _ in range(10):
        clipped_terms(private, private.sites[0], *split.training[0], None)
    marks.append(time.process_time())
    for _ in range(10):
        discrete_gaussian(len(private.names), private.share_variance, np.random.bytes)
    marks.append(time.process_time())
    for _ in range(10):
        noisy_fit(private, split.total / PRIVATE_SCALE, RIDGE)
    marks.append(time.process_time())
    sums, noise, fit = np.diff(marks) / 10
    return f"a site's sums {sums:.4f} s, its noise {noise:.4f} s, the fit {fit:.4f} s, {8 * len(private.names)} bytes"
