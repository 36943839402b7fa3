"""A coordinator that has two plans approved for the same sites that differ in what one site contributes. The hospitals
are made up and follow the plans: a concept counts at its recorders, a unit is converted by the plan's factor, and an
update is weighed by the plan. So the difference of the sums of two plans is one hospital's number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from protos.masking.masking_refusals import Reason
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.plan.prior_plan import PriorPlan
from protos.wire.messages import Bind, Chunk, Offer, Stage
from protos.wire.positions import parameters_digest
from site_agent.approvals import approval_path
from site_agent.trainer_socket import Message, Train, Trained
from tests.federation import MadeUpTrainer, Site, identity_of, masked_plan, of_kind, rows_of, update_from
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import agree, all_refuse, collect, enter, found, total
from tests.hostile.masking_weakened import without
from tests.rehearsal.study import parameter_chunks

SITES, VICTIM = "abcde", "e"
CREATININE: dict[str, Any] = {
    "kind": "number", "name": "creatinine", "definition": "In blood.", "low": 0.0, "high": 20.0, "unit": "mg/dl",
    "conversions": [{"unit": "umol/l", "factor": 0.0113}],
}  # fmt: skip


def regression(**changes: Any) -> PriorPlan:
    """A regression on one concept, which all hospitals record; the victim alone in another unit."""
    sites = [{"name": name, "identity": identity_of(name)} for name in SITES]
    version, concept = changes.pop("version", 1), CREATININE | changes
    content = {"kind": "prior", "study": "renal", "version": version, "concepts": [concept], "sites": sites}
    plan = plan_from_json(json.dumps(content))
    assert isinstance(plan, PriorPlan)
    return plan


def numbers_of(site: str, plan: PriorPlan) -> list[int]:
    """What a made-up hospital counts in the first round: equal under every plan but for the plan's own rule."""
    concept: Any = plan.concepts[0]
    factor = concept.conversions[0].factor / 0.0113 if site == VICTIM else 1.0
    counts = concept.recorded_by is None or site in concept.recorded_by
    numbers = []
    for name in plan.statistics_names:
        drawn = int.from_bytes(hashlib.sha256(f"{site} {name}".encode()).digest()[:2], "big")
        kind = name.partition(" ")[0]
        value = 0 if kind == "voids" else round(drawn * (factor if kind == "sum" and "creatinine" in name else 1.0))
        numbers.append(value * int(counts) if "creatinine" in name else value)
    return numbers


class Counting(MadeUpTrainer):
    """A hospital that counts by the rule of the plan."""

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Count; anything else is as at other made-up hospitals."""
        if isinstance(message, Train) and isinstance(self._plan, PriorPlan):
            return Trained(message.round, 0, np.array(numbers_of(self._site, self._plan), "<i8").tobytes())
        return await super().ask(message, largest_payload)


async def _counted(plan: PriorPlan, folder: Path) -> tuple[list[Site], list[int]]:
    """Play the first round of a regression; the sites, and the decoded sums, or none if a site refuses."""
    sites = [Site(name, plan, folder / name, trainer=Counting(name)) for name in SITES]
    await enter(sites)
    await agree(sites)
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.STATISTICS, b"")
    vector, words = np.zeros(exchange.down_numbers, np.float32), np.zeros(exchange.layout.words_in(0), np.int64)
    for site in sites:
        await site.tell(Offer(0, 0, parameters_digest(vector), Stage.STATISTICS), *parameter_chunks(vector, 0, 0))
        chunks = [] if site.error else of_kind(await site.tell(Bind(0, 0, tuple(SITES), 0)), Chunk)
        if not chunks:
            return sites, []
        words += exchange.layout.words(chunks[0].body, 0)  # wraps
    return sites, words[1:].tolist()


def another_rule_of_counting(weakened: bool, **change: Any) -> bool:
    """Count twice under two rules, and subtract: only the victim's numbers differ. No approval of the first is left."""
    first, second = regression(), regression(version=2, **change)

    async def scene(folder: Path) -> bool:
        sites, before = await _counted(first, folder)
        await _stop(sites)
        for site in sites:
            approval_path(site.directory, first).unlink()
        sites, after = await _counted(second, folder)
        if not after:
            assert all_refuse(sites[:1], Reason.OTHER_RULES, chunks=0)
            return False
        secret = [one - other for one, other in zip(numbers_of("e", first), numbers_of("e", second), strict=True)]
        return any(secret) and [one - other for one, other in zip(before, after, strict=True)] == secret

    return played(scene, weakened, lambda: without(Reason.OTHER_RULES))


async def _stop(sites: Sequence[Site]) -> None:
    for site in sites:
        await site.stop()


def another_weighting(weakened: bool) -> bool:
    """Train twice from the same parameters, the second time by rows up to a cap that one hospital does not reach."""
    names = [name for name in "abcdefghijklmnop" if rows_of(name) >= 64][:3]
    small = next(name for name in "abcdefghijklmnop" if rows_of(name) < 64)
    capped = masked_plan([*names, small], weighting={"name": "rows", "largest_rows": 64})
    share = 1.0 - min(rows_of(small), 64) / 64
    return _trained_twice(weakened, Reason.OTHER_RULES, (masked_plan([*names, small]), capped), small, share)


def second_study_without_a_site(weakened: bool) -> bool:
    """Subtract the first sum of a second study, with another name and one site fewer, from the first study's."""
    # Plans for four and for five sites encode with the same scale.
    plans = masked_plan("abcde"), masked_plan("abcd", study="another")
    return _trained_twice(weakened, Reason.OTHER_SETS, plans, "e", 1.0)


def _trained_twice(weakened: bool, reason: Reason, plans: Sequence[Plan], victim: str, share: float) -> bool:
    """Whether the difference of two plans' first sums, from the same parameters, is this share of a site's update."""

    async def scene(folder: Path) -> bool:
        sums, secret = [], None
        for plan in plans:
            trainers = {name: MadeUpTrainer(name, update_from) for name in plan.site_names}
            sites = [Site(name, plan, folder / name, trainer=trainers[name]) for name in plan.site_names]
            await enter(sites)
            await agree(sites)
            uploads = await collect(sites, 0, 0, plan.site_names)
            if not all(uploads):
                assert all_refuse(sites[:1], reason, chunks=0)
                return False
            sums.append(total(plan, uploads)[0])
            secret = next((site.update() for site in sites if site.name == victim), secret)
            await _stop(sites)
        return bool(np.abs(sums[0] - sums[1] - share * secret).max() <= len(sites)) and not found(sums[0], sums[1])

    return played(scene, weakened, lambda: without(reason))


ATTACKS = (
    Attack(
        name="another-list-of-recorders",
        tries="a second regression lists one recorder of a concept less, and the sums are subtracted",
        without="the rule in the memory of answered sums",
        run=partial(another_rule_of_counting, recorded_by=list("abcd")),
    ),
    Attack(
        name="another-factor-of-a-unit",
        tries="a second regression converts the unit of one hospital by a slightly different factor",
        without="the rule in the memory of answered sums",
        run=partial(another_rule_of_counting, conversions=[{"unit": "umol/l", "factor": 0.0113 * 1.001}]),
    ),
    Attack(name="another-weighting", without="the rule in the memory of answered sums", run=another_weighting),
    Attack(name="second-study-without-a-site", without="the memory of other plans", run=second_study_without_a_site),
)
