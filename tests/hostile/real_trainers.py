"""Three hospitals with real tables and the real trainer's study, behind the real gate and masks.

Everything is in one process and in made-up time. The agents, gates, ledgers and masks are those of production, and so
are preparation, training and what a study hands out. Only the sockets between the processes are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import Stage
from site_agent.hospital import read_hospital
from site_agent.trainer.study import Asked, Study
from site_agent.trainer.worker import begin_study
from site_agent.trainer_socket import Message, Prepare, Prepared, Train, Trained
from tests.hostile.masking_federation import MadeUpTrainer, Site, masked_plan
from tests.site_agent.trainer.sites import NAMES, Table, make_site

Rows = npt.NDArray[np.float64]


def plan_for(**changes: Any) -> Plan:
    """A masked plan of the three hospitals."""
    return masked_plan(NAMES, **changes)


def hospitals(plan: Plan, folder: Path, *, table: Table, columns: slice) -> list[Site]:
    """A running agent for each hospital, with a real trainer behind it."""
    found = []
    for name in plan.site_names:
        trainer = RealTrainer(name, folder / name, table=table, columns=columns)
        found.append(Site(name, plan, folder / name / "state", trainer=trainer))
    return found


class RealTrainer(MadeUpTrainer):
    """A hospital's own study, asked as its gate asks the trainer."""

    def __init__(self, site: str, folder: Path, *, table: Table, columns: slice) -> None:
        super().__init__(site)
        self._configuration = make_site(folder / "hospital", site, table=table, columns=columns, draws="secret")
        self.study: Study | None = None

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Prepare or train; anything else is as at a made-up hospital."""
        match message:
            case Prepare(payload=payload):
                plan = plan_from_wire(bytes(payload))
                hospital = read_hospital(self._configuration)
                self.study, _ = begin_study(hospital, plan, hospital.state_path)
                return Prepared(manifest_of(plan).digest.hex())
            case Train(round=number, redraw=redraw, payload=payload) if self.study is not None:
                layers = bytes.fromhex(message.layers)
                best = None if message.best_round < 0 else message.best_round
                asked = Asked(round=number, redraw=redraw, stage=Stage(message.stage), layers=layers, best_round=best)
                answer = self.study.train(asked, np.frombuffer(payload, "<f4").copy())
                scalars = np.array(answer.scalars, "<i8").tobytes()
                return Trained(number, self.study.rows, answer.changes.astype("<f4").tobytes() + scalars)
            case _:
                return await super().ask(message, largest_payload)

    @property
    def rows(self) -> Rows:
        """The encoded training rows: float64 of shape (rows, columns)."""
        assert self.study is not None
        return np.asarray(self.study._training.rows.training.features, np.float64)
