"""Whether a plan fits a site's table: everything that speaks against it, told at once, before a network is built."""

from __future__ import annotations

from collections.abc import Callable

from protos.errors import ConfigurationError, OperatorError
from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset, check_columns, input_columns
from site_agent.trainer.training.batches import check_batches


def check_fit(plan: Plan, dataset: Dataset) -> None:
    """Compare outcome, columns and number of training rows with what a plan asks for.

    Args:
        plan: as approved.
        dataset: the site's own columns.

    Raises:
        OperatorError: one thing does not fit, or several do not; the kind is the first one's.
    """
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_outputs(plan, dataset),
        lambda: check_columns(dataset.columns, input_columns(plan, dataset.columns)[0]),
        lambda: check_batches(plan.schedule, len(dataset.training)),
    )
    found = [error for check in checks if (error := _refusal(check)) is not None]
    if len(found) == 1:
        raise found[0]
    if found:
        what = "\n    ".join(["This site's table does not fit the plan:", *(error.what for error in found)])
        remedy = " ".join(dict.fromkeys(error.remedy for error in found))
        raise type(found[0])(what=what, consequence=found[0].consequence, remedy=remedy)


def _refusal(check: Callable[[], None]) -> OperatorError | None:
    try:
        check()
    except OperatorError as refused:
        return refused
    return None


def _check_outputs(plan: Plan, dataset: Dataset) -> None:
    if plan.outputs not in (None, dataset.outputs):
        raise ConfigurationError(
            what=f"The plan has {plan.outputs} outputs, this site's outcome needs {dataset.outputs}.",
            consequence="Nothing was trained and nothing left this site.",
            remedy="Share inner layers only (method: global-layers), or agree on one outcome at all sites.",
        )
