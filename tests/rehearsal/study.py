"""Small studies for tests, and an honest site: it answers as a hospital would. Every site adds a number of its own to
every parameter, so what a run has to end with is plain arithmetic: after n rounds, n times the mean of the sites'
numbers, exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from protos.fingerprints import fingerprint
from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json, plan_from_wire
from protos.plan.weighting import RowWeights
from protos.wire.messages import (
    MOST_SAVED,
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    Done,
    Farewell,
    Finish,
    Join,
    Offer,
    SiteMessage,
    Stage,
)
from protos.wire.positions import down_chunks, down_slice, parameters_digest, received_position
from protos.wire.upkeep_messages import LogHeads
from tests.plan_changes import changed

SITES = ("a", "b", "c")
NUMBERS = {"a": 1.0, "b": 2.0, "c": 6.0, "d": 0.5}
MEAN = 3.0  # of a, b and c
THREE_CHUNKS = 600_000  # parameters


def made_up_identity(site: str) -> str:
    """A fingerprint for a site that needs no key."""
    return fingerprint(hashlib.sha256(site.encode()).digest())


def made_up_identities(sites: Iterable[str] = SITES) -> dict[str, str]:
    """A fingerprint for each site."""
    return {site: made_up_identity(site) for site in sites}


def plan_with(
    identities: Mapping[str, str],
    *,
    study: str = "study",
    parameters: int = 10,
    rounds: int = 3,
    changes: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan in the clear for these sites; see `changed` for `changes`."""
    return plan_from_json(json.dumps(changed(plan_document(identities, study, parameters, rounds), changes or {})))


def plan_document(
    identities: Mapping[str, str], study: str = "study", parameters: int = 10, rounds: int = 3
) -> dict[str, Any]:
    """The plan as a person would write it."""
    return {
        "kind": "network",
        "study": study,
        "version": 1,
        "method": {"name": "fedavg"},
        "architecture": {
            "name": "named-tensors",
            "tensors": [
                {"name": "first", "shape": [3], "bound": 0.0},
                {"name": "second", "shape": [parameters - 3], "bound": 0.0},
            ],
        },
        "schedule": {"aggregate": "every-round", "epochs": rounds, "batches_per_epoch": 1},
        "optimiser": {"name": "sgd", "learning_rate": 1.0},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 0},
        "sites": [{"name": site, "identity": identity} for site, identity in sorted(identities.items())],
        "masking": {"required": False},
    }


def contribution(
    plan: Plan, number: float, exchange: Exchange | None = None, scalars: Mapping[str, int] | None = None
) -> list[bytes]:
    """The chunks of a contribution that changes every parameter by `number`; scalars that are not named are 0. Without
    an exchange it is that of a plan that exchanges everything in every round."""
    travels = exchange or Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")
    layout, given = travels.layout, {"rows": 1} | dict(scalars or {})
    weight = given["rows"] / plan.weighting.largest_rows if isinstance(plan.weighting, RowWeights) else 1.0
    fixed_point = FixedPoint(plan.masking.clipping_range, len(plan.sites))
    buffer = bytearray(layout.total_bytes)
    for index in range(layout.chunks):
        body = layout.body(buffer, index)
        words = layout.words(body, index)
        words[0] = 1
        words[1:] = [given.get(scalar.name, 0) for scalar in travels.scalars][: len(words) - 1]
        updates = layout.updates(body, index)
        fixed_point.encode(np.full(updates.size, number, np.float32), weight, updates)
    return [bytes(layout.body(buffer, index)) for index in range(layout.chunks)]


def parameter_chunks(vector: npt.NDArray[np.generic], number: int, attempt: int = 0) -> list[Chunk]:
    """A vector on its way down."""
    return [
        Chunk(number, attempt, index, vector.tobytes()[down_slice(index)])
        for index in range(down_chunks(vector.nbytes))
    ]


def offer(vector: npt.NDArray[np.float32], number: int, attempt: int = 0) -> list[CoordinatorMessage]:
    """An honest offer of a round, with its parameters."""
    return [Offer(number, attempt, parameters_digest(vector)), *parameter_chunks(vector, number, attempt)]


class BehavingSite:
    """The answers of one hospital to each message; `stops_after` interrupts its next upload. `scalars` gives what it
    measures in a round, by name, 0 for what it does not name."""

    def __init__(
        self,
        name: str,
        *,
        stops_after: int | None = None,
        scalars: Callable[[Offer], Mapping[str, int]] = lambda offer: {},
    ) -> None:
        self.name, self.number, self.stops_after = name, NUMBERS[name], stops_after
        self.plans: list[Plan] = []
        self.offers: list[Offer] = []
        self.binds: list[Bind] = []
        self.vectors: list[npt.NDArray[np.float32]] = []
        self.finish: Finish | None = None
        self.farewell: Farewell | None = None
        self._scalars = scalars
        self._announced: Offer | Finish | None = None
        self._arrived: list[bytes] = []
        self._received = b""  # what the chunks belong to
        self._run = self._run_before = ""

    def answer(self, message: CoordinatorMessage) -> list[SiteMessage]:
        """What an honest site of this number sends back."""
        match message:
            case Announcement(run=run, plan=raw):
                self._run = run
                self.plans.append(plan_from_wire(raw))
                self._exchanges = Exchanges(self.plan, manifest_of(self.plan))
                following = 1 + self.offers[-1].round if self.offers and self._run_before == run else 0
                self._run_before = run
                # Its contribution depends on no earlier round, so it can go on from any round of this run.
                saved = tuple(number for number in sorted({0, *range(following + 1)})[-MOST_SAVED:])
                digests = (self.plan.digest, manifest_of(self.plan).digest)
                received = self._received, len(self._arrived)
                return [Join(run, *digests, 0, following, saved if following else (), *received)]
            case Offer() | Finish():
                here = received_position(self._run, message)
                assert message.first_chunk in (0, len(self._arrived) if here == self._received else 0)
                self._announced, self._received = message, here
                self._arrived = self._arrived if message.first_chunk else []
                return self._take_vector()
            case Chunk(body=body):
                self._arrived.append(body)
                return self._take_vector()
            case Bind():
                self.binds.append(message)
                return list(self._upload(message))
            case Farewell():
                self.farewell = message
                return []
            case LogHeads():
                return []
            case _:
                raise AssertionError(f"a site in the clear never gets {message}")

    @property
    def plan(self) -> Plan:
        """The plan announced last."""
        return self.plans[-1]

    def _upload(self, bind: Bind) -> list[Chunk]:
        offer = self.offers[-1]
        assert (offer.round, offer.attempt) == (bind.round, bind.attempt)
        exchange = self._exchanges.of(offer.round, offer.stage, offer.layers)
        bodies = contribution(self.plan, self.number, exchange, self._scalars(offer))
        stop, self.stops_after = self.stops_after, None
        return [Chunk(bind.round, bind.attempt, index, body) for index, body in enumerate(bodies)][
            bind.first_chunk : stop
        ]

    def _take_vector(self) -> list[SiteMessage]:
        announced = self._announced
        assert announced is not None
        if isinstance(announced, Finish):
            numbers = sum(tensor.number_count for tensor in self._exchanges.result(announced.layers))
        else:
            numbers = self._exchanges.of(announced.round, announced.stage, announced.layers).down_numbers
        vector = np.frombuffer(b"".join(self._arrived), "<f4")
        if vector.size < numbers:
            return []
        assert parameters_digest(vector) == announced.parameters_digest
        self.vectors.append(vector)
        if isinstance(announced, Finish):
            self.finish = announced
            return [Done(self._run)]
        self.offers.append(announced)
        return []
