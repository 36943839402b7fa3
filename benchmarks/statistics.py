"""Compare statistics from sums with one pooled table in statsmodels and, if it is installed, in R's survival."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from tests.statistics.references import has_r, largest_difference, of_r, of_statsmodels, of_sums
from tests.statistics.survival_tables import TABLES, SurvivalTable

KINDS = {"coefficient": ("coefficient",), "error": ("error",), "p": ("p",), "curve": ("log_rank", "median")}


def made(sites: int, rows: int = 5_000, terms: int = 10) -> SurvivalTable:
    """Return a made-up table with times in whole days."""
    generator, names = np.random.default_rng(sites), tuple(f"x{place}" for place in range(terms))
    values = generator.normal(size=(rows, terms))
    times = np.ceil(generator.exponential(200.0, rows) * np.exp(-0.2 * values[:, :3].sum(axis=1)))
    columns = pd.DataFrame(values, columns=list(names)).assign(time=times, event=generator.integers(0, 2, rows))
    columns = columns.assign(site=np.arange(rows) % sites, group=generator.integers(0, 2, rows))
    return SurvivalTable(name="made", terms=names, by="group", coded={"event": (0, 1), "group": (0, 1)}, rows=columns)


largest, uses_r = dict.fromkeys(KINDS, 0.0), "--quick" not in sys.argv[1:] and has_r()
with TemporaryDirectory() as folder:
    for table in TABLES:
        found, compared = of_sums(table).printed, {"statsmodels": of_statsmodels(table)}
        compared |= {"R": of_r(table, Path(folder))} if uses_r else {}
        for name, expected in compared.items():
            for kind, of in KINDS.items():
                difference = largest_difference(expected, found, *(one for one in of if one in expected))
                largest[kind] = max(largest[kind], difference)
                print(f"{table.name:<10}{name:<12}{kind:<12}{difference:.1e}")
for sites in (4, 30):
    table, began = made(sites), time.monotonic()
    rounds = of_sums(table).newton_rounds
    print(f"10 terms, 5,000 rows, {sites} sites: {rounds} Newton rounds, {time.monotonic() - began:.1f} s")
differences = " ".join(f"{kind}_difference={value:.1e}" for kind, value in largest.items())
print(f"analyses=2 tables={len(TABLES)} {differences}")
