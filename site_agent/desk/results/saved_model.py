"""Saves and loads a model with everything that a prediction needs: the network, the plan and the preprocessing.

The preprocessing includes its contract, so a changed contract file has no effect on a saved model. Everything stays at
the site.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError, OperatorError, ProtocolError
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan, plan_from_wire
from protos.plan.prior_plan import PriorPlan
from site_agent.desk.results.joined_model import JoinedModel, joined_model_of
from site_agent.hospital import Hospital
from site_agent.state_folders import FEDERATED_FILE, require_run_name, saved_runs
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.dataset import input_columns
from site_agent.trainer.data.preprocessing import Features, Preprocessing, Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import Json, load, save
from site_agent.trainer.prior.concept_columns import ConceptEncoding, read_columns, read_places, shared_count

_JOINED: Final = "joined "  # no tensor of a network has a blank in its name


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedModel:
    """One site's saved model, with all that a prediction needs.

    Attributes:
        plan: names the architecture, and the columns if they are common to all sites.
        preprocessing: fitted on this site's training rows, with its contract.
        values: every parameter by name, float32.
        joined: the model of federated-prior, which has no network and no other values.
        concepts: the common columns that it reads, for federated-prior or a network on concepts.
        profile: of the training rows.
    """

    plan: Plan
    preprocessing: Preprocessing
    values: Mapping[str, npt.NDArray[np.generic]]
    profile: Profile
    joined: JoinedModel | None = None
    concepts: ConceptEncoding | None = None

    def encode(self, table: Table, rows: Rows | None = None) -> Features:
        """Return a table's model inputs, float32 (rows, columns), C-contiguous. Errors as in `Preprocessing.encode`."""
        own = self.preprocessing.encode(table, rows)
        if self.concepts is None:
            return own
        return np.ascontiguousarray(np.concatenate([own, self.concepts.encode(table, rows)], axis=1))

    @property
    def read_places(self) -> tuple[int, ...] | None:
        """The positions of the input columns if the network reads columns of concepts. Otherwise None."""
        if self.concepts is None or not isinstance(self.plan, NetworkPlan) or not self.plan.reads_concepts:
            return None
        return read_places(self.plan, self.preprocessing.contract)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the network's input columns: columns of the plan, columns of this site, or both."""
        if isinstance(self.plan, NetworkPlan) and self.read_places is not None:
            return read_columns(self.plan, self.preprocessing.contract)
        return input_columns(self.plan, self.preprocessing.columns)[0]

    @property
    def common(self) -> int | None:
        """The number of input columns that all sites have. None if the network treats all columns in the same way."""
        if isinstance(self.plan, NetworkPlan) and self.plan.reads_concepts:
            return shared_count(self.plan)
        return input_columns(self.plan, self.preprocessing.columns)[1]

    @property
    def outputs(self) -> int:
        """The number of the model's outputs: one, or one for each of several classes."""
        target = self.preprocessing.contract.target
        return len(target.classes) if target.task == "multi-class" else 1


def save_model(state: Path, run: str, model: SavedModel) -> Path:
    """Write the model of a run to the state directory with mode 0600. An earlier model of this run is replaced."""
    facts: dict[str, Json] = {
        "plan": model.plan.canonical.decode(),
        "preprocessing": model.preprocessing.model_dump_json(indent=2),
        "columns": list(model.columns),
        "outputs": model.outputs,
        "profile": model.profile.model_dump_json(),
        "concepts": None if model.concepts is None else model.concepts.model_dump_json(),
    }
    arrays = {} if model.joined is None else model.joined.arrays()
    beside = {f"{_JOINED}{name}": array for name, array in arrays.items()}
    return save(_folder(state, run), FEDERATED_FILE, {**model.values, **beside}, facts)


def load_model(state: Path, run: str) -> SavedModel:
    """Load the model of a run. Raise UsageError if this is no run's name, ConfigurationError without a whole model."""
    require_run_name(run)
    checkpoint = load(_folder(state, run), FEDERATED_FILE)
    facts, tensors = checkpoint.facts, checkpoint.tensors
    try:
        plan = plan_from_wire(str(facts["plan"]).encode())
        preprocessing = Preprocessing.model_validate_json(str(facts["preprocessing"]))
        task = preprocessing.contract.target.task
        joined = {name.removeprefix(_JOINED): one for name, one in tensors.items() if name.startswith(_JOINED)}
        concepts = facts["concepts"]
        return SavedModel(
            plan=plan,
            preprocessing=preprocessing,
            values={name: one for name, one in tensors.items() if not name.startswith(_JOINED)},
            joined=joined_model_of(task, joined) if isinstance(plan, PriorPlan) else None,
            concepts=None if concepts is None else ConceptEncoding.model_validate_json(str(concepts)),
            profile=Profile.model_validate_json(str(facts["profile"])),
        )
    except (ProtocolError, KeyError, ValueError):
        raise other_version(run) from None  # pydantic's error quotes its input


def other_version(run: str) -> ConfigurationError:
    """Return the error message for a model that another version of this program saved."""
    return ConfigurationError(
        what=f"The model of the run {run} was saved by another version of this program.",
        consequence="No model was used, and nothing was sent.",
        remedy="Install the version of the program that trained the model, or train again.",
    )


def latest_run(state: Path) -> str:
    """Return the name of the run whose model was saved last. Raises OperatorError if no model is saved."""
    if not (runs := saved_runs(state)):
        raise OperatorError(
            what="This site has no trained model yet.",
            consequence="No model was used, and nothing was sent.",
            remedy="First take part in a study with `site-agent join`. `site-agent results` shows statistics.",
        )
    return runs[0]


def _folder(state: Path, run: str) -> Path:
    return state / "models" / run


PACKAGES: Final = ("global-layers", "torch", "scikit-learn", "scipy", "pandas", "numpy", "safetensors")


def versions() -> dict[str, str]:
    """Return by name the versions of Python and of packages, and the kind of processor, on which a model depends."""
    import torch  # a model is loaded without it

    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version(), "processor": kind}


def run_facts(hospital: Hospital, plan: Plan, run: str) -> dict[str, Json]:
    """Return what the report of every run begins with: site, run, plan, sites and versions."""
    return {
        "site": hospital.site,
        "run": run,
        "plan_digest": plan.digest.hex(),
        "method": plan.method_name,
        "question": None if plan.question is None else plan.question.model_dump(mode="json"),
        "sites": list(plan.site_names),
        "versions": dict[str, Json](versions()),
    }
