"""Measures private regressions on two clinical tables: 5,735 intensive care patients, and 9,105 seriously ill adults.

The package SurvSet ships both. The outcome is death within 180 days, and rows that were lost before that are left out.
Columns that follow from the outcome, or from another model of it, are left out. Numbers are standardised by the usual
values below, and a missing one counts as usual. Only the codes of factors were read from the tables.

Rounds are those of private_networks.py. The clip was chosen on splits from 1000, which no table reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.private_networks import ROUNDS, Float64, Kind, PooledRows, rate_of, trained_area
from protos.plan.plan import Plan

DAYS: Final = 180
SHARE_OF_TEST: Final = 1 / 3
CLIP: Final = 2.0
TABLES: Final = {"rhc": "intensive care", "support2": "seriously ill adults"}
# Columns that are not used: survival as predicted by another model, function at two months, and orders not to
# resuscitate.
_LEFT_OUT: Final = ("num_surv2md1", "num_surv2m", "num_surv6m", "fac_sfdm2", "fac_dnr")
# The usual value and spread of each column in hospital patients, as an intensivist would declare them.
USUAL: Final[Mapping[str, tuple[float, float]]] = {
    "age": (60, 15), "edu": (12, 3), "adld3p": (1, 2), "aps1": (50, 20), "scoma": (15, 25), "meanbp": (80, 30),
    "wblc": (12, 8), "hrt": (105, 35), "resp": (25, 12), "temp": (37.3, 1.3), "pafi": (230, 110), "alb": (3.1, 0.8),
    "hema": (33, 8), "bili": (1.5, 3), "crea": (1.7, 1.7), "sod": (137, 7), "pot": (4.1, 1), "paco2": (40, 12),
    "ph": (7.4, 0.1), "wtkilo": (72, 25), "urin": (2100, 1400), "num_co": (2, 1.5), "hday": (3, 5), "sps": (25, 10),
    "glucose": (150, 80), "bun": (30, 25), "urine": (2100, 1400), "adlp": (1, 2), "adls": (1, 2),
}  # fmt: skip


def clinical_rows(name: str, seed: int) -> tuple[PooledRows, int]:
    """Return one split of a table of `TABLES`, and the number of its patients."""
    from SurvSet.data import SurvLoader

    frame = SurvLoader().load_dataset(name)["df"].drop(columns=list(_LEFT_OUT), errors="ignore")
    frame = frame[(frame["time"] >= DAYS) | (frame["event"] == 1)]
    outcomes = ((frame["event"] == 1) & (frame["time"] <= DAYS)).to_numpy(np.float64)
    features = np.column_stack([column for key in frame for column in _columns(str(key), frame[key])]).astype(
        np.float32
    )
    order = np.random.default_rng(seed).permutation(len(frame))
    test, training = np.split(order, [round(len(order) * SHARE_OF_TEST)])
    rows = PooledRows(training=(features[training], outcomes[training]), test=(features[test], outcomes[test]))
    return rows, len(frame)


def _columns(name: str, values: Any) -> list[Any]:  # Any: a column of pandas
    """Return a number, standardised by the plan's usual values, or a column for each code of a factor."""
    kind, _, name = name.partition("_")
    if kind == "num":
        usual, spread = USUAL[name.rstrip("1") if name.rstrip("1") in USUAL else name]
        return [((pd.to_numeric(values).astype(float) - usual) / spread).clip(-4, 4).fillna(0.0)]
    if kind == "fac":
        codes = sorted(set(map(str, values)) - {"missing", "nan"})
        return [(values.astype(str) == code).astype(float) for code in codes[1 if len(codes) == 2 else 0 :]]
    return []


def table_plan(columns: int, epsilon: float, patients: int, *, clip: float = CLIP) -> Plan:
    """Return a plan of four sites with a logistic regression on this number of columns."""
    concept = {"kind": "number", "definition": "A column.", "low": 0.0, "high": 1.0}
    content = {
        "study": "clinical", "version": 1, "method": {"name": "fedavg"}, "outputs": 1, "seed": 0, "quorum": 4,
        "architecture": {"name": "dense", "hidden": []},
        "schedule": {"aggregate": "every-batch", "epochs": ROUNDS, "batches_per_epoch": 1},
        "optimiser": {"name": "sgd", "learning_rate": rate_of(epsilon)},
        "weighting": {"name": "equal"}, "checkpoint": "latest",
        "concepts": [concept | {"name": f"column-{number:03d}"} for number in range(columns)],
        "sites": [{"name": f"site-{one}", "identity": "-".join([f"aaa{one}"] * 8)} for one in "abcd"],
        "privacy": {"unit": "patient", "epsilon": epsilon, "delta": 1e-5, "clip": clip, "patients": patients},
    }  # fmt: skip
    return Plan.model_validate_json(json.dumps(content))


def print_clinical(epsilons: Sequence[float], splits: int, draws: int) -> None:
    """Print AUROC by epsilon for both tables, for 4 and 20 sites, with the standard errors of at least two draws."""
    kinds: tuple[tuple[Kind, int], ...] = (
        ("shared", 4), ("no-colluder", 4), ("shared", 20), ("curator", 1), ("each", 4), ("each", 20),
    )  # fmt: skip
    for name, words in TABLES.items():
        many = [clinical_rows(name, seed) for seed in range(splits)]
        columns, patients = many[0][0].training[0].shape[1], 100 * round(many[0][1] * (1 - SHARE_OF_TEST) / 100)
        plain = table_plan(columns, max(epsilons), patients)
        area = np.mean([trained_area(plain, rows, "none", 4) for rows, _ in many])
        print(f"{words}: {many[0][1]} patients, {columns} columns, clip {CLIP:g}, {splits} splits with {draws} draws "
              f"of noise each. Without noise, at rate {rate_of(max(epsilons)):g}: {area:.4f}")  # fmt: skip
        print("epsilon  shared of 4  of 4 without a colluder  of 20  curator  full noise at each of 4, of 20  "
              "gap of the curator to 4, without a colluder (standard errors over draws)")  # fmt: skip
        for epsilon in epsilons:
            plan = table_plan(columns, epsilon, patients)
            areas = np.array([
                [[trained_area(plan, rows, kind, sites) for _ in range(draws)] for rows, _ in many]
                for kind, sites in kinds
            ])  # fmt: skip
            found, errors = mean_and_error(areas)
            gaps = [f"{found[3] - found[place]:+.4f} ({np.hypot(errors[3], errors[place]):.4f})" for place in (0, 1)]
            cells = [f"{one:.4f} ({error:.4f})" for one, error in zip(found, errors, strict=True)]
            print(f"{epsilon:7g}  {'  '.join([*cells, *gaps])}", flush=True)


def mean_and_error(areas: Float64) -> tuple[Float64, Float64]:
    """Return the mean over splits and draws, and its standard error over draws on the same splits.

    Args:
        areas: float64 of shape (kinds, splits, draws), at least two draws.
    """
    within = areas.var(axis=2, ddof=1).mean(axis=1)
    return areas.mean(axis=(1, 2)), np.sqrt(within / (areas.shape[1] * areas.shape[2]))
