"""A coordinator that chooses or computes the starting values of a site, to read rows from a sum. With a first layer of
the coordinator's choice each number of the update can stand for very few rows. The site computes the first values from
the plan, so such a round is refused before its parameters arrive. Private layers, the order of batches and dropout
follow from a secret of the site and from the plan, so nobody else can compute them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Announcement, Chunk
from site_agent.gate import permission
from site_agent.gate.itinerary import Itinerary
from site_agent.hospital import Policy
from site_agent.trainer.disk import site_secret
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.federation import Site, masked_plan, of_kind, settle
from tests.host.starting import write_starting_file
from tests.hostile.attack import Attack, as_attack, in_copy, patched, scratch
from tests.hostile.attacks_on_rounds import asked, joined
from tests.laws.catalogue import catalogue_plan, rows_at
from tests.rehearsal.study import made_up_identity
from tests.site_agent.trainer.sites import values_of

Vector: TypeAlias = npt.NDArray[np.float32]

NEURONS, COLUMNS = 40, 7
PLAN: dict[str, Any] = {
    "masking": {"required": False},
    "architecture": {
        "name": "named-tensors",
        "tensors": [
            {"name": "input.weight", "shape": [NEURONS, COLUMNS], "bound": 0.25},
            {"name": "input.bias", "shape": [NEURONS], "bound": 0.0},
        ],
    },
}


def with_any_first_parameters() -> AbstractContextManager[None]:
    """A site trains from whatever parameters a coordinator sends for the first round."""
    return patched(Itinerary, _check_start=lambda self, offer, exchange: None)


def imprint() -> Vector:
    """All neurons measure the same, each from a higher threshold: neighbours differ by the rows between them."""
    weights = np.tile(np.linspace(0.1, 0.7, COLUMNS, dtype=np.float32), NEURONS)
    return np.concatenate([weights, -np.linspace(0.0, 4.0, NEURONS, dtype=np.float32)])


@as_attack(with_any_first_parameters)
async def first_parameters_of_the_coordinator(folder: Path) -> bool:
    """Have a site train from a layer that separates its rows by thresholds."""
    site = await joined(folder, masked_plan("abc", **PLAN))
    answers = of_kind(await site.tell(*asked(0, vector=imprint())), Chunk)
    if not answers:
        (record,) = site.records("coordinator_refused")
        assert record["reason"] == "first parameters that are not the plan's"
    return bool(answers)


def _with_any_starting_file() -> AbstractContextManager[None]:
    honest = permission.refusals

    def permissive(policy: Policy, *words: Any, **more: Any) -> tuple[str, ...]:
        return honest(policy.model_copy(update={"starting_file": "allow"}), *words, **more)

    return patched(permission, refusals=permissive)


@as_attack(_with_any_starting_file)
async def starting_file_of_the_researcher(folder: Path) -> bool:
    """Have a site approve a plan whose file holds the layer that separates rows by thresholds."""
    crafted = imprint()
    values = {"input.weight": crafted[: NEURONS * COLUMNS].reshape(NEURONS, COLUMNS), "input.bias": crafted[-NEURONS:]}
    named = {"name": "file", "seed": 0, "sha256": write_starting_file(folder / "starting-files", values)}
    site = Site("a", masked_plan("abc", **PLAN, start=named), folder, secure_aggregation="not-required")
    admission, files = site.gate._admission, str(folder / "starting-files")
    admission._hospital = admission._hospital.model_copy(update={"starting_files": files})
    await settle()
    await site.tell(Announcement(site.plan.run_name, site.plan.canonical))
    if not site.records("run_joined"):
        assert "starts from a file" in site.records("plan_refused")[0]["reason"]
        return False
    return bool(of_kind(await site.tell(*asked(0, vector=crafted)), Chunk))


@as_attack(with_any_first_parameters)
async def first_control_variates_of_the_coordinator(folder: Path) -> bool:
    """Push each site's first steps in a direction of the coordinator's, by control variates that are not 0."""
    plan = masked_plan("abc", **PLAN | {"method": {"name": "scaffold"}})
    first = manifest_of(plan).initial_parameters(plan.seed)
    site = await joined(folder, plan)
    answers = await site.tell(*asked(0, vector=np.append(first, np.full_like(first, 0.5))))
    return bool(of_kind(answers, Chunk))


def _with_public_draws() -> AbstractContextManager[None]:
    return patched(Seeds, secret=lambda secret, plan, site: Seeds.published(plan.seed, site))


def a_study(folder: Path, plan: Plan, number: int) -> Study:
    """A plan that begins at one of its sites, whose trainer keeps its secret in this folder."""
    site = plan.site_names[number]
    secret = site_secret(folder / site)
    return Study(plan, rows_at("ahus", number), seeds=Seeds.secret(secret, plan, site))


def _a_training_plan(study: str, sites: str) -> Plan:
    listed = [{"name": site, "identity": made_up_identity(site)} for site in sites]
    return catalogue_plan("global-layers", study=study, sites=listed)


def first_private_values(weakened: bool) -> bool:
    """Compute a site's private layers from the plan alone, to invert the first sum with them."""
    plan = _a_training_plan("heart", "abc")
    guessed = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "a"))
    with scratch() as folder, in_copy(weakened, _with_public_draws):
        real = values_of(a_study(folder, plan, 0))
    shared = {tensor.name for tensor in manifest_of(plan).tensors}
    private = [name for name, values in real.items() if name not in shared and values.any()]
    assert private
    assert all(np.array_equal(real[name], values_of(guessed)[name]) for name in shared)
    return all(np.array_equal(real[name], values_of(guessed)[name]) for name in private)


def second_study_without_a_site(weakened: bool) -> bool:
    """Run a study again under another name without one site, and subtract the two first sums. Where the others repeat
    their private layers and batches, the difference is that site's update."""
    sums, wanted = [], np.empty(0)
    with scratch() as folder, in_copy(weakened, _with_public_draws):
        for plan in (_a_training_plan("first", "abcd"), _a_training_plan("second", "abc")):
            start = manifest_of(plan).initial_parameters(plan.seed)
            numbers = range(len(plan.sites))
            updates = [a_study(folder, plan, number).train(Asked(round=0), start).updates for number in numbers]
            wanted = updates[3] if len(updates) == 4 else wanted
            sums.append(np.sum(updates, axis=0))
    return bool(np.abs(sums[0] - sums[1] - wanted).max() < 1e-6)


ATTACKS = (
    Attack("first-parameters", "the check of the first parameters", first_parameters_of_the_coordinator),
    Attack("crafted-starting-file", "the policy's rule about starting files", starting_file_of_the_researcher),
    Attack("first-control-variates", "the check of the first parameters", first_control_variates_of_the_coordinator),
    Attack("first-private-values", "the site's secret", first_private_values),
    Attack(
        "second-study-with-the-same-draws",
        "the site's secret and the plan's digest in its draws",
        second_study_without_a_site,
    ),
)
