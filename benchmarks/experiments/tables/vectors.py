"""Compares rules that need every site's vector, on Fed-Heart-Disease, with and without a harmful site.

The network of MOON and FedPer there (13-10-1, dropout 0.3), AdamW at 0.001, 15 rounds of 100 steps, equal weights,
checkpoint local. The harmful site is VA: it sends its change reversed and ten times as large. The means then exclude
it. No paper has this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.experiments.data.uci_centres import fed_heart
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
from benchmarks.experiments.variants import Row, Variant, predicted_by, row_of
from protos.wire.messages import MalformedMessage
from site_agent.trainer.failures import TrainingDiverged

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
    return [Variant(name=name, run=_Vectors(name).run) for name in names]


@dataclass(frozen=True)
class _Vectors:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """Compute this variant's rows for a seed. A federation that a harmful site makes diverge has none."""
        sites = fed_heart(folder, seed)
        plan = fed_heart_plan(sites, seed, _ENTRY, "local")
        harm = {HARMFUL: reversed_and_tenfold} if self.name.endswith(SPOILT) else None
        try:
            outcomes = federate_vectors(plan, sites, RULES[self.name.removesuffix(SPOILT)], harm)
        except (MalformedMessage, TrainingDiverged):
            return
        for name, outcome in outcomes.items():
            yield row_of(self.name, predicted_by(seed, name, outcome), sites[name])
