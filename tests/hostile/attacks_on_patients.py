"""A coordinator that chooses the starting parameters of sites, to read patients' rows from a masked sum of three sites.
Real tables, real training, real gates and masks. imprinting.py has the parameters and how rows are read."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from protos.plan.architecture import network_tensors
from protos.plan.canonical import digest
from protos.plan.initial_values import initial_values
from protos.plan.manifest import manifest_of
from site_agent.trainer.site_network import Seeds
from tests.federation import Site
from tests.hostile.attack import Attack, as_attack, patched, played
from tests.hostile.attacks_on_starts import with_any_first_parameters
from tests.hostile.imprinting import COLUMNS, NEURONS, PLAN, Numbers, imprint, inputs_read, rows_read
from tests.hostile.masking_coordinator import agree, enter
from tests.hostile.real_trainers import hospitals, plan_for, sum_of_updates, trainers_of

_TWO_LAYERS: dict[str, Any] = {
    "architecture": {"name": "dense", "hidden": [24, NEURONS], "activation": "relu"},
    "method": {"name": "lg-fedavg"},
}
ENOUGH_THROUGH_PRIVATE_LAYERS = 5
ENOUGH_ROWS = 20  # that an attacker has to read for its success; training among three has 341


def rows_of(sites: list[Site]) -> Numbers:
    """All training rows of all sites, encoded."""
    return np.concatenate([trainer.rows for trainer in trainers_of(sites)])


@as_attack(with_any_first_parameters)
async def imprint_in_the_first_round(folder: Path) -> bool:
    """Send an imprinted layer as the first parameters, and read rows out of the sum."""
    plan = plan_for(**PLAN)
    sites = hospitals(plan, folder, slice(0, COLUMNS))
    await enter(sites)
    await agree(sites)
    vector = imprint(plan, "input.layer1", -6.0, 6.0, "head.layer2")
    update = await sum_of_updates(plan, sites, 0, vector)
    if update is None:
        reasons = [record["reason"] for site in sites for record in site.records("coordinator_refused")]
        assert reasons == ["first parameters that are not the plan's"] * 3
        return False
    return rows_read(inputs_read(plan, update, "input.layer1"), rows_of(sites)) >= ENOUGH_ROWS


def imprint_in_a_later_round() -> bool:
    """Begin as agreed, and announce an imprinted layer as the result of the first round. Nothing prevents this yet."""
    plan = plan_for(**PLAN)

    async def scene(folder: Path) -> bool:
        sites = hospitals(plan, folder, slice(0, COLUMNS))
        await enter(sites)
        await agree(sites)
        assert await sum_of_updates(plan, sites, 0, manifest_of(plan).initial_parameters(plan.seed)) is not None
        vector = imprint(plan, "input.layer1", -6.0, 6.0, "head.layer2")
        update = await sum_of_updates(plan, sites, 1, vector)
        return (
            update is not None and rows_read(inputs_read(plan, update, "input.layer1"), rows_of(sites)) >= ENOUGH_ROWS
        )

    return played(scene, False, nullcontext)


def _with_public_private_starts() -> AbstractContextManager[None]:
    return patched(Seeds, secret=lambda secret, plan, site: Seeds.published(plan.seed, site))


def _public_seed(seed: int, site: str, purpose: str) -> int:
    return int.from_bytes(digest(purpose, seed, site)[:7], "little")


def _before_a_layer(weight: Numbers, bias: Numbers, outputs: Numbers) -> Numbers:
    """The inputs that explain each row of a layer's outputs after relu, if there are such inputs."""
    found = []
    for row in outputs:
        is_active = row > 1e-3
        if is_active.sum() <= weight.shape[1]:
            continue
        inputs, *_ = np.linalg.lstsq(weight[is_active], row[is_active] - bias[is_active], rcond=None)
        if np.abs(np.maximum(weight @ inputs + bias, 0.0) - row).max() < 1e-2:
            found.append(inputs)
    return np.array(found).reshape(-1, weight.shape[1])


def rows_through_private_layers(weakened: bool) -> bool:
    """Compute a site's private first layer from public facts, and read rows through it. The check of the first
    parameters is absent from both copies, for it would end the attack before this question."""
    plan = plan_for(**{key: PLAN[key] for key in PLAN if key != "columns"} | _TWO_LAYERS)

    async def scene(folder: Path) -> bool:
        sites = hospitals(plan, folder, slice(0, COLUMNS))
        await enter(sites)
        await agree(sites)
        vector = imprint(plan, "body.layer2", 0.0, 12.0, "head.layer3")
        update = await sum_of_updates(plan, sites, 0, vector)
        assert update is not None
        outputs = inputs_read(plan, update, "body.layer2")
        read = 0
        for site in sites:
            layers = {
                tensor.name: initial_values(tensor, _public_seed(plan.seed, site.name, "private start"))
                for tensor in network_tensors(plan.architecture, columns=COLUMNS, outputs=1)
                if tensor.name.startswith("input.layer1.")
            }
            weight, bias = (layers[f"input.layer1.{part}"].astype(np.float64) for part in ("weight", "bias"))
            read += rows_read(_before_a_layer(weight, bias, outputs), rows_of([site]))
        return read >= ENOUGH_THROUGH_PRIVATE_LAYERS

    with with_any_first_parameters():
        return played(scene, weakened, _with_public_private_starts)


ATTACKS = (
    Attack("rows-read-by-an-imprint", "the check of the first parameters", imprint_in_the_first_round),
    Attack(
        "rows-read-through-private-layers",
        "the site's own secret in private starts, and in both copies the check of the first parameters",
        rows_through_private_layers,
    ),
)
