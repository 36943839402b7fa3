"""Measures a network trained with differential privacy on UCI heart, for the second table of `benchmarks.privacy`.

Sums of clipped gradients are those of the deployed trainer, noise that of the deployed gate, steps those of the
coordinator's rule. A sum does not depend on how patients are dealt to sites, so the same rows stand for 4 and for 20
sites, which differ in their noise alone. AUROC is of the shared network over the test rows of all clinics.

Rounds, clip and rates were chosen on splits from 1000, which no table reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import plan_of_tables, split_of
from global_layers.one_process import Collection
from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.plan.server_rules import apply_rule
from protos.privacy.accounting import share_variance
from protos.privacy.discrete_gaussian import discrete_gaussian
from protos.wire.messages import Stage
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import concept_inputs
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
# The sources of the noise: divided among the sites if one colludes, a trusted curator, the whole noise at each site, or
# no noise.
Kind: TypeAlias = Literal["shared", "curator", "each", "none"]

# Usual values of adults, as a cardiologist would declare them. None of these values was computed from the tables.
TYPICAL: Final[Mapping[str, tuple[float, float]]] = {
    "age": (54.0, 9.0),
    "resting-blood-pressure": (130.0, 18.0),
    "total-cholesterol": (220.0, 45.0),
    "highest-heart-rate": (140.0, 25.0),
    "st-depression": (0.8, 1.1),
}
DELTA: Final = 1e-5
ROUNDS: Final = 40
CLIP: Final = 0.5
PATIENTS: Final = 600  # the number of rows in the plan; the four clinics train on about 613 rows


def rate_of(epsilon: float) -> float:
    """Return the learning rate of a private network: twice epsilon, limited to 4.

    With a higher rate, noise dominates.
    """
    return min(2 * epsilon, 4.0)


def declared(concepts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the concepts of a plan, with the usual values of `TYPICAL`."""
    usual = {name: {"typical": typical, "spread": spread} for name, (typical, spread) in TYPICAL.items()}
    return [concept | usual.get(concept["name"], {}) for concept in concepts]


def network_plan_of(
    tables: Mapping[str, Table],
    epsilon: float,
    *,
    rounds: int = ROUNDS,
    hidden: tuple[int, ...] = (),
    clip: float = CLIP,
    rate: float | None = None,
) -> Plan:
    """Return a plan that trains a network on these tables' concepts and promises `epsilon`, by default at `rate_of`."""
    content: dict[str, Any] = json.loads(plan_of_tables(tables, 3).canonical)
    content["concepts"] = declared(content["concepts"])
    kept = {key: content[key] for key in ("study", "version", "sites", "concepts")}
    return plan_from_json(
        json.dumps(
            kept
            | {
                "kind": "network",
                "method": {"name": "fedavg"},
                "architecture": {"name": "dense", "hidden": hidden},
                "outputs": 1,
                "schedule": {"aggregate": "every-batch", "epochs": rounds, "batches_per_epoch": 1},
                "optimiser": {"name": "sgd", "learning_rate": rate_of(epsilon) if rate is None else rate},
                "weighting": {"name": "equal"},
                "start": {"name": "equal", "seed": 0},
                "checkpoint": "latest",
                "privacy": {
                    "unit": "patient", "epsilon": epsilon, "delta": DELTA, "clip": clip, "patients": PATIENTS,
                },
            }
        )
    )  # fmt: skip


def network_datasets(plan: Plan, tables: Mapping[str, Table], seed: int) -> dict[str, tuple[Dataset, Any]]:
    """Return each clinic's own columns, and the network's inputs that are computed from these columns."""
    found = {}
    for name, table in tables.items():
        rows = split_of(table, 0, seed)
        own, _ = prepare_rows(table, rows)
        found[name] = own, concept_inputs(plan, name, table, rows, own)
    return found


def network_studies(plan: Plan, tables: Mapping[str, Table], seed: int) -> dict[str, Study]:
    """Return the clinics' studies at one split."""
    return {
        name: Study(plan, own, seeds=Seeds.published(plan.seed, name), inputs=inputs)
        for name, (own, inputs) in network_datasets(plan, tables, seed).items()
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledRows:
    """The rows of all clinics at one split, as inputs of the network."""

    training: tuple[Float32, Float64]
    test: tuple[Float32, Float64]


def pooled(plan: Plan, tables: Mapping[str, Table], seed: int) -> PooledRows:
    """Return the rows of all clinics at one split."""
    parts = [inputs.dataset for _, inputs in network_datasets(plan, tables, seed).values()]

    def joined(name: str) -> tuple[Float32, Float64]:
        rows = [getattr(part, name) for part in parts]
        return (
            np.concatenate([one.features for one in rows]),
            np.concatenate([one.targets for one in rows]).astype(np.float64),
        )

    return PooledRows(training=joined("training"), test=joined("test"))


def noise_of(plan: Plan, kind: Kind, sites: int, numbers: int) -> Float64:
    """Return the noise in one round's sum, as whole numbers, float64 of shape (numbers,)."""
    training = plan.private_training
    assert training is not None
    alone = share_variance(training.promise.ratio, 1, training.rounds)
    match kind:
        case "none":
            return np.zeros(numbers)
        case "curator":
            return discrete_gaussian(numbers, alone, np.random.bytes).astype(np.float64)
        case "shared":
            share = share_variance(training.promise.ratio, sites - 1, training.rounds)
            drawn = discrete_gaussian(numbers * sites, share, np.random.bytes)
        case "each":
            drawn = discrete_gaussian(numbers * sites, alone, np.random.bytes)
        case _:
            assert_never(kind)
    return np.asarray(drawn.reshape(sites, numbers).sum(axis=0), np.float64)


def trained_area(plan: Plan, rows: PooledRows, kind: Kind, sites: int) -> float:
    """Return the AUROC after all rounds with one source of noise."""
    manifest, training = manifest_of(plan), plan.private_training
    assert training is not None
    parameters = manifest.initial_parameters(plan.seed)
    exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    known = PrivateRows.of(*rows.training, None)
    for _ in range(plan.schedule.rounds):
        terms = clipped_gradients(layers_of(plan, parameters), training.promise.clip, known)
        noisy = terms + noise_of(plan, kind, sites, len(terms))
        scalars = dict(zip(training.names, (int(number) for number in noisy), strict=True))
        sums = Sums(exchange=exchange, contributors=sites, updates=np.empty(0, np.int32), scalars=scalars)
        apply_rule(plan, manifest, sums, parameters, {})
    features, outcomes = rows.test
    return float(roc_auc_score(outcomes, _logits(layers_of(plan, parameters), features)))


def layers_of(plan: Plan, parameters: Float32) -> list[Layer]:
    """Return the network's layers with these parameters."""
    manifest = manifest_of(plan)
    arrays = [values.astype(np.float64) for values in manifest.views(parameters).values()]
    return [Layer(weight, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]


def _logits(layers: Sequence[Layer], features: Float32) -> Float64:
    moved = features.astype(np.float64)
    for layer in layers[:-1]:
        moved = np.maximum(moved @ layer.weight.T + layer.bias, 0.0)
    return np.asarray((moved @ layers[-1].weight.T + layers[-1].bias)[:, 0])


def print_networks(tables: Mapping[str, Table], epsilons: Sequence[float], splits: int, draws: int) -> None:
    """Print the table of networks."""
    for hidden, wanted in (((), epsilons), ((8,), epsilons[1::2])):
        plan = network_plan_of(tables, max(wanted), hidden=hidden)
        many = [pooled(plan, tables, seed) for seed in range(splits)]
        plain = np.mean([trained_area(plan, rows, "none", 4) for rows in many])
        words = "logistic regression by gradients" if not hidden else "a network with 8 hidden units"
        print(f"{words}: {ROUNDS} rounds, {len(plan.private_training.names if plan.private_training else ())} numbers, "
              f"clip {CLIP:g}. Without noise, at rate {rate_of(max(wanted)):g}: {plain:.4f}")  # fmt: skip
        print("epsilon  shared of 4  shared of 20  curator  full noise at each of 4, of 20")
        for epsilon in wanted:
            used = network_plan_of(tables, epsilon, hidden=hidden)
            asked: tuple[tuple[Kind, int], ...] = (
                ("shared", 4), ("shared", 20), ("curator", 1), ("each", 4), ("each", 20),
            )  # fmt: skip
            found = [
                float(np.mean([trained_area(used, rows, kind, sites) for rows in many for _ in range(draws)]))
                for kind, sites in asked
            ]
            print(f"{epsilon:7g}  {found[0]:.4f}       {found[1]:.4f}        {found[2]:.4f}   "
                  f"{found[3]:.4f}  {found[4]:.4f}", flush=True)  # fmt: skip


def network_step_ratio(tables: Mapping[str, Table], hidden: tuple[int, ...], repeats: int = 40) -> float:
    """Return the ratio of processor seconds: a private round of all clinics to a plain full-batch round of the plan."""
    private = network_plan_of(tables, 1.0, hidden=hidden, rounds=repeats)
    content = json.loads(private.canonical) | {"privacy": None}
    plans = private, plan_from_json(json.dumps(content))
    federations = [(Collection(plan), network_studies(plan, tables, 0)) for plan in plans]
    numbers = count()

    def both() -> tuple[Callable[[], object], Callable[[], object]]:
        number = next(numbers)
        one, other = (partial(collection.make, number, studies) for collection, studies in federations)
        return one, other

    seconds, without = _median_seconds(both, repeats)
    print(f"one round, hidden {list(hidden)}: {seconds:.5f} s private, {without:.5f} s plain, "
          f"network_step_ratio={seconds / without:.2f}")  # fmt: skip
    return seconds / without


def _median_seconds(
    both: Callable[[], tuple[Callable[[], object], Callable[[], object]]], repeats: int
) -> tuple[float, float]:
    """Return the median processor seconds of two functions, measured in turns, so that a busy computer slows both."""
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(repeats):
        for step, seconds in zip(both(), taken, strict=True):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
    return float(np.median(taken[0])), float(np.median(taken[1]))
