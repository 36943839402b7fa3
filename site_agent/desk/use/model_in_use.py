"""Finds the model in use. Predictions and exports use only this model.

The adopted model is in use. If nobody has adopted a model, the federated model of the latest run is, and a notice
reports that the next run will change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError, UsageError
from site_agent.desk.comparison.gain import FEDERATED, MODEL_TITLES
from site_agent.desk.results.saved_model import SavedModel, latest_run, load_model
from site_agent.desk.use.adoption import Adoption, find_adoption

NOBODY_ADOPTED: Final = (
    "Nobody has adopted a model here. Until somebody does, the federated model of the latest run is in use, and the"
    " next run replaces it."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInUse:
    """The model that predictions and exports use, by its name in the run's report.

    `adoption` is a person's decision; None if nobody decided. `notices` are sentences to read with the result.
    """

    run: str
    name: str
    model: SavedModel
    adoption: Adoption | None
    notices: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the name of the model in use as sentences show it."""
        return title_of_model(self.name, self.run)


def model_in_use(state: Path, run: str | None) -> ModelInUse:
    """Return the model in use at this site: the adopted model, or the federated model of the latest run.

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
    title = title_of_model(adoption.model, adoption.run)
    if run not in (None, adoption.run):
        raise UsageError(
            what=f"The adopted model is {title}, but the option --run names another run, {run}.",
            consequence="Nothing was computed or written, and nothing was sent.",
            remedy="Leave out the option --run, or adopt a model of this other run with `site-agent adopt`.",
        )
    model = load_model(state, adoption.run, adoption.model)
    if model.digest != adoption.digest:
        raise ConfigurationError(
            what=f"The file of the adopted model has changed since {adoption.by} adopted it ({title}).",
            consequence="No model was used, and nothing was sent.",
            remedy=(
                "Restore the file of the model from a backup, or check the changed model and adopt it with `site-agent "
                "adopt`."
            ),
        )
    return ModelInUse(
        run=adoption.run, name=adoption.model, model=model, adoption=adoption, notices=newer_models(state, adoption)
    )


def newer_models(state: Path, adoption: Adoption) -> tuple[str, ...]:
    """Return a notice for the user if a later run than the adopted model's run has models."""
    latest = latest_run(state)
    if latest == adoption.run:
        return ()
    return (
        f"The run {latest} has newer models, which are not in use. `site-agent report` compares these models, and "
        "`site-agent adopt` changes the model in use.",
    )


def title_of_model(model: str, run: str) -> str:
    """Return the name of a run's model as sentences show it."""
    return f"{MODEL_TITLES.get(model, model)} of the run {run}"


def in_words(adoption: Adoption) -> str:
    """Return a sentence that names the adopted model, and who adopted it when."""
    return f"In use: {title_of_model(adoption.model, adoption.run)}, adopted by {adoption.by} at {adoption.at}."
