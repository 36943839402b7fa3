"""Measures how much harm one hostile site of five can do, and how often honest federations are rolled back.

    python -m benchmarks.poisoning attacks --seeds 3
    python -m benchmarks.poisoning clean --federations 100

Everything runs in one process, with the code of the programs (experiments/hostile_site.py). Tables, methods and seeds
are random. No file is needed. Both commands print a line for each case and end with one line of `key=value` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import click
import numpy as np

from benchmarks.experiments.data.dealt_rows import SITES, TABLE_NAMES, dealt_rows
from benchmarks.experiments.hostile_site import Attack, Attacked, attacked
from benchmarks.experiments.plans import experiment_plan
from protos.plan.compatibility import agreed_sizes
from protos.plan.plan import Plan
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.dataset import Dataset

HOSTILE: Final = SITES[-1]
BEGINS: Final = 4
ACCEPTANCE: Final = {"rule": "held-out-loss", "quorum": 4, "standard_errors": 1.5, "largest_rise": 0.2}
_DENSE: Final = {"name": "dense", "hidden": [16], "activation": "relu", "dropout": 0.1}
_LATENT: Final = {
    "name": "global-layers-network", "latent": 32, "gate": False, "input_normalisation": False, "dropout": 0.1,
    "entities": False, "transformer_blocks": 0,
}  # fmt: skip
_PARALLEL: Final = {"name": "parallel", "common": [8], "unique": [8]}
_PLAIN: Final = {"optimiser": {"name": "sgd", "learning_rate": 0.1}}
# A plan's keys beside the method's name.
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "global-layers": {"architecture": _LATENT},
    "fedavg": {},
    "fedprox": {},
    "fedadam": {"rate": 0.01, "offset": 1e-9},
    "fedyogi": {"rate": 0.01},
    "scaffold": _PLAIN,
    "moon": {},
    "fedlp": {},
    "fedper": {},
    "fedrep": {"head_epochs": 2},
    "fedbabu": {},
    "lg-fedavg": {},
    "ditto": {},
    "apfl": {},
    "fenda-fl": {"architecture": _PARALLEL},
    "player-fl": {},
}
_OF_PLAN: Final = ("architecture", "optimiser")


def plan_for(name: str, sites: Mapping[str, Dataset], seed: int, *, epochs: int, has_acceptance: bool = True) -> Plan:
    """Return a plan of these sites with a method, with as many rounds as epochs."""
    first, settings = next(iter(sites.values())), METHODS[name]
    keys: dict[str, Any] = {
        "method": {"name": name} | {key: value for key, value in settings.items() if key not in _OF_PLAN},
        "architecture": _DENSE,
        "schedule": {"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 5},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "weighting": {"name": "equal"},
        "checkpoint": "local",
        "acceptance": ACCEPTANCE if has_acceptance else None,
    } | {key: settings[key] for key in _OF_PLAN if key in settings}
    sizes = {"columns": list(first.columns), "outputs": first.outputs}
    for key in agreed_sizes(*_parts(keys)):
        keys[key] = sizes[key]
    return experiment_plan(sites, seed, **keys)


def _parts(keys: Mapping[str, Any]) -> Any:  # Any: the two arguments of agreed_sizes
    whole = {"columns": ["a"], "outputs": 1}
    for extra in (whole, {"columns": ["a"]}, {"outputs": 1}, {}):
        try:
            plan = experiment_plan(SITES, 0, **keys, **extra)
        except ValueError:
            continue
        return plan.ingredients, plan.architecture
    raise ValueError("no plan of this method")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Measure what a hostile site can do, and how often honest federations are rolled back."""
    prepare_arithmetic(1)


@main.command()
@click.option("--federations", default=100, help="How many are drawn over tables, spreads, methods and seeds.")
@click.option("--epochs", default=12, help="Rounds of each.")
@click.option("--first-seed", default=0, help="Another seed draws other federations.")
def clean(federations: int, epochs: int, first_seed: int) -> None:
    """Count the rollbacks of honest federations."""
    generator, rolled_back, rounds = np.random.default_rng(first_seed), 0, 0
    for seed in range(first_seed, first_seed + federations):
        table, name = generator.choice(TABLE_NAMES), generator.choice(list(METHODS))
        spread = (None, 1.0, 0.4)[int(generator.integers(3))]
        sites = dealt_rows(table, seed, spread=spread)
        found = attacked(plan_for(str(name), sites, seed, epochs=epochs), sites)
        rolled_back += bool(found.rollbacks)
        rounds += epochs
        if found.rollbacks:
            click.echo(f"{table} spread {spread} {name} seed {seed}: {found.rollbacks}")
    click.echo(f"federations={federations} rounds={rounds} rolled_back={rolled_back}")


@main.command()
@click.option("--seeds", default=3, help="Federations of each kind.")
@click.option("--epochs", default=10, help="Rounds of each.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("global-layers", "fedavg"),
    help="Repeat the option for more methods.",
)
@click.option("--first-seed", default=0, help="Another seed draws other federations.")
def attacks(seeds: int, epochs: int, methods: tuple[str, ...], first_seed: int) -> None:
    """Compare honest sites' validation losses under each attack with those of a federation without the hostile site.

    The last model is the one received last. The kept one is the best of those received, by the site's own validation
    rows. The adopted one is the better one of the kept model and the network that the site trained alone.
    """
    harmed, drawn = 0, range(first_seed, first_seed + seeds)
    for name in methods:
        for attack in Attack:
            for table in TABLE_NAMES:
                line, is_harmed = _compared(name, attack, table, drawn, epochs)
                harmed += is_harmed
                click.echo(line)
    click.echo(f"methods={len(methods)} attacks={len(Attack)} tables={len(TABLE_NAMES)} seeds={seeds} harmed={harmed}")


def _compared(name: str, attack: Attack, table: Any, seeds: range, epochs: int) -> tuple[str, bool]:
    """Return a line on one attack, and whether it harmed the adopted models without a refusal in any round."""
    rises, within = [], 0
    for seed in seeds:
        sites = dealt_rows(table, seed)
        plan = plan_for(name, sites, seed, epochs=epochs)
        alone = _without(name, table, seed, epochs)
        found = attacked(plan, sites, attack, first=BEGINS, hostile=HOSTILE, trains_alone=True)
        within += bool(found.rollbacks) and found.rollbacks[0].round <= BEGINS + 1
        rises.append([_rise(found, alone, key) for key in ("last", "losses", "adopted")])
    means = np.mean(rises, axis=0)
    errors = np.std(rises, axis=0, ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else np.zeros(3)
    is_harmed = bool(means[2] > 2 * errors[2]) and within < len(seeds)
    told = ", ".join(
        f"{which} {mean:+.3f} +- {error:.3f}"
        for which, mean, error in zip(("last", "kept", "adopted"), means, errors, strict=True)
    )
    return f"{name} {table}: {attack.value}: refused within a round {within} of {len(seeds)}; loss: {told}", is_harmed


@cache
def _without(name: str, table: Any, seed: int, epochs: int) -> Attacked:
    """Run the federation of the four honest sites."""
    others = {site: rows for site, rows in dealt_rows(table, seed).items() if site != HOSTILE}
    return attacked(plan_for(name, others, seed, epochs=epochs, has_acceptance=False), others, trains_alone=True)


def _rise(found: Attacked, alone: Attacked, key: str) -> float:
    """Return how much higher the honest sites' mean loss is than without the hostile site."""
    return float(np.mean(getattr(found, key)) - np.mean(getattr(alone, key)))


if __name__ == "__main__":
    main()
