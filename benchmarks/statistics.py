"""Compare statistics from sums with one pooled table in statsmodels and, if they are installed, in lifelines and R.

The tables are those of tests/statistics, the four heart clinics and tables of statsmodels; with R also tables of its
packages survival and MASS. `--quick` leaves R out. Hospitals are institutions where a table has them, and rows are
dealt otherwise. The last line has the largest difference of each kind; medians are in bins of a Table 1.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm

from protos.plan.analyses import Regression, TableOne
from protos.statistics.regression import RegressionArithmetic
from protos.statistics.table_one import TableOneArithmetic
from tests.statistics.one_process import concepts_of, frames_of, run, size
from tests.statistics.references import Printed, has_r, largest_difference, lines_of_r, of_r, of_statsmodels, of_sums
from tests.statistics.survival_tables import TABLES, SurvivalTable, pooled

KINDS = {
    "coefficient": ("coefficient",), "error": ("error",), "p": ("p", "proportional_p"),
    "curve": ("log_rank", "survival", "median"),
}  # fmt: skip
HEART = Path(__file__).parents[1] / "deploy" / "data" / "uci-heart"
_DUMP = """
library(survival); library(MASS); folder <- commandArgs(TRUE)[1]
keep <- function(name, rows) write.csv(rows, file.path(folder, paste0(name, ".csv")), row.names = FALSE)
weeks <- function(days) ceiling(days / 7)
dealt <- function(rows, sites) cbind(rows, site = seq_len(nrow(rows)) %% sites)
keep("pbc", with(pbc, dealt(data.frame(time = weeks(time), event = +(status == 2), age, bili, albumin, edema, sex), 5)))
died <- colon[colon$etype == 2, ]
keep("colon", with(died, dealt(data.frame(time = weeks(time), event = status, age, nodes, obstruct, rx), 9)))
keep("mgus2", with(mgus2, dealt(data.frame(time = futime, event = death, age, hgb, creat, sex)[futime > 0, ], 12)))
keep("rotterdam", with(rotterdam, data.frame(time = weeks(dtime), event = death, age, nodes, meno, site = year %/% 3)))
keep("nwtco", with(nwtco, dealt(data.frame(time = weeks(edrel), event = rel, age, stage, histol), 3)))
keep("birthwt", with(birthwt, dealt(data.frame(outcome = low, age, lwt, smoke, ht, race), 3)))
keep("quine", with(quine, dealt(data.frame(outcome = Days, Eth, Sex, Lrn), 4)))
"""


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """A table with the columns outcome and site, perhaps exposure, the terms of a model, and the codes of columns."""

    name: str
    family: Any
    terms: tuple[str, ...]
    coded: dict[str, tuple[object, ...]]
    rows: pd.DataFrame


def heart() -> ModelTable:
    """Return the patients of four clinics, as they are published."""
    names = ["age", "sex", "cp", *"abcd", "thalach", *"efghi", "num"]
    clinics = ("cleveland", "hungarian", "switzerland", "va")
    read = [pd.read_csv(HEART / f"{one}.data", names=names, na_values="?") for one in clinics]
    rows = pd.concat([one.assign(site=place) for place, one in enumerate(read)], ignore_index=True)
    rows = rows.assign(outcome=(rows["num"] > 0).astype(float))[["site", "outcome", "age", "sex", "cp", "thalach"]]
    coded: dict[str, tuple[object, ...]] = {"outcome": (0, 1), "sex": (0, 1), "cp": (1, 2, 3, 4)}
    return ModelTable(name="heart", family="binomial", terms=("age", "sex", "cp", "thalach"), coded=coded, rows=rows)


def published(name: str, outcome: str, family: str, terms: str, sites: int) -> ModelTable:
    """Return a table of statsmodels, its rows dealt to sites."""
    data = getattr(sm.datasets, name).load_pandas().data
    chosen = data[terms.split()].assign(outcome=data[outcome].astype(float), site=np.arange(len(data)) % sites)
    chosen.columns = chosen.columns.str.lower().str.replace("_", "-")
    coded: dict[str, tuple[object, ...]] = {}
    if family == "binomial":
        chosen["outcome"], coded = (chosen["outcome"] > 0).astype(float), {"outcome": (0, 1)}
    return ModelTable(name=name, family=family, terms=tuple(chosen.columns[:-2]), coded=coded, rows=chosen)


def model_tables() -> Iterator[ModelTable]:
    """Yield the tables of regressions that are on every computer."""
    yield heart()
    yield published("fair", "affairs", "binomial", "rate_marriage age yrs_married children religious educ", 12)
    yield published("randhie", "mdvis", "poisson", "lncoins idp lpi fmde physlm disea hlthg", 8)
    yield published("anes96", "selfLR", "gaussian", "TVnews PID age educ income", 6)
    yield published("ccard", "AVGEXP", "gaussian", "AGE INCOME OWNRENT", 3)


def of_packages(folder: Path) -> tuple[list[SurvivalTable], list[ModelTable]]:
    """Return tables of R's packages survival and MASS."""
    subprocess.run(["Rscript", "-e", _DUMP, folder], check=True, capture_output=True)

    def read(name: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{name}.csv").rename(columns=str.lower)

    def survival(name: str, numbers: str, by: str, **coded: tuple[object, ...]) -> SurvivalTable:
        terms = (*numbers.split(), *coded)
        codes: dict[str, tuple[object, ...]] = {"event": (0, 1), **coded}
        return SurvivalTable(name=name, terms=terms, by=by, coded=codes, rows=read(name))

    def model(name: str, family: str, numbers: str, **coded: tuple[object, ...]) -> ModelTable:
        codes = dict(coded) | ({"outcome": (0, 1)} if family == "binomial" else {})
        return ModelTable(name=name, family=family, terms=(*numbers.split(), *coded), coded=codes, rows=read(name))

    return [
        survival("pbc", "age bili albumin edema", "sex", sex=("f", "m")),
        survival("colon", "age nodes obstruct", "rx", rx=("Lev", "Lev+5FU", "Obs")),
        survival("mgus2", "age hgb creat", "sex", sex=("F", "M")),
        survival("rotterdam", "age nodes", "meno", meno=(0, 1)),
        survival("nwtco", "age", "histol", histol=(1, 2), stage=(1, 2, 3, 4)),
    ], [
        model("birthwt", "binomial", "age lwt smoke ht", race=(1, 2, 3)),
        model("quine", "poisson", "", eth=("A", "N"), sex=("F", "M"), lrn=("AL", "SL")),
    ]  # fmt: skip


def from_sums(table: ModelTable) -> tuple[Printed, float]:
    """Return coefficients, errors and p values, and by how many bins the medians of a Table 1 differ at most."""
    columns = ["outcome", *table.terms]
    concepts, of = concepts_of(table.rows[columns], table.coded), size(table.rows["site"].nunique())
    frames = frames_of(table.rows[[*columns, "site"]], "site", table.coded)
    model = Regression(family=table.family, outcome="outcome", terms=table.terms)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for term in run(RegressionArithmetic(model, concepts, of), frames)[0]["terms"]:
        for kind, key in (("coefficient", "estimate"), ("error", "error"), ("p", "p")):
            found[kind][term["term"]] = term[key]
    numbers = tuple(name for name in table.terms if name not in table.coded)
    if numbers:
        described = run(TableOneArithmetic(TableOne(columns=numbers, bins=200), concepts, of), frames)[0]["columns"]
        medians = ((described[name]["all"], table.rows[name].median()) for name in numbers)
        return found, max(abs(one["quartiles"][1] - median) / one["resolution"] for one, median in medians)
    return found, 0.0


def pooled_rows(table: ModelTable) -> tuple[pd.DataFrame, list[str]]:
    """Return complete rows as numbers, and the names of the columns of the model."""
    rows = table.rows.dropna()
    found, names = rows[["outcome", "site"]].astype(float), list[str]()
    for name in table.terms:
        for code in table.coded.get(name, (None, None))[1:]:
            column = name if code is None else f"{name}={code}"
            names.append(column)
            found[column] = rows[name] if code is None else (rows[name] == code).astype(float)
    return found, names


def of_lifelines(table: SurvivalTable) -> Printed:
    """Return what lifelines computes from the pooled table, by kind and name. Its log-rank test has no strata."""
    from lifelines import CoxPHFitter, KaplanMeierFitter

    whole = pooled(table)
    names = [name for name in whole.columns if name.split("=")[0] in table.terms]
    complete = whole.dropna(subset=names)[[*names, "time", "event", "site"]]
    # It stops when half the square of a step, in standard errors, is below `precision`.
    fitted = CoxPHFitter().fit(complete, "time", "event", strata=["site"], fit_options={"precision": 1e-22}).summary
    found = {kind: dict(fitted[key]) for kind, key in (("coefficient", "coef"), ("error", "se(coef)"), ("p",) * 2)}
    rows = table.rows.dropna(subset=[table.by])
    curves = {}
    for group, code in zip("abcdef", table.coded[table.by], strict=False):
        own = rows[rows[table.by] == code]
        steps = KaplanMeierFitter().fit(own["time"], own["event"]).survival_function_["KM_estimate"]
        curves |= {f"{group} {at:g}": steps[at] for at in sorted(set(own["time"][own["event"] == 1]))}
    return {**found, "survival": curves}


def from_statsmodels(table: ModelTable) -> Printed:
    """Return the same of the pooled table with an indicator of each site."""
    rows, names = pooled_rows(table)
    design = pd.concat([rows[names], pd.get_dummies(rows["site"], prefix="site", dtype=float)], axis=1)
    family = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson}.get(table.family)
    model = sm.OLS(rows["outcome"], design) if family is None else sm.GLM(rows["outcome"], design, family=family())
    fitted = model.fit() if family is None else model.fit(tol=1e-14, maxiter=100)
    kinds = {"coefficient": fitted.params, "error": fitted.bse, "p": fitted.pvalues}
    return {kind: {name: float(values[name]) for name in names} for kind, values in kinds.items()}


def from_r(table: ModelTable, folder: Path) -> Printed:
    """Return the same in R."""
    rows, names = pooled_rows(table)
    rows.assign(offset=0.0).to_csv(folder / f"{table.name}.csv", index=False, float_format="%.17g")
    return lines_of_r("pooled_glm.R", folder / f"{table.name}.csv", table.family, *names)


def made(sites: int, rows: int = 5_000, terms: int = 10) -> SurvivalTable:
    """Return a made-up table with times in whole days."""
    generator, names = np.random.default_rng(sites), tuple(f"x{place}" for place in range(terms))
    values = generator.normal(size=(rows, terms))
    times = np.ceil(generator.exponential(200.0, rows) * np.exp(-0.2 * values[:, :3].sum(axis=1)))
    columns = pd.DataFrame(values, columns=list(names)).assign(time=times, event=generator.integers(0, 2, rows))
    columns = columns.assign(site=np.arange(rows) % sites, group=generator.integers(0, 2, rows))
    return SurvivalTable(name="made", terms=names, by="group", coded={"event": (0, 1), "group": (0, 1)}, rows=columns)


def main() -> None:
    """Print a line for each table and reference, and the largest differences."""
    largest, uses_r, bins, analyses = dict.fromkeys(KINDS, 0.0), "--quick" not in sys.argv[1:] and has_r(), 0.0, 0

    def compare(table: str, found: Printed, references: dict[str, Printed]) -> None:
        for name, expected in references.items():
            differences = {}
            for kind, of in KINDS.items():
                differences[kind] = largest_difference(expected, found, *(one for one in of if one in expected))
                largest[kind] = max(largest[kind], differences[kind])
            print(f"{table:<10}{name:<12}" + "".join(f"{kind} {one:<10.1e}" for kind, one in differences.items()))

    with TemporaryDirectory() as path:
        folder = Path(path)
        survival, models = of_packages(folder) if uses_r else ([], [])
        survival, models = [*TABLES, *survival], [*model_tables(), *models]
        for one in survival:
            # Its Cox models divide by 0 on some tables of R.
            references = {"statsmodels": of_statsmodels(one)} if one in TABLES else {}
            references |= {"R": of_r(one, folder)} if uses_r else {}
            references |= {"lifelines": of_lifelines(one)} if importlib.util.find_spec("lifelines") else {}
            compare(one.name, of_sums(one).printed, references)
            analyses += 2
        for other in models:
            references = {"statsmodels": from_statsmodels(other)} | ({"R": from_r(other, folder)} if uses_r else {})
            found, farthest = from_sums(other)
            compare(other.name, found, references)
            bins, analyses = max(bins, farthest), analyses + 2
    for sites in (4, 30):
        table, began = made(sites), time.monotonic()
        done = of_sums(table)
        cost = f"{done.newton_rounds} Newton rounds, a site sends {8 * done.numbers / 1000:.0f} kB"
        print(f"Cox model and curves, 10 terms, 5,000 rows, {sites} sites: {cost}, {time.monotonic() - began:.1f} s")
    differences = " ".join(f"{kind}_difference={value:.1e}" for kind, value in largest.items())
    print(f"analyses={analyses} tables={len(survival) + len(models)} {differences} median_bins={bins:.2f}")


if __name__ == "__main__":
    main()
