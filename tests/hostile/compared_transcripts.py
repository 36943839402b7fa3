"""What leaves a hospital whose table differs in one patient: the real gate, ledger, masks and trainer, byte by byte.

The hospital answers a plan. Then one patient comes, or none, and the same plan is announced again under another
name. With the patient the memory refuses, because one row is new. An observer must see no difference: the kinds,
the number and the sizes of messages, and how the program ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np

from protos.plan.plan import plan_from_json
from protos.plan.prior_plan import PriorPlan
from protos.wire.messages import Bind, Chunk, Offer, SiteMessage, Stage
from protos.wire.positions import parameters_digest
from site_agent.desk import after_rounds
from site_agent.hospital import read_hospital
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Message
from tests.federation import MadeUpTrainer, Site, identity_of
from tests.hostile.masking_coordinator import agree, enter
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import parameter_chunks
from tests.site_agent.trainer.asked import ScriptedSocket
from tests.site_agent.trainer.prior.prior_federation import SITES, make_hospital, prior_plan


class Working(MadeUpTrainer):
    """The real trainer in this process."""

    def __init__(self, site: str, config: Path) -> None:
        super().__init__(site)
        self._worker = Worker(read_hospital(config), ScriptedSocket(), after_rounds)  # type: ignore[arg-type]

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Answer as the trainer's process does."""
        return self._worker._answer(message)


def _plan(study: str) -> PriorPlan:
    content = json.loads(prior_plan("breast-cancer", study=study).canonical)
    content["sites"] = [{"name": name, "identity": identity_of(name)} for name in SITES]
    plan = plan_from_json(json.dumps(content | {"masking": {"required": True}}))
    assert isinstance(plan, PriorPlan)
    return plan


def _seen(message: SiteMessage) -> tuple[str, int]:
    return type(message).__name__, len(message.body) if isinstance(message, Chunk) else 0


def transcript(folder: Path, *, comes: bool, rounds: int) -> list[tuple[str, int]]:
    """Everything that an observer sees of one hospital: its messages in two runs, and how it ended."""
    name, config = SITES[0], make_hospital(folder / "hospital", SITES[0], "breast-cancer")
    plans, state = [_plan("first"), _plan("second")], folder / "hospital" / "state"

    async def run(plan: PriorPlan) -> list[tuple[str, int]]:
        trainers = {name: Working(name, config)}
        sites = [
            Site(each, plan, state if each == name else folder / f"{each}-{plan.study}",
                 trainer=trainers.get(each) or MadeUpTrainer(each), approved=plans, methods=["federated-prior"])
            for each in SITES
        ]  # fmt: skip
        await enter(sites)
        await agree(sites)
        for number in range(rounds):
            zeros = np.zeros(sum(tensor.number_count for tensor in plan.tensors_before(number)), np.float32)
            stage = Stage.STATISTICS if number == 0 else Stage.NEWTON
            if sites[0].error is None:
                await sites[0].tell(Offer(number, 0, parameters_digest(zeros), stage), *parameter_chunks(zeros, number))
            if sites[0].error is None:
                await sites[0].tell(Bind(number, 0, plan.site_names, 0))
        seen = [*map(_seen, sites[0].said), (type(sites[0].error).__name__, 0)]
        for site in sites:
            await site.stop()
        return seen

    first = play(run(plans[0]))
    if comes:
        table = folder / "hospital" / "table.csv"
        lines = table.read_text().splitlines()
        table.write_text("\n".join([*lines, lines[1]]) + "\n")
    return [*first, *play(run(plans[1]))]


def is_told_apart(seed: int) -> bool:
    """Whether an observer can tell a table from one with one more patient. Odd seeds send impossible sums too."""
    with tempfile.TemporaryDirectory(prefix="transcripts-") as name, contextlib.redirect_stdout(io.StringIO()):
        found = [transcript(Path(name) / str(comes), comes=comes, rounds=1 + seed % 2) for comes in (False, True)]
    return found[0] != found[1]
