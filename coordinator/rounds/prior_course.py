"""Decides from the sums of federated-prior how a run continues, and writes the sums into the vector for the sites.

The Newton rounds end when no coefficient moves by 1e-8, or after the plan's largest number. The next round is the
guard.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coordinator.rounds.course import Course
from protos.numbers.newton_sums import OutOfBound, has_converged
from protos.numbers.round_sums import Sums
from protos.plan.noisy_results import noisy_fit
from protos.plan.prior_sums import AnnouncedSums, Prior, place_sums
from protos.wire.messages import Stage

Float32 = npt.NDArray[np.float32]


def announce(prior: Prior, course: Course, round_number: int, sums: Sums, values: Float32) -> Course:
    """Write a round's sums into the vector that sites receive. Return the decisions after the round.

    Args:
        course: the decisions before the round.
        round_number: from 0.
        values: float32 of the announced tensor's size, changed in place.
    """
    made = prior.newton_rounds if course.training_rounds is None else course.training_rounds
    stage, integers = sums.exchange.stage, [sums.scalars[scalar.name] for scalar in sums.exchange.scalars]
    place_sums(values, prior.place(round_number, made), integers)
    is_last = round_number == prior.newton_rounds
    if stage is not Stage.NEWTON or is_last or not _has_ended(prior, round_number, values):
        return course
    return replace(course, training_rounds=round_number)


def _has_ended(prior: Prior, round_number: int, values: Float32) -> bool:
    """Return whether the last Newton step changed no coefficient.

    Impossible sums do not end the rounds here, because every site refuses them.
    """
    try:
        path = AnnouncedSums(prior, values).coefficients(round_number)
    except OutOfBound:
        return False
    return has_converged(path[-2], path[-1])


def fitted(prior: Prior, course: Course, values: Float32, rounds_made: int) -> dict[str, Float32]:
    """Return the regression as named float32 arrays (outputs, columns): coefficients and standard errors.

    A run that ended early has the values after its last Newton round. Before the first Newton round the result is
    empty.
    """
    if rounds_made < (2 if prior.private is None else 1):
        return {}
    found = AnnouncedSums(prior, values)
    if prior.private is not None:
        slopes, deviations = noisy_fit(prior.private, found.terms, prior.method.ridge)
        return {"coefficients": slopes.astype(np.float32), "standard_errors": deviations.astype(np.float32)}
    most = prior.newton_rounds if course.training_rounds is None else course.training_rounds
    # Sums that were never sent to sites are zeros, and a Newton step cannot be computed from zeros.
    made = min(most, rounds_made - 1)
    try:
        coefficients = found.coefficients(made)[-1]
        errors = found.newton(made).standard_errors(prior.method.ridge)
    except OutOfBound:  # honest sites cannot have sent these sums
        return {}
    return {"coefficients": coefficients.astype(np.float32), "standard_errors": errors.astype(np.float32)}
