"""Chooses the settings of ten methods for Fed-Heart-Disease by the validation loss only, as FENDA-FL does.

Source: Tavakoli et al. 2024, appendix D and table 7: the best combination has the lowest validation loss that the
coordinator sees in training. The loss is the mean over the centres weighted by rows, and the mean over five runs. This
experiment tries every combination of table 7. Test rows are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.experiments.data.uci_centres import fed_heart
from benchmarks.experiments.plots import Curve, plot_curves
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.tables.fed_heart import ENTRIES, RANKS, Entry, fed_heart_plan
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Predicted, Row, Variant, run_plans
from site_agent.trainer.data.dataset import Dataset

RATES: Final = (0.1, 0.01, 1e-3, 1e-4, 1e-5)
# The paper's ranges are shorter for these two.
_OF_METHOD: Final = {"fedprox": (1e-3, 1e-4), "perfcl": (0.1, 0.01, 1e-3)}
SEEDS: Final = range(5)
_METRIC: Final = "validation_loss"


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A setting beside the client's rate: its key in a plan, its name, its range and the paper's best value."""

    key: str
    name: str
    values: tuple[float, ...]
    best: float


_COORDINATORS_RATE: Final = _Setting(key="rate", name="coordinator's rate", values=RATES, best=0.1)
_SETTINGS: Final = {
    "fedadam": (_COORDINATORS_RATE,),
    "fedprox": (_Setting(key="strength", name="mu", values=(1.0, 0.1, 0.01), best=0.01),),
    "scaffold": (_COORDINATORS_RATE,),
    "moon": (_Setting(key="strength", name="mu", values=(10.0, 5.0, 1.0, 0.1, 0.01, 1e-3), best=1e-3),),
    "ditto": (_Setting(key="strength", name="lambda", values=(1.0, 0.1, 0.01), best=0.01),),
    "apfl": (_Setting(key="share_rate", name="rate of alpha", values=(1.0, 0.1, 0.01, 1e-3, 1e-4), best=0.1),),
    "perfcl": (
        _Setting(key="common_strength", name="mu", values=(1.0, 0.1, 0.01), best=0.1),
        _Setting(key="unique_strength", name="gamma", values=(1.0, 5.0, 10.0), best=1.0),
    ),
}


@dataclass(frozen=True)
class Combination:
    """One method with the client's rate, and a value for each of the method's other settings in table 7."""

    method: str
    rate: float
    values: tuple[float, ...] = ()

    @property
    def others(self) -> str:
        """The other settings in words."""
        settings = _SETTINGS.get(self.method, ())
        return ", ".join(f"{each.name} {value:g}" for each, value in zip(settings, self.values, strict=True))

    @property
    def has_best_values(self) -> bool:
        """Whether the other settings have the values that the paper found best."""
        return self.values == _best_values(self.method)

    @property
    def name(self) -> str:
        """The name of the variant. The paper's best values are not named."""
        return f"{self.method}, rate {self.rate:g}" + ("" if self.has_best_values else f", {self.others}")

    def entry(self) -> Entry:
        """Return the method with these settings."""
        entry = ENTRIES[self.method]
        keys = {each.key: value for each, value in zip(_SETTINGS.get(self.method, ()), self.values, strict=True)}
        optimiser = entry.keys.get("optimiser")
        more = entry.keys | ({"optimiser": optimiser | {"learning_rate": self.rate}} if optimiser else {})
        return replace(entry, method={**entry.method, **keys}, rate=self.rate, keys=more)

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows. Each row is for the whole federation, so that no centre's own loss is shown."""
        sites = {seed: fed_heart(folder, seed) for seed in seeds}
        plans = [fed_heart_plan(each, seed, self.entry(), "global") for seed, each in sites.items()]
        losses: dict[int, list[tuple[float, int]]] = {seed: [] for seed in seeds}
        for predicted in run_plans(plans, list(sites.values())):
            losses[predicted.seed].append(_validation_loss(predicted, sites[predicted.seed][predicted.site]))
        for seed, found in losses.items():
            values, counts = zip(*found, strict=True)
            loss = float(np.average(values, weights=counts))
            yield Row(variant=self.name, seed=seed, site="all", chosen_round=-1, metrics={_METRIC: loss})


def _best_values(method: str) -> tuple[float, ...]:
    return tuple(each.best for each in _SETTINGS.get(method, ()))


def combinations(method: str) -> list[Combination]:
    """Return the combinations that table 7 of the paper lists for a method."""
    others, rates = product(*(each.values for each in _SETTINGS.get(method, ()))), _OF_METHOD.get(method, RATES)
    return [Combination(method, rate, values) for values in others for rate in rates]


def variants() -> list[Variant]:
    """Return a variant for each method and each combination of table 7."""
    found = [each for method in RANKS for each in combinations(method)]
    return [Variant(name=each.name, run=each.run, seeds_at_once=len(SEEDS)) for each in found]


def chosen(rows: list[Row], method: str) -> Combination | None:
    """Return the combination with the lowest loss, or None before all combinations were tried."""
    losses = {each: list(_losses(rows, each).values()) for each in combinations(method)}
    if not all(losses.values()):
        return None
    return min(losses, key=lambda each: float(np.mean(losses[each])))


def published(method: str) -> Combination:
    """Return the combination that the paper chose."""
    return Combination(method, ENTRIES[method].rate, _best_values(method))


def render_tuning(rows: list[Row], path: Path) -> None:
    """Write the losses, the combination that they lead to, and the paper's combination."""
    lines = begin_page("Fed-Heart-Disease: settings chosen on the validation loss", "fed-heart-tuning", path)
    wanted = {each.name for method in RANKS for each in combinations(method)}
    tried = len(wanted & {row.variant for row in rows})
    lines += [
        f"{tried} of the {len(wanted)} combinations of table 7 of the FENDA-FL paper, with {len(SEEDS)} runs each. The "
        "loss is the lowest validation loss of a run, weighted by rows over the centres, times 1,000. Test rows are "
        "not used. In the plot, *paper* has the other settings that the paper chose, and *lowest* has those with the "
        "lowest loss at each rate.",
        "",
        "## The chosen combinations",
        "",
        "*Rate* is the client's rate. The last column compares the two combinations on the same runs. The lowest of "
        "many losses is partly due to chance. So the chosen combination looks better here than on new validation rows.",
        "",
        *_choices(rows),
        "## Every combination",
        "",
        "Bold: the chosen combination. A star marks the combination that the paper chose.",
        "",
        *_every_combination(rows),
    ]
    write_page(path, lines)
    _plot(rows, path)


def _choices(rows: list[Row]) -> list[str]:
    """Return for each method the combinations that were chosen here and in the paper, and their losses."""
    body = []
    for method in RANKS:
        known, own = published(method), chosen(rows, method)
        theirs = _losses(rows, known)
        mine = _losses(rows, own) if own else {}
        minus = difference(theirs, mine)
        cells = [_settings_of(own) if own else "-", _loss(mine), _settings_of(known), _loss(theirs)]
        equal = own == known
        body.append([method, *cells, "same" if equal else minus.text(1000.0, 0) if minus else "-"])
    header = ["method", "chosen here", "loss", "chosen in the paper", "loss", "the paper's minus the chosen"]
    return table_lines(header, body)


def _every_combination(rows: list[Row]) -> list[str]:
    """Return the losses of all combinations, with one column for each of the client's rates."""
    body = []
    for method in RANKS:
        own, known = chosen(rows, method), published(method)
        lines: dict[str, dict[float, str]] = {}
        for each in combinations(method):
            text = _loss(_losses(rows, each))
            text = f"**{text}**" if each == own else text
            lines.setdefault(each.others or "-", {})[each.rate] = f"{text} *" if each == known else text
        body += [[method, others, *(cells.get(rate, "-") for rate in RATES)] for others, cells in lines.items()]
    return table_lines(["method", "other settings", *(f"rate {rate:g}" for rate in RATES)], body)


def _settings_of(combination: Combination) -> str:
    return f"rate {combination.rate:g}" + (f", {combination.others}" if combination.others else "")


def _loss(losses: dict[int, float]) -> str:
    return mean_of(list(losses.values())).text(1000.0, 0) if losses else "-"


def _losses(rows: list[Row], combination: Combination) -> dict[int, float]:
    """Return a combination's validation loss by seed."""
    return by_seed(rows, combination.name, None, _METRIC)


def _validation_loss(predicted: Predicted, dataset: Dataset) -> tuple[float, int]:
    """Return the mean binary cross-entropy of the chosen model on validation rows, and the number of these rows."""
    logits, targets = predicted.validation_outputs.astype(np.float64).reshape(-1), dataset.validation.targets
    return float(np.mean(np.logaddexp(0.0, logits) - targets * logits)), len(targets)


def _plot(rows: list[Row], path: Path) -> None:
    """Draw the loss against the client's rate: with the paper's other settings, and with the best other settings."""
    panels: dict[str, list[Curve]] = {}
    for method in RANKS:
        found = {each: list(values.values()) for each in combinations(method) if (values := _losses(rows, each))}
        rates = sorted({each.rate for each in found})
        usual = [(each.rate, mean_of(values)) for each, values in found.items() if each.has_best_values]
        curves = [Curve(name="paper", points=sorted(usual, key=lambda point: point[0]))]
        if len(found) > len(usual):
            best = [min((v for each, v in found.items() if each.rate == rate), key=np.mean) for rate in rates]
            points = [(rate, mean_of(values)) for rate, values in zip(rates, best, strict=True)]
            curves.append(Curve(name="lowest", points=points))
        curves = [curve for curve in curves if curve.points]
        if curves:
            panels[f"{method}, client's rate"] = curves
    if panels:
        plot_curves(path.with_suffix(".svg"), panels, title="Fed-Heart-Disease", axis="validation loss")
