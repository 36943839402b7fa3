"""Measures the gain from the other hospitals' score under differential privacy, with the deployed code.

Of each split the clinic's own two models are fitted once, and the noise of the deployed gate is drawn several times. So
two plans are compared on the same patients. The splits are the first 40 seeds. What the plan reads was decided on the
seeds from 2000, which are not reported.

A private sum counts every concept of the plan. The plain form leaves out columns that too few sites record, but under
privacy the rows may not decide that. So the plan has to: `MOSTLY_MISSING` are the concepts that fewer than three
clinics record for most of their patients. For the thallium scan deploy/data/uci-heart/README.md states this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from benchmarks.experiments.statistics import corrected_error
from benchmarks.prior.prior_gain import said_by, split_of
from global_layers.one_process import run_rounds
from protos.plan.plan import Plan
from site_agent.desk.results.joining_models import OwnModels, fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.splits import SplitRows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.prior_study import PriorStudy

Numbers = npt.NDArray[np.float64]
MOSTLY_MISSING: Final = ("st-slope", "thallium-scan")


@dataclass(frozen=True, kw_only=True, eq=False)
class Clinic:
    """The data of one clinic at one split, before any run.

    Attributes:
        own: its own models, or None if its gain is not shown.
    """

    table: Table
    rows: SplitRows
    dataset: Dataset
    preprocessing: Preprocessing
    own: OwnModels | None


def clinics_at(tables: Mapping[str, Table], seed: int, shown: Sequence[str]) -> dict[str, Clinic]:
    """Return every clinic at one split. The clinics in `shown` also have their own fitted models."""
    found = {}
    for name, table in tables.items():
        rows = split_of(table, 0, seed)
        dataset, preprocessing = prepare_rows(table, rows)
        own = fit_own_models(dataset, seed) if name in shown else None
        found[name] = Clinic(table=table, rows=rows, dataset=dataset, preprocessing=preprocessing, own=own)
    return found


def gains(clinics: Mapping[str, Clinic], plan: Plan) -> dict[str, float]:
    """Run once. Return for each clinic in `shown` how much the others' score raises AUROC on its test rows."""
    studies = {
        name: PriorStudy(plan, clinic.dataset, clinic.table, clinic.rows, site=name) for name, clinic in clinics.items()
    }
    run_rounds(plan, studies)
    found = {}
    for name, clinic in clinics.items():
        if clinic.own is None:
            continue
        study = studies[name]
        known = study.known_by_others()
        join = joined_with(study, known, clinic.preprocessing, clinic.own)
        labels = clinic.dataset.test.targets
        joined, alone = (roc_auc_score(labels, said_by(study, known, model)) for model in (join.model, join.alone))
        found[name] = float(joined - alone)
    return found


def gains_of_splits(
    tables: Mapping[str, Table], plans: Mapping[str, tuple[Plan, int]], seeds: Sequence[int], shown: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    """Return for each plan, clinic and split the mean gain over the plan's number of draws of noise."""
    found: dict[str, dict[str, list[float]]] = {plan: {site: [] for site in shown} for plan in plans}
    for seed in seeds:
        clinics = clinics_at(tables, seed, shown)
        for name, (plan, draws) in plans.items():
            drawn = [gains(clinics, plan) for _ in range(draws)]
            for site in shown:
                found[name][site].append(float(np.mean([one[site] for one in drawn])))
    return found


def print_gains(found: Mapping[str, Mapping[str, Sequence[float]]], plain: str) -> None:
    """Print each plan's gains in AUROC points, and their fraction of the gain of the plan `plain`.

    The error of a gain allows for the overlap of splits, so it covers other patients. The error of a share covers other
    splits and draws alone.
    """
    for plan, sites in found.items():
        for site, values in _with_mean(sites).items():
            usual = _with_mean(found[plain])[site]
            value, error = corrected_error(values.tolist(), 1 / 3)
            share = values.mean() / usual.mean()
            spread = (values - share * usual).std(ddof=1) / np.sqrt(len(values)) / abs(usual.mean())
            print(
                f"{plan:>20} {site:12} {100 * value:+.1f} ({100 * error:.1f})  {share:.2f} ({spread:.2f})", flush=True
            )


def _with_mean(sites: Mapping[str, Sequence[float]]) -> dict[str, Numbers]:
    """Return the gains of each clinic, and the mean over the clinics if there are several."""
    found = {site: np.asarray(values) for site, values in sites.items()}
    return found | ({"mean": np.mean(list(found.values()), axis=0)} if len(found) > 1 else {})
