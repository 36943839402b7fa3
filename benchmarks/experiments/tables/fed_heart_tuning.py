"""Chooses the clients' learning rate for Fed-Heart-Disease by the validation loss only, as FENDA-FL does.

Source: Tavakoli et al. 2024, appendix D and table 7: the best rate has the lowest validation loss that the coordinator
sees in training. The loss is the mean over the centres weighted by rows, and the mean over five runs. The paper's other
settings have their best published values. Test rows are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.experiments.data.uci_centres import fed_heart
from benchmarks.experiments.plots import Curve, plot_curves
from benchmarks.experiments.statistics import by_seed, mean_of
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.experiments.tables.fed_heart import ENTRIES, RANKS, Entry, fed_heart_plan
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Predicted, Row, Variant, run_plans
from site_agent.trainer.data.dataset import Dataset

RATES: Final = (0.1, 0.01, 1e-3, 1e-4, 1e-5)
# The paper's ranges are shorter for these two.
_OF_METHOD: Final = {"fedprox": (1e-3, 1e-4), "perfcl": (0.1, 0.01, 1e-3)}
SEEDS: Final = range(5)
# Table 7 has 25 combinations for FedAdam, 6 for FedProx, 25 for SCAFFOLD, 30 for MOON, 15 for Ditto, 25 for APFL and 27
# for PerFCL. The rates of one setting of the others are tried here.
_OTHER_COMBINATIONS: Final = (25 - 5) + (6 - 2) + (25 - 5) + (30 - 5) + (15 - 5) + (25 - 5) + (27 - 3)
_METRIC: Final = "validation_loss"


def rates_of(method: str) -> tuple[float, ...]:
    """Return the learning rates that table 7 of the paper lists."""
    return _OF_METHOD.get(method, RATES)


def variants() -> list[Variant]:
    """Return a variant for each method and each learning rate of its range."""
    pairs = [(method, rate) for method in RANKS for rate in rates_of(method)]
    return [Variant(name=_name(*pair), run=_Tried(*pair).run, seeds_at_once=len(SEEDS)) for pair in pairs]


def with_rate(entry: Entry, rate: float) -> Entry:
    """Return the same method with another learning rate of the clients."""
    optimiser = entry.keys.get("optimiser")
    keys = entry.keys | ({"optimiser": optimiser | {"learning_rate": rate}} if optimiser else {})
    return replace(entry, rate=rate, keys=keys)


def chosen_rate(rows: list[Row], method: str) -> float | None:
    """Return the learning rate with the lowest loss, or None before all rates were tried."""
    losses = {rate: list(by_seed(rows, _name(method, rate), None, _METRIC).values()) for rate in rates_of(method)}
    if not all(losses.values()):
        return None
    return min(losses, key=lambda rate: float(np.mean(losses[rate])))


def render_tuning(rows: list[Row], path: Path) -> None:
    """Write the losses, the learning rate that they lead to, and the paper's learning rate."""
    lines = begin_page("Fed-Heart-Disease: the client's rate, chosen on the validation loss", "fed-heart-tuning", path)
    lines += [
        "The lowest validation loss of a run, weighted by rows over the centres, times 1,000. Bold: the chosen rate. "
        "FedAdam's, SCAFFOLD's and APFL's second rates and all strengths are the paper's best.",
        "",
    ]
    body = []
    for method in RANKS:
        chosen, cells = chosen_rate(rows, method), []
        for rate in RATES:
            values = list(by_seed(rows, _name(method, rate), None, _METRIC).values())
            text = mean_of(values).text(1000.0, 0) if values else "-"
            cells.append(f"**{text}**" if rate == chosen else text)
        body.append([method, *cells, "-" if chosen is None else f"{chosen:g}", f"{ENTRIES[method].rate:g}"])
    lines += table_lines(["method", *(f"rate {rate:g}" for rate in RATES), "chosen here", "chosen in the paper"], body)
    write_page(path, [*lines, *_cost_of_the_rest(path)])
    _plot(rows, path)


def _cost_of_the_rest(path: Path) -> list[str]:
    """Return the estimated cost of the paper's other combinations, from the runs made here."""
    costs = read_costs(costs_beside(path))
    if not costs:
        return []
    each = sum(cost.processor_seconds for cost in costs) / sum(cost.seeds for cost in costs) * len(SEEDS)
    return [
        "## What is not here",
        "",
        f"* The paper also tries values of FedAdam's and SCAFFOLD's second rate, of APFL's rate of alpha, and of the "
        f"strengths of FedProx, MOON, Ditto and PerFCL. These are {_OTHER_COMBINATIONS} more combinations. They would "
        f"cost about {round(each * _OTHER_COMBINATIONS, -1):,.0f} processor seconds.",
        "",
    ]


@dataclass(frozen=True)
class _Tried:
    """One method with one learning rate, as a variant."""

    method: str
    rate: float

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows. Each row is for the whole federation, so that no centre's own loss is shown."""
        sites = {seed: fed_heart(folder, seed) for seed in seeds}
        entry = with_rate(ENTRIES[self.method], self.rate)
        plans = [fed_heart_plan(each, seed, entry, "global") for seed, each in sites.items()]
        losses: dict[int, list[tuple[float, int]]] = {seed: [] for seed in seeds}
        for predicted in run_plans(plans, list(sites.values())):
            losses[predicted.seed].append(_validation_loss(predicted, sites[predicted.seed][predicted.site]))
        for seed, found in losses.items():
            values, counts = zip(*found, strict=True)
            loss = float(np.average(values, weights=counts))
            yield Row(
                variant=_name(self.method, self.rate), seed=seed, site="all", chosen_round=-1, metrics={_METRIC: loss}
            )


def _name(method: str, rate: float) -> str:
    return f"{method}, rate {rate:g}"


def _validation_loss(predicted: Predicted, dataset: Dataset) -> tuple[float, int]:
    """Return the mean binary cross-entropy of the chosen model on validation rows, and the number of these rows."""
    logits, targets = predicted.validation_outputs.astype(np.float64).reshape(-1), dataset.validation.targets
    return float(np.mean(np.logaddexp(0.0, logits) - targets * logits)), len(targets)


def _plot(rows: list[Row], path: Path) -> None:
    panels: dict[str, list[Curve]] = {}
    for method in RANKS:
        found = [(rate, list(by_seed(rows, _name(method, rate), None, _METRIC).values())) for rate in rates_of(method)]
        points = [(rate, mean_of(values)) for rate, values in reversed(found) if values]
        if points:
            panels[f"{method}, client's rate"] = [Curve(name=method, points=points)]
    if panels:
        plot_curves(path.with_suffix(".svg"), panels, title="Fed-Heart-Disease", axis="validation loss")
