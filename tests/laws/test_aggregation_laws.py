"""Aggregation, from the gate's encoding to the server rule: exact, in any order, for every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from coordinator.rounds.aggregation import RunningSum
from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout
from protos.numbers.fixed_point import FixedPoint, round_rows
from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.ingredients import Mean, ServerRule
from protos.plan.manifest import ROWS, Manifest, manifest_of
from protos.plan.plan import Plan
from protos.plan.server_rules import apply_rule, begin_rule
from protos.plan.weighting import RowWeights
from protos.wire.messages import Stage
from site_agent.gate.door import Builder
from tests.for_each import in_turns
from tests.protos.examples import COMPANIONS, METHODS, NETWORK, listed, plan_of_method

WEIGHTINGS: Final[tuple[dict[str, Any], ...]] = ({"name": "equal"}, {"name": "rows", "largest_rows": 512})
LATENT: Final = 128  # more than one chunk for Global Layers
TRAINING: Final = 1  # a round of training under every method, in which all layers take part
by_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda weighting: weighting["name"])


def networks(method: dict[str, Any]) -> dict[str, Any]:
    """Networks with more numbers than a chunk, for a method that has no network of its own."""
    name = COMPANIONS.get(method["name"], {}).get("architecture", NETWORK)["name"]
    wide = {"name": "parallel", "common": [540, 540], "unique": [540]}
    columns = {"name": "columns", "hidden": [540, 540], "lateral": 0.5}
    return {"parallel": wide, "columns": columns}.get(name, NETWORK | {"latent": LATENT})


def rule_of(method: dict[str, Any]) -> ServerRule:
    """The method's server rule."""
    return plan_of_method(method).ingredients.server_rule


SHARING = [method for method in METHODS if method["name"] != "local"]
MEANS = [method for method in SHARING if isinstance(rule_of(method), Mean)]


def named(value: Any) -> str:
    """A method or a weighting by its name, a seed as it is."""
    return str(value["name"] if isinstance(value, dict) else value)


def by_method(methods: list[dict[str, Any]], seeds: int) -> pytest.MarkDecorator:
    """Every method and weighting with one of the seeds; continuous integration runs the others."""
    cases = in_turns(product(methods, WEIGHTINGS), range(seeds))
    return pytest.mark.parametrize(("method", "weighting", "seed"), cases, ids=named)


@dataclass(frozen=True)
class Study:
    """One round of a plan: what was sent down and what every site trained."""

    plan: Plan
    manifest: Manifest
    exchange: Exchange
    received: npt.NDArray[np.float32]
    updates: dict[str, npt.NDArray[np.float32]]
    rows: dict[str, int]

    @property
    def layout(self) -> Layout:
        """How a contribution is cut."""
        return self.exchange.layout

    @property
    def fixed_point(self) -> FixedPoint:
        """How an update becomes integers."""
        return FixedPoint(self.plan.masking.clipping_range, len(self.plan.sites))

    def weight(self, site: str) -> float:
        """The factor of a site's update."""
        match self.plan.weighting:
            case RowWeights(largest_rows=largest):
                return self.rows[site] / largest
            case _:
                return 1.0


def study(seed: int, method: dict[str, Any], weighting: dict[str, Any], sites: int) -> Study:
    """A made-up round: updates as after training, a few beyond the clipping range."""
    generator = np.random.default_rng(seed)
    plan = plan_of_method(
        method,
        architecture=networks(method),
        weighting={"name": "equal"} if method["name"] == "scaffold" else weighting,
        sites=listed(sites),
        masking={"required": False, "clipping_range": 0.5, "largest_clipped_share": 1.0},
    )
    manifest = manifest_of(plan)
    updates = {
        site: generator.normal(0.0, 0.15, manifest.parameters).astype(np.float32).clip(-0.5, 0.5)
        for site in plan.site_names
    }
    rows = {site: round_rows(int(generator.integers(1, 600)), 512) for site in plan.site_names}
    exchange = Exchanges(plan, manifest).of(TRAINING, Stage.TRAINING, b"")
    return Study(plan, manifest, exchange, manifest.initial_parameters(seed), updates, rows)


def contributions(made: Study) -> dict[str, list[bytes]]:
    """Each site's chunks, as its gate builds them."""
    builder = Builder(made.plan, trains=True, smallest_rows=1)
    chunks = {}
    for site, update in made.updates.items():
        weight = made.rows[site] if made.plan.weighting.name == "rows" else 1
        scalars = [min(weight, scalar.bound) for scalar in made.exchange.scalars if scalar.name != ROWS]
        payload = update.astype("<f4").tobytes() + np.array(scalars, "<i8").tobytes()
        built = builder.build(b"p" * 32, made.exchange, memoryview(payload), rows=made.rows[site])
        chunks[site] = [bytes(made.layout.body(built.buffer, index)) for index in range(made.layout.chunks)]
    return chunks


def interleaved(chunks: dict[str, list[bytes]], generator: np.random.Generator) -> Iterator[tuple[str, int, bytes]]:
    """All sites' chunks, each site's in order, the sites mixed at random."""
    waiting = dict.fromkeys(chunks, 0)
    while waiting:
        site = str(generator.choice(sorted(waiting)))
        yield site, waiting[site], chunks[site][waiting[site]]
        waiting[site] += 1
        if waiting[site] == len(chunks[site]):
            del waiting[site]


def summed(made: Study, chunks: dict[str, list[bytes]], generator: np.random.Generator) -> RunningSum:
    """The sum after all chunks have arrived in a random order."""
    sums = RunningSum(made.manifest.parameters)
    sums.reset(made.layout, chunks)
    for site, index, body in interleaved(chunks, generator):
        sums.add(site, index, body)
    assert sums.is_complete
    return sums


def closed(made: Study, sums: RunningSum) -> Sums:
    """The sums of the round by name."""
    names = [scalar.name for scalar in made.exchange.scalars]
    scalars = dict(zip(names, sums.scalars, strict=True))
    return Sums(exchange=made.exchange, contributors=sums.sites, updates=sums.updates, scalars=scalars)


def _next_parameters(made: Study, sums: RunningSum) -> npt.NDArray[np.float32]:
    parameters = made.received.copy()
    state = begin_rule(made.plan.ingredients.server_rule, parameters.size)
    apply_rule(made.plan, made.manifest, closed(made, sums), parameters, state)
    return parameters


@by_method(METHODS, seeds=3)
def test_the_order_of_arrival_never_changes_a_bit(seed: int, method: dict[str, Any], weighting: dict[str, Any]) -> None:
    """However the sites' chunks are interleaved, the next parameters are the same bytes."""
    made = study(seed, method, weighting, sites=3 + seed)
    chunks = contributions(made)
    generator = np.random.default_rng(seed)

    results = {_next_parameters(made, summed(made, chunks, generator)).tobytes() for _ in range(4)}

    assert len(results) == 1


@by_method(MEANS, seeds=5)
def test_the_result_is_the_weighted_mean_of_the_changes(
    seed: int, method: dict[str, Any], weighting: dict[str, Any]
) -> None:
    """The next parameters are the received ones plus the float64 mean, within half a step and one rounding."""
    made = study(seed, method, weighting, sites=3 + seed)
    chunks = contributions(made)

    result = _next_parameters(made, summed(made, chunks, np.random.default_rng(seed)))

    weights = {site: made.weight(site) for site in made.updates}
    total = sum(weights.values())
    mean = sum((weights[site] * update.astype(np.float64) for site, update in made.updates.items()), np.float64(0))
    exact = made.received.astype(np.float64) + mean / total
    # Half a step a site, and float32's rounding of each product and of the result.
    bound = len(chunks) * (0.5 / made.fixed_point.scale + 2.0**-26) / total + np.spacing(
        np.abs(exact).astype(np.float32)
    )
    assert (np.abs(result - exact) <= bound).all()


@by_method(METHODS, seeds=3)
def test_a_wrong_check_word_is_noticed(seed: int, method: dict[str, Any], weighting: dict[str, Any]) -> None:
    """A wrong check in one chunk of one site is detected, however the chunks arrive."""
    made = study(seed, method, weighting, sites=3)
    chunks = contributions(made)
    generator = np.random.default_rng(seed)
    honest = summed(made, chunks, generator)
    site, index = str(generator.choice(list(chunks))), int(generator.integers(made.layout.chunks))
    body = bytearray(chunks[site][index])
    made.layout.words(memoryview(body), index)[0] ^= np.int64(1 << generator.integers(63))
    chunks[site][index] = bytes(body)

    assert honest.is_consistent
    assert not summed(made, chunks, generator).is_consistent


@by_weighting
@pytest.mark.parametrize("seed", range(5))
def test_a_site_that_is_bound_and_sends_nothing_is_noticed(seed: int, weighting: dict[str, Any]) -> None:
    """A sum that lacks a bound site is never complete, and never consistent."""
    made = study(seed, METHODS[0], weighting, sites=4)
    chunks = contributions(made)
    silent = sorted(chunks)[seed % 4]
    sums = RunningSum(made.manifest.parameters)

    sums.reset(made.layout, chunks)
    for site, index, body in interleaved(chunks, np.random.default_rng(seed)):
        if site != silent:
            sums.add(site, index, body)

    assert not sums.is_complete
    assert not sums.is_consistent


def test_these_laws_are_about_more_than_one_chunk() -> None:
    """The studies above are cut into several chunks, so that interleaving them means something."""
    made = study(0, METHODS[0], WEIGHTINGS[0], sites=3)

    assert made.manifest.parameters > CHUNK_PARAMETERS
    assert made.layout.chunks > 1
