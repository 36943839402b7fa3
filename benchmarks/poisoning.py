"""What one hostile site of five can do where sites may refuse, and how often honest federations are rolled back.

    python -m benchmarks.poisoning attacks --seeds 3
    python -m benchmarks.poisoning clean --federations 100

Everything is in one process, by the code of the programs (experiments/hostile_site.py). Tables, methods and seeds are
drawn; no file is needed. Both commands print a line for each case and end with one line of `key=value` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click
import numpy as np

from benchmarks.experiments.data.dealt_rows import SITES, TABLE_NAMES, dealt_rows
from benchmarks.experiments.hostile_site import Attack, attacked
from benchmarks.experiments.plans import experiment_plan
from protos.plan.compatibility import agreed_sizes
from protos.plan.plan import Plan
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.dataset import Dataset

HOSTILE: Final = SITES[-1]
BEGINS: Final = 4
ACCEPTANCE: Final = {"rule": "held-out-loss", "quorum": 4, "standard_errors": 2.0, "largest_rise": 0.2}
_DENSE: Final = {"name": "dense", "hidden": [16], "activation": "relu", "dropout": 0.1}
_LATENT: Final = {
    "name": "global-layers-network", "latent": 32, "gate": False, "input_normalisation": False, "dropout": 0.1,
    "entities": False, "transformer_blocks": 0,
}  # fmt: skip
_PARALLEL: Final = {"name": "parallel", "common": [8], "unique": [8]}
_PLAIN: Final = {"optimiser": {"name": "sgd", "learning_rate": 0.1}}
# What a plan says beside the method's name.
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "global-layers": {"architecture": _LATENT},
    "fedavg": {},
    "fedprox": {},
    "fedadam": {"rate": 0.01},
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
    """A plan of these sites with a method, in as many rounds as epochs."""
    first, settings = next(iter(sites.values())), METHODS[name]
    keys: dict[str, Any] = {
        "method": {"name": name} | {key: value for key, value in settings.items() if key not in _OF_PLAN},
        "architecture": _DENSE,
        "schedule": {"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 5},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "weighting": {"name": "equal"},
        # The last model, so that nothing but a rollback keeps a bad one from the sites.
        "checkpoint": "latest",
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
def clean(federations: int, epochs: int) -> None:
    """Count the rollbacks of honest federations."""
    generator, rolled_back, rounds = np.random.default_rng(0), 0, 0
    for seed in range(federations):
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
@click.option("--method", "methods", multiple=True, default=("global-layers", "fedavg"), help="Several times for more.")
def attacks(seeds: int, epochs: int, methods: tuple[str, ...]) -> None:
    """Compare honest sites' losses under each attack with those of a federation without the hostile site."""
    harmed = 0
    for name in methods:
        for attack in Attack:
            for table in TABLE_NAMES:
                line, is_harmed = _compared(name, attack, table, seeds, epochs)
                harmed += is_harmed
                click.echo(line)
    click.echo(f"methods={len(methods)} attacks={len(Attack)} tables={len(TABLE_NAMES)} seeds={seeds} harmed={harmed}")


def _compared(name: str, attack: Attack, table: Any, seeds: int, epochs: int) -> tuple[str, bool]:
    """A line on one attack, and whether it did harm without being refused within a round."""
    extra, weakened, within = [], [], 0
    for seed in range(seeds):
        sites = dealt_rows(table, seed)
        others = {site: rows for site, rows in sites.items() if site != HOSTILE}
        alone = attacked(plan_for(name, others, seed, epochs=epochs, has_acceptance=False), others)
        plan = plan_for(name, sites, seed, epochs=epochs)
        found = attacked(plan, sites, attack, first=BEGINS, hostile=HOSTILE)
        within += bool(found.rollbacks) and found.rollbacks[0].round <= BEGINS + 1
        extra.append(np.subtract(found.losses, alone.losses).mean())
        without = plan_for(name, sites, seed, epochs=epochs, has_acceptance=False)
        weakened.append(_without_votes(without, sites, attack) - float(np.mean(alone.losses)))
    error = float(np.std(extra, ddof=1)) / np.sqrt(seeds) if seeds > 1 else 0.0
    mean, is_refused = float(np.mean(extra)), within == seeds
    is_harmed = mean > 2 * error and not is_refused
    return (
        f"{name} {table}: {attack.value}: refused within a round {within} of {seeds}, last model's loss above that of a"
        f" federation without the site {mean:+.3f} +- {error:.3f}, with votes ignored {np.mean(weakened):+.3f}"
    ), is_harmed


def _without_votes(plan: Plan, sites: Mapping[str, Dataset], attack: Attack) -> float:
    """The honest sites' mean loss if none of them may refuse; no number where the sum is refused and the run ends."""
    try:
        return float(np.mean(attacked(plan, sites, attack, first=BEGINS, hostile=HOSTILE).losses))
    except ArithmeticError:
        return float("nan")


if __name__ == "__main__":
    main()
