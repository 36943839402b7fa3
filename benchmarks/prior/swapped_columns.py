"""Counts how often a site detects its own wrong unit or swapped code, and how often the alarm is false.

Each run changes one column of one clinic, as a mistake in its contract would change it. All other code is the deployed
code, which reads only the announced sums and the site's own sums. Run:

    python -m benchmarks.prior.swapped_columns --splits 5
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from benchmarks.prior.prior_gain import CONCEPTS, Numbers, plan_of_tables, split_of, uci_tables
from global_layers.one_process import run_rounds
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.compared_columns import Suspicion
from site_agent.trainer.prior.prior_study import PriorStudy

# The change that each mistake makes to a column's values, as the contract reads them.
MISTAKES: Final[Mapping[str, tuple[str, Callable[[Numbers], Numbers]]]] = {
    "cholesterol in mmol/l": ("chol", lambda values: values / 38.67),
    "pressure in kPa": ("trestbps", lambda values: values / 7.50062),
    "sex swapped": ("sex", lambda values: 1.0 - values),
    "exercise angina swapped": ("exang", lambda values: 1.0 - values),
    "high sugar swapped": ("fbs", lambda values: 1.0 - values),
}


def found_in(tables: Mapping[str, Table], rows: int, seed: int) -> dict[str, tuple[Suspicion, ...]]:
    """Return the columns that each clinic reports as suspicious in one run.

    Args:
        tables: by clinic.
        rows: training rows of each; 0 for two thirds of all.
        seed: of the split.
    """
    plan, studies = plan_of_tables(tables, 3), {}
    for name, table in tables.items():
        split = split_of(table, rows, seed)
        studies[name] = PriorStudy(plan, prepare_rows(table, split)[0], table, split, site=name)
    run_rounds(plan, studies)
    for study in studies.values():
        study.known_by_others()
    return {name: study.suspicions for name, study in studies.items()}


def with_mistake(tables: Mapping[str, Table], site: str, mistake: str) -> dict[str, Table] | None:
    """Return the tables with one mistake at one clinic, or None if this clinic does not record the column."""
    feature, change = MISTAKES[mistake]
    own = tables[site].features
    if feature not in own:
        return None
    return {**tables, site: replace(tables[site], features={**own, feature: change(own[feature])})}


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[50, 0])
    arguments = parser.parse_args()
    tables = uci_tables(CONCEPTS.parent)
    for rows in arguments.rows:
        counts: Counter[tuple[str, str]] = Counter()
        for seed in range(arguments.splits):
            found = found_in(tables, rows, seed)
            counts["no mistake", "false alarms"] += sum(map(len, found.values()))
            counts["no mistake", "runs"] += len(found)
            for mistake, (feature, _) in MISTAKES.items():
                for site in tables:
                    if (changed := with_mistake(tables, site, mistake)) is None:
                        continue
                    after = found_in(changed, rows, seed)
                    counts[mistake, "sites"] += 1
                    counts[mistake, "found here"] += any(one.feature == feature for one in after[site])
                    counts[mistake, "at others"] += sum(len(one) for name, one in after.items() if name != site)
                    counts[mistake, "other columns"] += sum(one.feature != feature for one in after[site])
        print(f"{rows or 'all'} training rows:")
        for (what, kind), count in counts.items():
            print(f"  {what:24} {kind:14} {count}")


if __name__ == "__main__":
    main()
