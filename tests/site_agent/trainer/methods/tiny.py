"""Federations of two sites with few rows, in memory: the sites' studies, the gate, the coordinator's run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import new_run, terms_of
from global_layers.one_process import asked_by
from protos.plan.exchange import stage_at
from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import plan_from_json
from protos.wire.messages import Stage
from site_agent.gate.door import Builder
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.requests import Answer, Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from site_agent.trainer.training.flat_network import Vector
from tests.plan_changes import changed, few_sites_are_enough

prepare_arithmetic(1)  # as every trainer does before it trains

Table = tuple[list[list[float]], list[float]]
Named = dict[str, npt.NDArray[np.float64]]

COLUMNS: Final = ("a", "b")
# Two sites that pull in different directions: rows of two columns, and their targets.
AHUS: Final[Table] = ([[0.5, -1.0], [1.5, 0.25], [-0.75, 2.0], [1.0, 1.0]], [0.0, 1.0, 0.0, 1.0])
BERLIN: Final[Table] = ([[-1.0, 0.5], [0.25, 0.75], [2.0, -0.5]], [1.0, 0.0, 1.0])
# Rows to choose and to test on, the same at both.
HELD_OUT: Final[Table] = ([[1.0, -0.5], [-1.25, 0.75], [0.5, 1.5]], [1.0, 0.0, 1.0])

LOGISTIC: Final[dict[str, Any]] = {"name": "dense", "hidden": []}
MLP: Final[dict[str, Any]] = {"name": "dense", "hidden": [2], "activation": "tanh"}
DEEP: Final[dict[str, Any]] = {"name": "dense", "hidden": [2, 3], "activation": "tanh"}
NORMALISED: Final[dict[str, Any]] = {
    "name": "global-layers-network", "latent": 8, "gate": True, "input_normalisation": True, "entity_width": 4,
    "heads": 2, "transformer_blocks": 1,
}  # fmt: skip
RATE: Final = 0.5
STEPS: Final = 2  # gradient steps in a round, each on all rows of a site


def dataset(table: Table, columns: tuple[str, ...] = COLUMNS) -> Dataset:
    """A binary outcome on these rows."""

    def examples(part: Table) -> Examples:
        rows = [row[: len(columns)] for row in part[0]]
        return Examples(features=np.array(rows, np.float32), targets=np.array(part[1], np.float32))

    return Dataset(
        training=examples(table), validation=examples(HELD_OUT), test=examples(HELD_OUT),
        columns=columns, task="binary", classes=("no", "yes"),
    )  # fmt: skip


def schedule(rounds: int, steps: int = STEPS) -> dict[str, Any]:
    """So many rounds of so many steps, each on all rows of a site."""
    return {"aggregate": "every-round", "epochs": rounds * steps, "batches_per_epoch": 1, "epochs_per_round": steps}


def tiny_plan(method: Mapping[str, Any] | str, **changes: Any) -> NetworkPlan:
    """Two sites, three rounds of two full-batch steps of plain descent. Keys may be changed or, with None, omitted."""
    content: dict[str, Any] = {
        "kind": "network",
        "study": "hand",
        "version": 1,
        "method": {"name": method} if isinstance(method, str) else dict(method),
        "architecture": MLP,
        "columns": list(COLUMNS),
        "outputs": 1,
        "schedule": schedule(3),
        "optimiser": {"name": "sgd", "learning_rate": RATE},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 5},
        "sites": [{"name": name, "identity": "-".join(["aaa" + name[0]] * 8)} for name in ("ahus", "berlin")],
        "masking": {"required": False},
        "checkpoint": "latest",
    }
    content = changed(content, changes)
    content = {key: value for key, value in content.items() if value is not None}
    with few_sites_are_enough():
        plan = plan_from_json(json.dumps(content))
    assert isinstance(plan, NetworkPlan)
    return plan


class Federation:
    """Run all sites in this process; every integer is the one that would have been sent."""

    def __init__(self, plan: NetworkPlan, datasets: Mapping[str, Dataset] | None = None, **study: Any) -> None:
        self.plan = plan
        given = {"ahus": dataset(AHUS), "berlin": dataset(BERLIN)} if datasets is None else datasets
        self.studies = {
            name: Study(plan, own, seeds=Seeds.published(plan.seed, name), **study) for name, own in given.items()
        }
        manifest = manifest_of(plan, study.get("starts"))
        self.run = new_run(plan, terms_of(plan), Gathering(), manifest)
        # Nothing is released here, so no record is written.
        self._builder = Builder(plan, trains=True, smallest_rows=1)

    def asked(self, number: int) -> Asked:
        """Return the coordinator's request in a round."""
        return asked_by(self.run.offered(number).offer)

    def down(self, number: int) -> Vector:
        """Return the values that it sends for it."""
        return np.array(self.run.offered(number).values)

    def round(self, number: int, of: tuple[str, ...] | None = None) -> dict[str, Answer]:
        """One round of these sites, or of all."""
        asked, sites = self.asked(number), of or tuple(self.studies)
        answers = {name: self.studies[name].train(asked, self.down(number)) for name in sites}
        self.close(number, answers)
        return answers

    def close(self, number: int, answers: Mapping[str, Answer]) -> None:
        """Encode, add and apply the server's rule."""
        offered = self.run.offered(number)
        self.run.begin_sum(number, tuple(answers))
        for name, answer in answers.items():
            payload = answer.updates.tobytes() + np.array(answer.scalars, "<i8").tobytes()
            rows = self.studies[name].rows if offered.offer.stage is Stage.TRAINING else 0
            built = self._builder.build(b"", offered.exchange, memoryview(payload), rows=rows)
            for index in range(offered.exchange.layout.chunks):
                self.run.running_sum.add(name, index, offered.exchange.layout.body(built.buffer, index))
        assert self.run.is_consistent
        self.run.close_round(number)

    def rounds(self) -> dict[int, dict[str, Answer]]:
        """All that the plan has, or those that are left where training ends early."""
        made: dict[int, dict[str, Answer]] = {}
        while stage_at(self.plan, len(made), self.run.course.training_rounds) is not None:
            made[len(made)] = self.round(len(made))
        return made

    def finish(self) -> None:
        """The last aggregate comes down to every site."""
        finish, values = self.run.result()
        for study in self.studies.values():
            study.close(asked_by(finish), np.array(values))

    @property
    def shared(self) -> Named:
        """The federated parameters at the coordinator."""
        return {name: np.array(view, np.float64) for name, view in self.run.views().items()}

    @property
    def control(self) -> Named:
        """The mean control variate at the coordinator."""
        views = self.run.manifest.views(self.run.values[self.run.manifest.parameters :])
        return {name: np.array(view, np.float64) for name, view in views.items()}

    def own(self, site: str) -> Named:
        """Every parameter of the network whose update a site hands out."""
        return _named(self.studies[site]._training.flat.values())

    def used(self, site: str) -> Named:
        """Every parameter of the network that the site itself would use."""
        return _named(self.studies[site]._training.local.evaluated().values())


def scalars_of(federation: Federation, number: int, answer: Answer) -> dict[str, int]:
    """An answer's scalars by name; of the round that is offered."""
    names = [scalar.name for scalar in federation.run.offered(number).exchange.scalars if scalar.name != "rows"]
    return dict(zip(names, answer.scalars, strict=True))


def _named(values: Mapping[str, npt.NDArray[np.generic]]) -> Named:
    return {name: np.array(array, np.float64) for name, array in values.items()}


def check(found: Named, expected: Mapping[str, Any], tolerance: float = 2e-6) -> None:
    """The same names, and numbers that are equal up to the rounding of float32."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, np.asarray(expected[name]), rtol=tolerance, atol=tolerance, err_msg=name)
