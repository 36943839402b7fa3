"""Runs a federation in one process with one hostile site, which can send values that a gate would refuse.

The other sites' studies, the coordinator's run and every sum are the programs' own. The hostile site reads the plan and
everything that the coordinator sends to a site. It trains like the others if that helps the attack, and accepts all
parameters that it receives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count

import numpy as np
import numpy.typing as npt

from coordinator.rounds.course import Rollback
from global_layers.one_process import Collection, Part, asked_by
from protos.numbers.chunk_layout import Layout
from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import stage_at
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.desk.results.network_baselines import train_alone
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Asked, Outcome, Study

Float32 = npt.NDArray[np.float32]


class Attack(StrEnum):
    """The behaviour of a hostile site."""

    FLIP = "trains on flipped labels"
    SCALE = "sends its update a hundred times"
    REPLACE = "replaces the mean with a model of flipped labels"
    DRIFT = "moves the mean as its flipped labels want, a round's worth at a time"
    NOISE = "sends noise of an honest update's size"
    RING = "sends any value of the ring"
    HIDE = "replaces the mean and accepts in the name of the others"
    REFUSE = "sends an honest update, and refuses in the name of all"


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """The result of a federation with one hostile site.

    Attributes:
        losses: for each honest site the validation loss of the model that it keeps, in the order of the plan.
        last: the same for the last received model.
        alone: the same for the network that it trains alone; infinite if that diverged, empty if none was trained.
        rollbacks: of the run.
        training_rounds: the number of training rounds if the training ended early, otherwise None.
    """

    losses: tuple[float, ...]
    last: tuple[float, ...]
    alone: tuple[float, ...]
    rollbacks: tuple[Rollback, ...]
    training_rounds: int | None

    @property
    def adopted(self) -> tuple[float, ...]:
        """The losses of each honest site's better model: the federated model or the network that it trained alone."""
        return tuple(map(min, self.losses, self.alone))


def attacked(
    plan: Plan,
    sites: Mapping[str, Dataset],
    attack: Attack | None = None,
    *,
    first: int = 2,
    last: float = math.inf,
    hostile: str = "",
    trains_alone: bool = False,
) -> Attacked:
    """Run all rounds of a plan with one hostile site.

    Args:
        plan: lists exactly these sites; equal weights, without masking.
        sites: each one's encoded rows.
        attack: the hostile site's behaviour; None if all sites are honest.
        first: the round in which the attack begins; before it the site is honest.
        last: its last hostile round.
        hostile: the name of that site.
        trains_alone: whether each honest site also trains the network alone.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    given = {name: _flipped(own) if _flips(attack) and name == hostile else own for name, own in sites.items()}
    studies = {name: Study(plan, own, seeds=Seeds.published(plan.seed, name)) for name, own in given.items()}
    evil = _trained_alone(plan, given[hostile], hostile) if attack in (Attack.REPLACE, Attack.HIDE) else None
    collection, generator = Collection(plan), np.random.default_rng(plan.seed)
    run = collection.run
    for number in count():
        if stage_at(plan, number, run.course.training_rounds) is None:
            break
        offer = run.offered(number).offer
        collection.begin(number)
        for name, study in studies.items():
            answer = study.train(asked_by(offer), np.array(run.offered(number).values))
            is_honest = attack is None or name != hostile or not first <= number <= last
            if attack is None or is_honest or offer.stage is not Stage.TRAINING:
                collection.add(name, number, Part(updates=answer.updates, scalars=answer.scalars, rows=0))
                continue
            received = run.offered(number).values[: answer.updates.size]
            wanted = answer.updates if evil is None else evil - received
            updates = _sent(attack, wanted, plan, generator)
            _add(collection, name, number, updates, _votes(attack, len(answer.scalars), generator))
        collection.close(number)
    finish, values = run.result()
    for study in studies.values():
        study.close(asked_by(finish), np.array(values))
    honest = [study for name, study in studies.items() if name != hostile]
    losses = tuple(_kept_loss(study.conclude()) for study in honest)
    alone = [train_alone(study) for study in honest if trains_alone]
    return Attacked(
        losses=losses,
        last=tuple(study.choice.curve[-1].loss for study in honest),
        alone=tuple(math.inf if own is None else _kept_loss(own) for own in alone),
        rollbacks=run.course.rollbacks,
        training_rounds=run.course.training_rounds,
    )


def _kept_loss(outcome: Outcome) -> float:
    loss = outcome.choice["loss"]
    assert isinstance(loss, float)
    return loss


def _flips(attack: Attack | None) -> bool:
    return attack in (Attack.FLIP, Attack.REPLACE, Attack.DRIFT, Attack.HIDE)


def _trained_alone(plan: Plan, own: Dataset, site: str) -> Float32:
    """Return the shared parameters after all rounds of the plan if only the hostile site trains."""
    alone = plan.model_copy(update={"acceptance": None, "early_stopping": None})
    study = Study(alone, own, seeds=Seeds.published(plan.seed, site))
    values = study.manifest.initial_parameters(plan.seed)
    for number in range(plan.schedule.rounds):
        values = values + study.train(Asked(round=number), values.copy()).updates
    return values


def _flipped(own: Dataset) -> Dataset:
    """The same rows with the wrong outcome: the other class, the next class, or minus the number."""

    def wrong(part: Examples) -> Examples:
        targets: npt.NDArray[np.generic]
        match own.task:
            case "binary":
                targets = 1 - part.targets
            case "multi-class":
                targets = (part.targets + 1) % len(own.classes)
            case "regression":
                targets = -part.targets
        return replace(part, targets=targets.astype(part.targets.dtype))

    return replace(own, training=wrong(own.training), validation=wrong(own.validation))


def _sent(attack: Attack, update: Float32, plan: Plan, generator: np.random.Generator) -> npt.NDArray[np.int32]:
    """Return the integers that the hostile site sends instead of its honest update."""
    fixed_point, others = FixedPoint(plan.encoding.clipping_range, len(plan.sites)), len(plan.sites) - 1
    match attack:
        case Attack.FLIP | Attack.REFUSE:
            wanted = update.astype(np.float64)
        case Attack.SCALE:
            wanted = 100.0 * update
        case Attack.REPLACE | Attack.HIDE | Attack.DRIFT:
            wanted = (1.0 + others) * update
        case Attack.NOISE:
            noise = generator.normal(size=update.size)
            wanted = noise * (np.linalg.norm(update) / max(float(np.linalg.norm(noise)), 1e-12))
        case Attack.RING:
            return generator.integers(-(1 << 31), 1 << 31, size=update.size, dtype=np.int64).astype(np.int32)
    # Limited, so that the sum is still possible as a sum of clipped updates.
    limit = fixed_point.scale * fixed_point.clipping_range * others
    return np.rint(np.clip(wanted * fixed_point.scale, -limit, limit)).astype(np.int32)


def _votes(attack: Attack, numbers: int, generator: np.random.Generator) -> list[int]:
    """Return zeros, which accept the parameters, or random numbers, which refuse them in the name of all sites.

    With HIDE the first number is 5. If each site that accepts added 1, it would stand for five sites.
    """
    if attack is Attack.REFUSE:
        return [int(number) for number in generator.integers(1 << 54, size=numbers)]
    return [5] + [0] * (numbers - 1) if attack is Attack.HIDE and numbers else [0] * numbers


def _add(collection: Collection, site: str, number: int, updates: npt.NDArray[np.int32], scalars: list[int]) -> None:
    """Add a vector that no gate has built, chunk by chunk."""
    layout: Layout = collection.run.offered(number).exchange.layout
    buffer = bytearray(layout.total_bytes)
    for index in range(layout.chunks):
        body = layout.body(buffer, index)
        words = layout.words(body, index)
        words[0], words[1:] = 1, scalars[: len(words) - 1]
        layout.updates(body, index)[:] = updates[layout.updates_slice(index)]
        collection.run.running_sum.add(site, index, body)
