"""Three hospitals with real tables and the real trainer's study, behind the real gate and masks. Everything is in one
process and in made-up time. The agents, gates, ledgers and masks are those of production, and so are preparation,
training and what a study hands out. Only the sockets between the processes are missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import Stage
from site_agent.hospital import read_hospital
from site_agent.trainer.before_rounds import begin_study
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import Study
from site_agent.trainer_socket import Agreed, Conclude, Message, Prepare, Prepared, Train, Trained
from tests.federation import MadeUpTrainer, Site, Vector, masked_plan
from tests.hostile.masking_coordinator import ask_for, total
from tests.site_agent.trainer.sites import NAMES, make_site

Rows: TypeAlias = npt.NDArray[np.float64]
Sum: TypeAlias = npt.NDArray[np.float64]


def plan_for(**changes: Any) -> Plan:
    """A masked plan of the three hospitals."""
    return masked_plan(NAMES, **changes)


def hospitals(plan: Plan, folder: Path, columns: Mapping[str, slice] | slice) -> list[Site]:
    """A running agent for each hospital, with a real trainer behind it; `columns` of the table, at each or at all."""
    found = []
    for name in plan.site_names:
        mine = columns if isinstance(columns, slice) else columns[name]
        place = folder / name / "hospital"
        trainer = RealTrainer(name, make_site(place, name, table="breast-cancer", columns=mine, draws="secret"))
        found.append(Site(name, plan, folder / name / "state", trainer=trainer))
    return found


def exchange_of(plan: Plan, number: int) -> Exchange:
    """The values sent in a round of training."""
    return Exchanges(plan, manifest_of(plan)).of(number, Stage.TRAINING, b"")


async def sum_of_updates(plan: Plan, sites: list[Site], number: int, vector: Vector) -> Sum | None:
    """The coordinator's decoded sum of a round that begins with these parameters; None if a site refuses."""
    uploads = [await ask_for(site, number, 0, plan.site_names, vector) for site in sites]
    if not all(uploads):
        return None
    encoded, is_consistent = total(plan, uploads, exchange_of(plan, number))
    assert is_consistent
    return encoded / FixedPoint(plan.masking.clipping_range, len(sites)).scale


def trainers_of(sites: list[Site]) -> list[RealTrainer]:
    """The trainers behind these sites."""
    return [site.trainer for site in sites if isinstance(site.trainer, RealTrainer)]


class RealTrainer(MadeUpTrainer):
    """A hospital's own study, asked as its gate asks the trainer."""

    def __init__(self, site: str, configuration: Path) -> None:
        super().__init__(site)
        self._configuration = configuration
        self.study: Study | None = None
        self.update: Vector = np.empty(0, np.float32)  # the secret: what was handed out last

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Prepare or train; anything else is as at a made-up hospital."""
        match message:
            case Prepare(payload=payload):
                plan = plan_from_wire(bytes(payload))
                hospital = read_hospital(self._configuration)
                self.study, _ = begin_study(hospital, plan, hospital.state_path)
                return Prepared(manifest_of(plan).digest.hex())
            case Train(round=number, payload=payload) if self.study is not None:
                layers = bytes.fromhex(message.layers)
                best = None if message.best_round < 0 else message.best_round
                asked = Asked(round=number, stage=Stage(message.stage), layers=layers, best_round=best)
                answer = self.study.train(asked, np.frombuffer(payload, "<f4").copy())
                self.update = answer.updates.astype(np.float32)
                scalars = np.array(answer.scalars, "<i8").tobytes()
                return Trained(number, self.study.rows, answer.updates.astype("<f4").tobytes() + scalars)
            case Conclude(payload=payload) if self.study is not None:
                best = None if message.best_round < 0 else message.best_round
                layers = bytes.fromhex(message.layers)
                asked = Asked(round=message.round, stage=None, layers=layers, best_round=best)
                self.study.close(asked, np.frombuffer(payload, "<f4").copy())
                return Agreed()
            case _:
                return await super().ask(message, largest_payload)

    @property
    def rows(self) -> Rows:
        """The encoded training rows: float64 of shape (rows, columns)."""
        assert self.study is not None
        return np.asarray(self.study._training.rows.training.features, np.float64)
