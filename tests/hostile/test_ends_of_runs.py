"""The end of a run at a site: it is recorded for its own run, and afterwards nothing of this run happens again."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from protos.errors import ProtocolError, RefusedError
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import (
    Announcement,
    Bind,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Join,
    Refusal,
    SiteReason,
    Stage,
)
from protos.wire.positions import parameters_digest
from site_agent.approving import approve
from site_agent.gate.permission import PolicyForbids
from site_agent.trainer_socket import Conclude, Failed, Message, Prepare, Train
from tests.federation import Line, MadeUpTrainer, Site, identity_of, masked_plan, of_kind, settle
from tests.hostile.masking_coordinator import agree, ask_for, collect, enter
from tests.protos.privacy.private_plans import private_network_plan
from tests.rehearsal.study import offer, parameter_chunks, plan_with

SECONDS = 4.0
FIRST, SECOND = masked_plan("abc", rounds=1), masked_plan("abc", rounds=2)
TENSOR = manifest_of(FIRST).tensors[0].name


class Slow(MadeUpTrainer):
    """A trainer that needs some seconds to load a result. With `fails`, its training ends with an error as slowly."""

    def __init__(self, site: str, *, fails: bool = False) -> None:
        super().__init__(site)
        self.asked: list[str] = []
        self._fails = fails

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """As a trainer, but later."""
        self.asked.append(type(message).__name__)
        if isinstance(message, Conclude):
            await asyncio.sleep(SECONDS)
        if isinstance(message, Train) and self._fails:
            await asyncio.sleep(SECONDS)
            return Failed(SiteReason.VALUE_NOT_FINITE, 1, TENSOR)
        return await super().ask(message, largest_payload)


def result(plan: Plan, value: float) -> list[CoordinatorMessage]:
    """The last messages of a run, with a result whose numbers all have this value."""
    vector = np.full(manifest_of(plan).parameters, value, np.float32)
    return [Finish(plan.rounds, parameters_digest(vector)), *parameter_chunks(vector, plan.rounds)]


def announced(plan: Plan) -> Announcement:
    """The beginning of a run."""
    return Announcement(plan.run_name, plan.canonical)


def digest(plan: Plan, value: float) -> str:
    """What the audit log records of such a result."""
    return hashlib.sha256(np.full(manifest_of(plan).parameters, value, "<f4").tobytes()).hexdigest()


def ends(site: Site) -> list[tuple[str, int, str]]:
    """The ends of runs that this site has recorded."""
    return [(facts["run"], facts["rounds"], facts["parameters_sha256"]) for facts in site.records("run_finished")]


async def begun(folder: Path, *, fails: bool = False) -> list[Site]:
    """Three sites that have masking keys in the first run, and that also approve the second."""
    sites = [Site(name, FIRST, folder / name, trainer=Slow(name, fails=fails)) for name in "abc"]
    for site in sites:
        first = [site.plan.run_name]
        approve(site.directory, SECOND, by="a test", at=datetime(2026, 1, 1, tzinfo=UTC), beside=first)
    await enter(sites)
    await agree(sites)
    return sites


async def _carry_on(sites: Sequence[Site]) -> None:
    await agree(sites)
    for number in range(SECOND.rounds):
        for upload in await collect(sites, number, 0, "abc"):
            assert upload
    for site in sites:
        await site.tell(*result(SECOND, 5.0))
    await asyncio.sleep(2 * SECONDS)


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_run_ends_as_itself_although_the_next_one_has_begun(tmp_path: Path, *, is_at_once: bool) -> None:
    """The next run is announced while the trainer loads the result. Each run has its own end, with its own result. A
    dishonest coordinator sends everything at once. An honest one does not wait longer than `contribute_seconds`."""
    sites = await begun(tmp_path)
    await collect(sites, 0, 0, "abc")
    for site in sites:
        if is_at_once:
            await site.tell(*result(FIRST, 7.0), announced(SECOND))
        else:
            await site.tell(*result(FIRST, 7.0))
            await site.tell(announced(SECOND))
    await asyncio.sleep(2 * SECONDS)
    for site in sites:
        assert site.error is None
        assert ends(site) == [(FIRST.run_name, 1, digest(FIRST, 7.0))]
        assert isinstance(site.trainer, Slow)
        assert site.trainer.asked == ["Prepare", "Train", "Conclude", "Prepare"]

    await _carry_on(sites)

    for site in sites:
        assert ends(site)[1:] == [(SECOND.run_name, 2, digest(SECOND, 5.0))]
        assert of_kind(site.said, Done) == [Done(FIRST.run_name), Done(SECOND.run_name)]
        assert site.trainer.concluded is not None
        assert set(site.trainer.concluded) == {5.0}


async def test_what_was_trained_for_a_run_is_never_sent_in_the_next_one(tmp_path: Path) -> None:
    """Both runs' offers and contributors are sent at once. The first training ends when the second run waits for its.
    Without masks nothing but the step's position tells the two contributions apart."""
    identities = {name: identity_of(name) for name in "abc"}
    first, second = (plan_with(identities, parameters=10, rounds=number) for number in (1, 2))

    trainer = MadeUpTrainer("a", seconds=lambda: SECONDS)
    site = Site("a", first, tmp_path, trainer=trainer, secure_aggregation="not-required")
    approve(site.directory, second, by="a test", at=datetime(2026, 1, 1, tzinfo=UTC))
    await settle()
    asked = (*offer(np.zeros(10, np.float32), 0, 0), Bind(0, 0, ("a", "b", "c"), 0))
    await site.tell(announced(first), *asked, announced(second), *asked)
    await asyncio.sleep(3 * SECONDS)

    assert trainer.trained == [0, 0]
    assert [facts["run"] for facts in site.records("contribution_released")] == [second.run_name]


async def test_a_failure_in_a_run_ends_that_run_and_not_the_next_one(tmp_path: Path) -> None:
    """The site stops so that a person looks at the error. Log and coordinator have the run in which it happened."""
    (site, *_) = await begun(tmp_path, fails=True)
    await site.tell(*offer(np.zeros(10, np.float32), 0, 0), announced(SECOND))
    await asyncio.sleep(2 * SECONDS)

    assert site.error is not None
    assert [facts["run"] for facts in site.records("participation_ended")] == [FIRST.run_name]
    assert of_kind(site.said, Refusal) == [Refusal(FIRST.run_name, SiteReason.VALUE_NOT_FINITE, TENSOR)]


async def test_a_result_that_is_sent_again_while_it_is_loaded_is_loaded_once(tmp_path: Path) -> None:
    """The site reconnects while its trainer loads. The log has the result that the trainer has loaded."""
    sites = await begun(tmp_path)
    await collect(sites, 0, 0, "abc")
    (site, *_) = sites
    await site.tell(*result(FIRST, 7.0))
    assert site.line is not None
    site.line.cut()
    await asyncio.sleep(SECONDS / 2)
    await site.tell(announced(FIRST), *result(FIRST, 5.0))
    await asyncio.sleep(2 * SECONDS)

    assert site.error is None
    assert ends(site) == [(FIRST.run_name, 1, digest(FIRST, 7.0))]
    assert of_kind(site.said, Done) == [Done(FIRST.run_name)]
    assert isinstance(site.trainer, Slow)
    assert site.trainer.asked.count("Conclude") == 1


@pytest.mark.parametrize("seconds", [0.0, SECONDS / 2, 2 * SECONDS])
async def test_no_contributors_are_named_after_the_result(tmp_path: Path, seconds: float) -> None:
    """The last round's contributors are sent once more: at once, while the trainer loads the result, or afterwards."""
    sites = await begun(tmp_path)
    await collect(sites, 0, 0, "abc")
    (site, *_) = sites
    await site.tell(*result(FIRST, 7.0))
    await asyncio.sleep(seconds)
    await site.tell(Bind(0, 0, ("a", "b", "c"), 0))

    assert isinstance(site.error, ProtocolError)
    (record,) = site.records("coordinator_refused")
    assert record["reason"] == "contributors for a round that was not offered"
    assert of_kind(site.said, Refusal) == [Refusal(FIRST.run_name, SiteReason.COORDINATOR_MISBEHAVED)]
    assert len(site.chunks) == 1


async def test_a_finished_run_that_is_announced_to_a_program_started_again_is_done(tmp_path: Path) -> None:
    """The coordinator has not noted the end before its own restart. The site asks its trainer nothing again."""
    sites = await begun(tmp_path)
    await collect(sites, 0, 0, "abc")
    (site, *_) = sites
    await site.tell(*result(FIRST, 7.0))
    await asyncio.sleep(2 * SECONDS)
    await site.stop()
    site.start()
    await settle()
    asked = len(site.trainer.questions)

    assert await site.tell(announced(FIRST)) == [Done(FIRST.run_name)]
    assert len(site.trainer.questions) == asked
    assert of_kind(await site.tell(announced(SECOND)), Join)


@pytest.mark.parametrize("moment", ["while the result is loaded", "after the end", "after a restart"])
async def test_a_private_run_that_has_ended_spends_no_more_epsilon(tmp_path: Path, moment: str) -> None:
    """A finished round is offered again, although its noise is deleted. The site sends and pays nothing more. Its
    budget would allow four more payments. A coordinator that lost its newest state gets the reason."""
    content = json.loads(private_network_plan(rounds=2).canonical)
    for entry in content["sites"]:
        entry["identity"] = identity_of(entry["name"])
    plan = plan_from_json(json.dumps(content))
    manifest = manifest_of(plan)
    values, exchange = manifest.initial_parameters(plan.seed), Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    first = np.concatenate([values, np.zeros(exchange.down_numbers - values.size, np.float32)])
    budget = {"largest_epsilon_per_study": 5.0, "largest_epsilon_per_year": 5.0, "delta": 1e-5}
    sites = [Site(name, plan, tmp_path / name, trainer=Slow(name), privacy=budget) for name in plan.site_names]
    site = sites[0]
    await enter(sites)
    await agree(sites)
    for number, one in itertools.product(range(2), sites):
        assert await ask_for(one, number, 0, plan.site_names, first + np.float32(number))
    await site.tell(*result(plan, 9.0))
    await asyncio.sleep(0 if moment == "while the result is loaded" else 2 * SECONDS)
    if moment == "after a restart":
        await site.stop()
        site.start()
        await settle()
        assert await site.tell(announced(plan)) == [Done(plan.run_name)]
    for number in range(2):
        await site.tell(*offer(first + np.float32(number), number, 1), Bind(number, 1, plan.site_names, 0))
    await asyncio.sleep(2 * SECONDS)

    assert [facts["epsilon"] for facts in site.records("privacy_spent")] == [1.0]
    assert isinstance(site.error, ProtocolError if moment == "after a restart" else PolicyForbids)
    assert [chunk.attempt for chunk in site.chunks] == [0, 0]


class SlowToPrepare(MadeUpTrainer):
    """A trainer that reads a long table."""

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """As a trainer, but later."""
        if isinstance(message, Prepare):
            await asyncio.sleep(60.0)
        return await super().ask(message, largest_payload)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (CoordinatorReason.ALL_RUNS_OVER, "has ended without this site"),
        (CoordinatorReason.RUN_STOPPED, "one site does not agree"),
    ],
)
async def test_a_site_at_work_hears_the_end_and_does_not_call_again(
    tmp_path: Path, reason: CoordinatorReason, said: str
) -> None:
    """A farewell that arrived while the trainer prepared counts, although the stream had already ended. The site has no
    result of the run, so it does not end as if all were well."""
    plan = masked_plan("abc")
    opened: list[Line] = []

    site = Site("a", plan, tmp_path, trainer=SlowToPrepare("a"), opened=lambda _, line: opened.append(line))
    await settle()
    await site.tell(Announcement(plan.run_name, bytes(plan.canonical)))
    await site.tell(Farewell(reason, "one site does not agree"))
    assert site.line is not None
    site.line.cut()

    await asyncio.sleep(300.0)

    assert len(opened) == 1
    assert isinstance(site.error, RefusedError)
    assert said in site.error.what
    await site.stop()
