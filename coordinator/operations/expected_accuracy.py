"""Estimates how accurate a model is under a plan with privacy noise, by formulas and by tests with made-up patients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.operations.made_up_patients import ASSUMED
from coordinator.operations.made_up_prior import PATIENTS, made_up_prior
from coordinator.operations.made_up_training import better_rate, made_up_training
from protos.plan.federated_statistics import NumericColumn
from protos.plan.noisy_results import fewest_rows, mean_error, noise_rows
from protos.plan.plan import Plan
from protos.plan.private_statistics import PrivateStatistics

# Rows of all sites together, for the error of a mean; the error is inversely proportional to the rows.
ROWS: Final = 1000
_MOST_COLUMNS: Final = 5
_NO_FORECAST: Final = "The difference is due to the noise. It does not predict results for real patients."


def expected_accuracy(plan: Plan) -> Iterator[str]:
    """Yield sentences about the accuracy to expect under a plan with privacy noise. No patient data is read."""
    if plan.private_statistics is not None:
        yield from _of_statistics(plan.private_statistics, len(plan.site_names))
    elif plan.private_training is not None:
        yield from _of_training(plan)
    elif plan.prior is not None:
        yield from _of_prior(plan)


def _of_statistics(counted: PrivateStatistics, sites: int) -> Iterator[str]:
    yield f"The noise in each count has a standard deviation of {noise_rows(counted, sites):.3g} rows."
    numbers = [column for column in counted.statistics.columns if isinstance(column, NumericColumn)]
    if not numbers:
        return
    fewest = fewest_rows(counted, sites)
    if fewest >= ROWS:
        yield f"A mean needs more than {fewest:,.0f} rows with a value. With fewer it is not shown."
        return
    for column in numbers[:_MOST_COLUMNS]:
        middle, end = (mean_error(counted, column, ROWS, sites, at_an_end=at_an_end) for at_an_end in (False, True))
        yield (
            f"With {ROWS:,} rows, the noise in the mean of {column.name} has a standard deviation of {middle:.2g}, in "
            f"its unit. At an end of the range it is {end:.2g}."
        )
    if len(numbers) > _MOST_COLUMNS:
        share = mean_error(counted, NumericColumn(name="any", low=0.0, high=1.0), ROWS, sites)
        yield f"For the other {len(numbers) - _MOST_COLUMNS} numbers it is {share:.2g} of their range."


def _of_training(plan: Plan) -> Iterator[str]:
    made_up = made_up_training(plan)
    if isinstance(made_up, str):
        yield f"Nothing was simulated: {made_up}."
        return
    areas = f"{made_up.with_noise:.3f} with the noise and {made_up.without:.3f} without it"
    yield f"With {made_up.patients} made-up patients, AUROC is {areas}."
    yield _NO_FORECAST
    yield ASSUMED
    if (better := better_rate(plan, made_up)) is not None:
        yield (
            f"With learning rate {better[0]:g} instead of {plan.optimiser.learning_rate:g}, "
            f"AUROC with the noise is {better[1].with_noise:.3f}."
        )


def _of_prior(plan: Plan) -> Iterator[str]:
    made_up = made_up_prior(plan)
    if isinstance(made_up, str):
        yield f"Nothing was simulated: {made_up}."
        return
    yield (
        f"At {len(plan.site_names)} made-up hospitals with {PATIENTS} patients each, a hospital's AUROC is "
        f"{made_up.alone:.3f} alone. It is {made_up.with_noise:.3f} with the others' score, and "
        f"{made_up.without:.3f} if this score had no noise."
    )
    yield "The last difference is due to the noise. It does not predict results for real patients."
    yield ASSUMED
