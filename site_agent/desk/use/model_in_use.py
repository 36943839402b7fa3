"""Finds the model in use, the only model that predictions, exports and monitoring use, and stores a person's decision.

The adopted model is in use. If nobody has adopted a model, the federated model of the latest run is, and a notice
reports that the next run will change it. The decision is one small file in the folder of the approvals. Only a
person's command writes the file. No service can write to its folder. The rules:

* one model is adopted, or none;
* the decision names the model's digest, so no other model can replace it under the same name;
* a file that cannot be read is an error. It never means that nobody has decided.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from host.durable import make_folder, replace_file
from protos.errors import ConfigurationError, UsageError
from protos.plan.documents import Document
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.comparison.recommendation import MODEL_TITLES
from site_agent.desk.results.saved_model import SavedModel, latest_run, load_model
from site_agent.state_folders import approvals_folder

NOBODY_ADOPTED: Final = (
    "Nobody has adopted a model here. Until somebody does, the federated model of the latest run is in use, and the"
    " next run replaces it."
)


class Adoption(Document):
    """One named person's decision to adopt a model.

    Attributes:
        run: the run of the model.
        model: the model's name in the run's report.
        digest: of the saved model, BLAKE3 in hexadecimal.
        by: the person.
        at: an aware time in ISO 8601.
    """

    run: str
    model: str
    digest: str
    by: str
    at: str


def keep_adoption(state: Path, adoption: Adoption) -> None:
    """Store which model a person adopted. The audit log has already recorded the decision."""
    path = _path(state)
    # If a service predicts, it runs as another user of the folder's group and reads the decision in this folder.
    make_folder(path.parent, mode=0o750)
    replace_file(path, json.dumps(adoption.model_dump(), indent=2).encode(), mode=0o640)


def find_adoption(state: Path) -> Adoption | None:
    """Return the decision about the adopted model, or None if nobody has adopted a model.

    Raises:
        ConfigurationError: the file exists but cannot be read.
    """
    try:
        return Adoption.model_validate_json(_path(state).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is damaged"
        raise ConfigurationError(
            what=f"The record of the adopted model cannot be read: {reason}.",
            consequence="No model was used, and nothing left this site.",
            remedy="Run `site-agent adopt MODEL --by NAME` again as root. Then run this command under a user account "
            "of the site's group.",
        ) from cause


def _path(state: Path) -> Path:
    return approvals_folder(state) / "models" / "in-use.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInUse:
    """The model that predictions, exports and monitoring use.

    Attributes:
        run: the run of the model.
        name: the model's name in the run's report.
        model: the model.
        adoption: a person's decision; None if nobody decided.
        notices: notes to read with the result, each a sentence or two.
    """

    run: str
    name: str
    model: SavedModel
    adoption: Adoption | None
    notices: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the name of the model for a sentence."""
        return f"{MODEL_TITLES.get(self.name, self.name)} of the run {self.run}"


def model_in_use(state: Path, run: str | None) -> ModelInUse:
    """Return the model that commands at this site use.

    Args:
        run: a run that the person has named; if a model was adopted, it must be from this run.

    Raises:
        UsageError: the adopted model is of another run.
        OperatorError: there is no such model, or it is not the adopted one.
    """
    adoption = find_adoption(state)
    if adoption is None:
        name = latest_run(state) if run is None else run
        notices = (f"{NOBODY_ADOPTED} `site-agent adopt` lists the models.",) if run is None else ()
        return ModelInUse(run=name, name=FEDERATED, model=load_model(state, name), adoption=None, notices=notices)
    title = f"{MODEL_TITLES.get(adoption.model, adoption.model)} of the run {adoption.run}"
    if run not in (None, adoption.run):
        raise UsageError(
            what=f"The adopted model is {title}, but --run names the run {run}.",
            consequence="Nothing was computed or written, and nothing left this site.",
            remedy="Leave out --run, or adopt a model of the other run with `site-agent adopt`.",
        )
    model = load_model(state, adoption.run, adoption.model)
    if model.digest != adoption.digest:
        raise ConfigurationError(
            what=f"The file of the adopted model has changed since {adoption.by} adopted it ({title}).",
            consequence="No model was used, and nothing left this site.",
            remedy="Restore the file from a backup, or check the new model and adopt it with `site-agent adopt`.",
        )
    return ModelInUse(
        run=adoption.run, name=adoption.model, model=model, adoption=adoption, notices=newer_models(state, adoption)
    )


def newer_models(state: Path, adoption: Adoption) -> tuple[str, ...]:
    """Return a notice if the latest run is not the run of the adopted model."""
    latest = latest_run(state)
    if latest == adoption.run:
        return ()
    return (
        f"The run {latest} has newer models. They are not in use. `site-agent report` compares them, and"
        " `site-agent adopt` changes the model in use.",
    )
