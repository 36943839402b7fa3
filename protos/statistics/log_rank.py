"""Compares the survival of groups by the log-rank test, stratified by site.

Each site adds up over its exact times the observed minus the expected events of each group, and their covariance. Their
sums over the sites are the stratified test. Sources: Mantel 1966; Klein, Moeschberger 2003, section 7.5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protos.plan.analyses import Float64
from protos.statistics.distributions import Test, chi_squared_test
from protos.statistics.newton_walk import symmetric


def log_rank_numbers(times: Float64, events: npt.NDArray[np.bool_], groups: Float64, number: int) -> Float64:
    """Return one site's numbers for groups 0 to number - 1: the differences, then the covariance's upper triangle.

    The last group has no numbers of its own, because all differences add up to 0. Arguments have the shape (rows,).
    """
    upper = np.triu_indices(number - 1)
    if not events.any():
        return np.zeros(number - 1 + len(upper[0]))
    moments = np.unique(times[events])
    members = groups[:, None] == np.arange(number)
    followed = np.zeros((len(moments) + 1, number))
    np.add.at(followed, np.searchsorted(moments, times, side="right"), members)
    at_risk = followed[::-1].cumsum(axis=0)[::-1][1:]
    dying = np.zeros((len(moments), number))
    np.add.at(dying, np.searchsorted(moments, times[events]), members[events])
    risk, deaths = at_risk.sum(axis=1), dying.sum(axis=1)
    shares = at_risk / risk[:, None]
    factors = deaths * np.divide(risk - deaths, risk - 1.0, out=np.zeros(len(risk)), where=risk > 1.0)
    difference = (dying - deaths[:, None] * shares).sum(axis=0)
    variance = np.diag(factors @ shares) - (shares * factors[:, None]).T @ shares
    return np.concatenate([difference[:-1], variance[:-1, :-1][upper]])


def log_rank_test(sums: Float64, number: int) -> Test | None:
    """Return the test. None if the groups never meet at a site."""
    difference, variance = sums[: number - 1], symmetric(sums[number - 1 :], number - 1)
    spread = np.sqrt(np.maximum(np.diagonal(variance), 0.0))
    if spread.min() < 1e-4 or np.linalg.cond(variance / np.outer(spread, spread)) > 1e10:
        return None
    return chi_squared_test(float(difference @ np.linalg.solve(variance, difference)), number - 1)
