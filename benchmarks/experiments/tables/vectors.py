"""Compares rules that need every site's vector, on Fed-Heart-Disease, with and without a harmful site.

The network of MOON and FedPer there (13-10-1, dropout 0.3), AdamW at 0.001, 15 rounds of 100 steps, equal weights,
checkpoint local. The harmful site is VA: it sends its change reversed and ten times as large. The means then exclude
it. No paper has this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.experiments.data.uci_centres import CENTRES, fed_heart
from benchmarks.experiments.single_vectors import (
    Build,
    LayerMixtures,
    Median,
    PlainMean,
    TrimmedMean,
    federate_vectors,
    reversed_and_tenfold,
)
from benchmarks.experiments.tables.fed_heart import ENTRIES, Entry, fed_heart_plan
from benchmarks.experiments.variants import Row, Variant, predicted_by_stack, row_of

HARMFUL: Final = "va"
SPOILT: Final = ", va does harm"
RULES: Final[dict[str, Build]] = {
    "mean": lambda _plan, _manifest, _sites: PlainMean(),
    "coordinate-wise median": lambda _plan, _manifest, _sites: Median(),
    "trimmed mean": lambda _plan, _manifest, _sites: TrimmedMean(1),
    "pfedla": lambda plan, manifest, sites: LayerMixtures(manifest, sites, seed=plan.seed),
    "pfedla at rate 1": lambda plan, manifest, sites: LayerMixtures(manifest, sites, seed=plan.seed, rate=1.0),
}
_ENTRY: Final = Entry(
    method={"name": "fedavg"},
    network=ENTRIES["fedper"].network,
    rate=1e-3,
    keys={"outputs": 1, "weighting": {"name": "equal"}},
)


def variants() -> list[Variant]:
    """Return a variant for every rule, and for every rule with a harmful site."""
    names = [*RULES, *(f"{name}{SPOILT}" for name in RULES)]
    return [Variant(name=name, run=_Vectors(name).run, seeds_at_once=20) for name in names]


@dataclass(frozen=True)
class _Vectors:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows for the seeds. See Variant."""
        data = {seed: fed_heart(folder, seed) for seed in seeds}
        plans = [fed_heart_plan(data[seed], seed, _ENTRY, "local") for seed in seeds]
        sites = {name: [data[seed][name] for seed in seeds] for name in CENTRES}
        harm = {HARMFUL: reversed_and_tenfold} if self.name.endswith(SPOILT) else None
        outcomes = federate_vectors(plans, sites, RULES[self.name.removesuffix(SPOILT)], harm)
        for predicted in predicted_by_stack(seeds, outcomes):
            if np.isfinite(predicted.outputs).all():
                yield row_of(self.name, predicted, data[predicted.seed][predicted.site])
