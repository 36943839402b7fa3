"""Compares Cox models and curves from sums with R's survival and with statsmodels on one pooled table. Rscript runs
`pooled.R`. The Debian packages are r-base-core and r-cran-survival."""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

from protos.plan.analyses import Cox, Curve
from protos.statistics.cox import CoxArithmetic
from protos.statistics.group_curves import CurveArithmetic
from tests.statistics.one_process import concepts_of, frames_of, run, size
from tests.statistics.survival_tables import SurvivalTable, pooled

Printed = Mapping[str, Mapping[str, float]]
_MEDIANS = {"median": "value", "0.95LCL": "low", "0.95UCL": "high"}


def has_r() -> bool:
    """Whether Rscript and the package survival are installed."""
    try:
        done = subprocess.run(["Rscript", "-e", "library(survival)"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def of_r(table: SurvivalTable, folder: Path) -> Printed:
    """Return what R computes from the pooled table, by kind and name."""
    whole = pooled(table)
    names = [name for name in whole.columns if name.split("=")[0] in table.terms]
    whole["group"] = table.rows[table.by].map(dict(zip(table.coded[table.by], "abcdef", strict=False)))
    file = folder / f"{table.name}.csv"
    whole.to_csv(file, index=False, float_format="%.17g")
    return lines_of_r("pooled.R", file, *names)


def lines_of_r(script: str, *words: object) -> Printed:
    """Return what a script of R prints as lines of kind, name and value."""
    path = Path(__file__).with_name(script)
    done = subprocess.run(["Rscript", path, *map(str, words)], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for line in done.stdout.splitlines():
        kind, name, value = line.split("\t")
        found[kind][name] = math.nan if value == "NA" else float(value)
    return found


@dataclass(frozen=True)
class Federated:
    """What sums give of the same table, with the rounds and the numbers of one site."""

    printed: Printed
    newton_rounds: int
    numbers: int


def of_statsmodels(table: SurvivalTable) -> Printed:
    """Return what statsmodels computes from the pooled table, by kind and name; medians are R's alone."""
    whole = pooled(table)
    names = [name for name in whole.columns if name.split("=")[0] in table.terms]
    complete = whole.dropna(subset=names)
    model = PHReg(
        complete["time"], complete[names].to_numpy(), complete["event"], strata=complete["site"], ties="efron"
    )
    fitted = model.fit(method="newton", disp=0, tol=1e-14)
    kinds = {"coefficient": fitted.params, "error": fitted.bse, "p": fitted.pvalues}
    found = {kind: dict(zip(names, map(float, values), strict=True)) for kind, values in kinds.items()}
    rows = table.rows.dropna(subset=[table.by])
    value, _ = survdiff(rows["time"], rows["event"], rows[table.by], strata=rows["site"])
    curves = {}
    for group, code in zip("abcdef", table.coded[table.by], strict=False):
        own = rows[rows[table.by] == code]
        curve = SurvfuncRight(own["time"], own["event"])
        curves |= {f"{group} {at:g}": float(one) for at, one in zip(curve.surv_times, curve.surv_prob, strict=True)}
    return {**found, "log_rank": {"chi_squared": float(value)}, "survival": curves}


def of_sums(table: SurvivalTable) -> Federated:
    """Return what sums over the sites give, by kind and name, with a grid on which all times lie."""
    grid = 1.0 if (table.rows["time"] % 1.0 == 0.0).all() else 0.1
    frames, concepts = frames_of(table.rows, "site", table.coded), concepts_of(table.rows, table.coded)
    of, to = size(len(frames)), float(table.rows["time"].max())
    cox = CoxArithmetic(Cox(time="time", event="event", terms=table.terms), concepts, of)
    whole = size(len(frames), fewest_sites=1)  # to the last patient
    curve = CurveArithmetic(Curve(time="time", event="event", by=table.by, grid=grid, to=to), concepts, whole)
    fitted, sums = run(cox, frames)
    curves, _ = run(curve, frames)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for term in fitted["terms"]:
        for kind, key in (("coefficient", "estimate"), ("error",) * 2, ("p",) * 2):
            found[kind][term["term"]] = term[key]
        found["proportional_p"][term["term"]] = term["proportional"]["p"]
    found["proportional_p"]["all"] = fitted["proportional"]["p"]
    found["log_rank"]["chi_squared"] = curves["log_rank"]["chi_squared"]
    for record, group in zip(curves["groups"], "abcdef", strict=False):
        steps = zip(record["times"], record["survival"], record["interval_events"], strict=True)
        found["survival"] |= {f"{group} {at:g}": one for at, one, events in steps if events}
        for kind, key in _MEDIANS.items():
            value = record["median"][key]
            found[kind][group] = math.nan if value is None else value
    return Federated(found, len(sums.newton), sum(map(len, (cox.first, cox.newton * len(sums.newton), cox.last))))


def largest_difference(one: Printed, other: Printed, *kinds: str) -> float:
    """Return the largest difference of these kinds; infinite if only one of the two has a number."""
    largest = 0.0
    for kind in kinds:
        assert one[kind].keys() == other[kind].keys(), kind
        for name, value in one[kind].items():
            both: Any = value, other[kind][name]
            if math.isnan(both[0]) != math.isnan(both[1]):
                return math.inf
            largest = max(largest, 0.0 if math.isnan(both[0]) else abs(both[0] - both[1]))
    return largest
