"""Repeats CHFL's published results on covertype: a row of table II, table III, figure 4, and the concatenated network.

Source: Mori et al. 2022, section V. Hidden layers of 512, 256 and 128 in every network, batches of 64, Adam, five local
epochs, equal weights, the last model. Each client tunes rate and mu on its own validation rows. The paper states
neither the number of rounds nor the rates that were tried. This experiment runs three rounds. Three methods of table II
also run with twelve, to show what the number of rounds changes. The experiment tries two rates. All clients of one
federation have the same rate. Each client chooses its best federation. Runs with twelve rounds have torch's default
rate.

A seed is a split of the columns and a run: seed = 5 * split + run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.data.dealt_columns import DealtColumns, chfl_covertype
from benchmarks.experiments.data.views import only_columns
from benchmarks.experiments.federations import federate
from benchmarks.experiments.modules import concatenated_columns
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, predicted_by, row_of, validation_accuracy

ROUNDS: Final = 3
MORE_ROUNDS: Final = 12
EPOCHS_PER_ROUND: Final = 5
BATCH_ROWS: Final = 64
RUNS: Final = 5
SEEDS: Final = range(3 * RUNS)
RATE: Final = 1e-3
RATES: Final = (RATE, 3e-3)
STRENGTHS: Final = (0.0, 0.25, 1.0)
COMMON: Final = "common"
LOCAL: Final = "local"
CONCATENATED: Final = "concatenated"
_HIDDEN: Final = concatenated_columns.HIDDEN
_MODULE: Final = Path(concatenated_columns.__file__)


@dataclass(frozen=True)
class Setting:
    """The number of clients, and the fraction of the columns that all clients have."""

    clients: int = 5
    share: float = 0.3

    @property
    def title(self) -> str:
        """The name of the setting on the pages."""
        return f"{self.clients} clients, {self.share:.0%} common"


TABLE_II: Final = Setting()
TABLE_III: Final = (Setting(clients=2), TABLE_II, Setting(clients=10))
FIGURE_4: Final = (Setting(share=0.1), Setting(share=0.2), TABLE_II, Setting(share=0.4), Setting(share=0.5))
# Mean accuracy in the paper; figure 4 is printed without numbers.
PUBLISHED: Final = {
    TABLE_II: {COMMON: 0.6218, LOCAL: 0.6407, "mu 0": 0.6744, "mu above 0": 0.6843, CONCATENATED: 0.6637},
    Setting(clients=2): {COMMON: 0.6420, LOCAL: 0.7649, "mu 0": 0.7475, "mu above 0": 0.7748},
    Setting(clients=10): {COMMON: 0.6014, LOCAL: 0.5628, "mu 0": 0.6290, "mu above 0": 0.6291},
}


@dataclass(frozen=True)
class Candidate:
    """One federation of a setting. A client chooses among the candidates."""

    setting: Setting
    method: str
    rate: float
    rounds: int | None = None  # None for ROUNDS

    @property
    def name(self) -> str:
        """The name of the variant."""
        longer = "" if self.rounds is None else f", {self.rounds} rounds"
        return f"{self.method}, {self.setting.title}, rate {self.rate:g}{longer}"

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """Compute this variant's rows. See Variant."""
        split, run = divmod(seed, RUNS)
        dealt = chfl_covertype(folder, split, run, sites=self.setting.clients, common_share=self.setting.share)
        sites = dealt.sites
        if self.method == COMMON:
            sites = {name: only_columns(dataset, dealt.common) for name, dataset in sites.items()}
        module = _MODULE if self.method == CONCATENATED else None
        _, outcomes = federate(chfl_plan(self, dealt, seed), sites, user_module=module)
        for name, outcome in outcomes.items():
            predicted, dataset = predicted_by(seed, name, outcome), sites[name]
            chosen_by = validation_accuracy(predicted, dataset)
            yield row_of(self.name, predicted, dataset, validation_accuracy=chosen_by)


def strength_name(strength: float) -> str:
    """Return the name of CHFL with this mu."""
    return f"chfl, mu {strength:g}"


def candidates(setting: Setting) -> list[Candidate]:
    """Return all federations that are run for a setting."""
    methods = [COMMON, LOCAL, *map(strength_name, STRENGTHS)]
    if setting == TABLE_II:
        methods.append(CONCATENATED)
    return [Candidate(setting, *each) for each in product(methods, RATES)]


def with_more_rounds() -> list[Candidate]:
    """Return table II's federations with more rounds. Nobody chooses among them."""
    methods = (COMMON, LOCAL, strength_name(0.0))
    return [Candidate(TABLE_II, method, RATE, rounds=MORE_ROUNDS) for method in methods]


def variants() -> list[Variant]:
    """Return every candidate of every setting as a variant, each only once."""
    settings = dict.fromkeys((TABLE_II, *TABLE_III, *FIGURE_4))
    found = [candidate for setting in settings for candidate in candidates(setting)]
    return [Variant(name=each.name, run=each.run) for each in (*found, *with_more_rounds())]


def chfl_plan(candidate: Candidate, dealt: DealtColumns, seed: int) -> Any:  # a Plan
    """The plan of a candidate."""
    rows = min(len(dataset.training) for dataset in dealt.sites.values())
    rounds = ROUNDS if candidate.rounds is None else candidate.rounds
    shared: dict[str, Any] = {"columns": dealt.common, "outputs": 7}
    match candidate.method:
        case "common":
            keys = shared | {"method": {"name": "fedavg"}, "architecture": {"name": "dense", "hidden": _HIDDEN}}
        case "local":
            keys = {"method": {"name": "local"}, "architecture": {"name": "dense", "hidden": _HIDDEN}}
        case "concatenated":
            listed = {"name": "named-tensors", "tensors": listed_tensors(len(dealt.common))}
            keys = {"method": {"name": "global-layers"}, "architecture": listed}
        case method:
            strength = next(value for value in STRENGTHS if strength_name(value) == method)
            network = {"name": "columns", "hidden": _HIDDEN, "lateral": strength}
            keys = shared | {"method": {"name": "chfl"}, "architecture": network}
    return experiment_plan(
        dealt.sites,
        seed,
        schedule={
            "aggregate": "every-round",
            "epochs": rounds * EPOCHS_PER_ROUND,
            "epochs_per_round": EPOCHS_PER_ROUND,
            "batches_per_epoch": rows // BATCH_ROWS,
        },
        optimiser={"name": "adam", "learning_rate": candidate.rate},
        weighting={"name": "equal"},
        checkpoint="latest",
        **keys,
    )


def listed_tensors(common: int) -> list[dict[str, Any]]:
    """Return the tensors of the module's common network, in the form in which a plan lists tensors."""
    found: list[dict[str, Any]] = []
    for place, (inner, outer) in enumerate(pairwise((common, *_HIDDEN, 7))):
        for kind, shape in (("weight", [outer, inner]), ("bias", [outer])):
            found.append({"name": f"common.{2 * place}.{kind}", "shape": shape, "bound": inner**-0.5})
    return found
