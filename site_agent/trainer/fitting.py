"""Checks whether a plan fits a site's table before a network is built, and reports all differences at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protos.errors import ConfigurationError, DataError, OperatorError
from protos.plan.architecture import ConvolutionalNetwork, NamedTensors
from protos.plan.network_plan import NetworkPlan
from protos.plan.schedules import StepSchedule, too_few_rows
from site_agent.trainer.data.dataset import Dataset, check_columns, input_columns
from site_agent.trainer.failures import unfit


def check_fit(plan: NetworkPlan, dataset: Dataset, site: str) -> None:
    """Check that outcome, columns and training rows satisfy the plan. Raise OperatorError of the first kind if not."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_outputs(plan, dataset),
        lambda: _check_images(plan, dataset),
        lambda: check_columns(dataset.columns, (*input_columns(plan, dataset.columns)[0], *plan.unused_columns)),
        lambda: _check_recorded(plan, dataset, site),
        lambda: _check_private(plan, dataset),
        lambda: _check_batches(plan, len(dataset.training)),
    )
    found: list[OperatorError] = []
    for check in checks:
        try:
            check()
        except OperatorError as refused:
            found.append(refused)
    if len(found) == 1:
        raise found[0]
    if found:
        what = "\n    ".join(["This site's table does not fit the plan:", *(error.what for error in found)])
        remedy = " ".join(dict.fromkeys(error.remedy for error in found))
        raise type(found[0])(what=what, consequence=found[0].consequence, remedy=remedy)


def require_module(plan: NetworkPlan, *, has_module: bool) -> None:
    """Raise ConfigurationError if a plan lists tensors of the hospital's own network, and hospital.yaml names none."""
    if isinstance(plan.architecture, NamedTensors) and not has_module:
        raise unfit(
            what="The plan needs the hospital's own network, but hospital.yaml does not name its file.",
            remedy="In hospital.yaml, set user_module under training to the Python file of your network.",
        )


def _check_batches(plan: NetworkPlan, rows: int) -> None:
    if (asked := too_few_rows(plan.schedule, rows)) is None:
        return
    key = "batch_rows" if isinstance(plan.schedule, StepSchedule) else "batches_per_epoch"
    raise DataError(
        what=f"The plan requires {asked}, but this site has {rows} training rows.",
        consequence="Nothing was trained and nothing was sent.",
        remedy=f"Agree with the other sites on a plan with a {key} of at most {rows}, or add rows to the table.",
    )


def _check_private(plan: NetworkPlan, dataset: Dataset) -> None:
    if plan.private_training is not None and dataset.task != "binary":
        raise ConfigurationError(
            what=f"Training with the key `privacy` needs a binary outcome, but this site's task is {dataset.task}.",
            consequence="Training did not start and nothing was sent.",
            remedy="Declare a target with `task: binary` in the contract, or ask for a plan without the key `privacy`.",
        )


def _check_recorded(plan: NetworkPlan, dataset: Dataset, site: str) -> None:
    """Check that plan and table agree about this site's columns and outputs: sums hide it only among listed sites."""
    if not plan.masking.required or plan.tier_of(site) != "training":
        return
    lacking = {entry.name for entry in plan.recorded_columns if site not in (entry.recorded_by or ())}
    wrong = [f"column {name}" for name in plan.column_names if (name in dataset.columns) == (name in lacking)]
    if plan.outputs is not None and dataset.task == "multi-class":
        seen = set(np.unique(dataset.training.targets).astype(int).tolist())
        wrong += [f"output {number}" for number in range(plan.outputs) if number not in seen]
    if wrong:
        raise ConfigurationError(
            what=f"The plan does not describe the table of {site} correctly: {', '.join(wrong[:5])}.",
            consequence="Training did not start and nothing was sent. A sum could contain too few sites.",
            remedy=(
                "Ask the researcher to correct recorded_by of the column in the plan. Every site needs training "
                "patients of each class, unless the sites do not share the last layer (global-layers)."
            ),
        )


def _check_images(plan: NetworkPlan, dataset: Dataset) -> None:
    network = plan.architecture
    if not isinstance(network, ConvolutionalNetwork) or network.image == dataset.image:
        return
    own = "a table without images" if dataset.image is None else f"images of {dataset.image}"
    raise unfit(
        what=f"The plan's network {network.name} reads images of {network.image}. This site has {own}.",
        remedy=(
            "In the contract, declare the image size that the plan requires. Or ask the researcher for a plan for your "
            "image size."
        ),
    )


def _check_outputs(plan: NetworkPlan, dataset: Dataset) -> None:
    if plan.outputs not in (None, dataset.outputs):
        raise unfit(
            what=f"The plan has {plan.outputs} outputs, but this site's outcome needs {dataset.outputs}.",
            remedy=(
                "Use a plan that shares only inner layers (method: global-layers), or choose the same outcome at all "
                "sites."
            ),
        )
