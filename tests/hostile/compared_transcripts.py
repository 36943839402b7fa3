"""What leaves a hospital whose table differs in one patient: the real gate, ledger, masks and trainer, byte by byte.
The hospital answers a plan. Then one patient comes, or none, and the same plan is announced again under another name.
With the patient the memory refuses, because one row is new. An observer must see no difference: the kinds, the number
and the sizes of messages, and how the program ends."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np

from protos.plan.exchange import Exchanges, stage_at
from protos.plan.initial_values import initial_values
from protos.plan.manifest import manifest_of
from protos.plan.methods import METHOD_NAMES
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import Bind, Chunk, Offer, SiteMessage
from protos.wire.positions import parameters_digest
from site_agent.desk import after_rounds
from site_agent.hospital import read_hospital
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Message
from tests.federation import MadeUpTrainer, Site, identity_of
from tests.hostile.masking_coordinator import agree, enter
from tests.protos.examples import plan_with, table_one_of
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import parameter_chunks
from tests.site_agent.trainer.asked import ScriptedSocket
from tests.site_agent.trainer.prior.prior_federation import SITES, concepts_of, make_hospital, prior_plan


class Working(MadeUpTrainer):
    """The real trainer in this process."""

    def __init__(self, site: str, config: Path) -> None:
        super().__init__(site)
        self._worker = Worker(read_hospital(config), ScriptedSocket(), after_rounds)  # type: ignore[arg-type]

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Answer as the trainer's process does."""
        return self._worker._answer(message)


def _plan(kind: str, study: str) -> Plan:
    listed = [{"name": name, "identity": identity_of(name)} for name in SITES]
    head = {"study": study, "sites": listed, "masking": {"required": True}}
    if kind == "prior":
        return plan_from_json(json.dumps(json.loads(prior_plan("breast-cancer").canonical) | head))
    keys = table_one_of(*concepts_of("breast-cancer")) | {"smallest_cell": 10}
    return plan_with(**head, **(keys if kind == "statistics" else {}))


def _seen(message: SiteMessage) -> tuple[str, int]:
    return type(message).__name__, len(message.body) if isinstance(message, Chunk) else 0


def transcript(folder: Path, kind: str, *, comes: bool, rounds: int) -> list[tuple[str, int]]:
    """Everything that an observer sees of one hospital: its messages in two runs, and how it ended."""
    name, config = SITES[0], make_hospital(folder / "hospital", SITES[0], "breast-cancer")
    plans, state = [_plan(kind, "first"), _plan(kind, "second")], folder / "hospital" / "state"

    async def run(plan: Plan) -> list[tuple[str, int]]:
        trainers = {name: Working(name, config)}
        sites = [
            Site(each, plan, state if each == name else folder / f"{each}-{plan.study}",
                 trainer=trainers.get(each) or MadeUpTrainer(each), approved=plans, methods=METHOD_NAMES)
            for each in SITES
        ]  # fmt: skip
        await enter(sites)
        await agree(sites)
        for number in range(rounds):
            stage = stage_at(plan, number)
            tensors = Exchanges(plan, manifest_of(plan)).of(number, stage, b"").down
            first = [initial_values(one, plan.seed).ravel() for one in tensors if isinstance(plan, NetworkPlan)]
            start = np.concatenate(first or [np.zeros(sum(one.number_count for one in tensors), np.float32)])
            if sites[0].error is None:
                await sites[0].tell(Offer(number, 0, parameters_digest(start), stage), *parameter_chunks(start, number))
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


def is_told_apart(kind: str, rounds: int) -> bool:
    """Whether an observer can tell a table from one with one more patient. A second round has impossible sums."""
    with tempfile.TemporaryDirectory(prefix="transcripts-") as name, contextlib.redirect_stdout(io.StringIO()):
        found = [transcript(Path(name) / str(comes), kind, comes=comes, rounds=rounds) for comes in (False, True)]
    return found[0] != found[1]
