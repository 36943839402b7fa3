"""Measures on made-up patients how much a small hospital gains from the other hospitals' score, despite its noise.

Each made-up hospital has the same small number of patients. Its own regression is fitted twice more with one additional
column: the score of the other hospitals, with the noise of the plan and without it. The sums, units, clip, noise and
fit are those of protos/plan/private_prior.py. The result is no forecast for patients. Source of the numbers to compare:
docs/privacy.md, "What it costs".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from coordinator.operations.made_up_patients import Float64, MadeUpPatients, made_up_patients, ranked
from protos.plan.noisy_results import noisy_fit, noisy_fit_under
from protos.plan.plan import Plan
from protos.plan.private_prior import PrivateSums

PATIENTS: Final = 150  # of a small hospital
_TEST_ROWS: Final = 4000
_DRAWS: Final = 5
_MOST_HOSPITALS: Final = 4  # hospitals at which AUROC is measured; all hospitals of the plan send sums
_NEWTON_STEPS: Final = 8
_NO_NOISE: Final = 1e-6  # not 0: the fit divides by eigenvalues that are 0 for the intercept of the excluded site
_MOST_WORK: Final = 5 * 10**8  # 24 fits of 275 unknowns; less than a second


@dataclass(frozen=True)
class MadeUpPrior:
    """The mean AUROC of small made-up hospitals on test rows.

    Attributes:
        alone: of the hospital's own regression.
        without: with the others' score, if it had no noise.
        with_noise: with the others' score of this plan.
    """

    alone: float
    without: float
    with_noise: float


def made_up_prior(plan: Plan) -> MadeUpPrior | str:
    """Simulate federated-prior at small hospitals with made-up patients, or return a phrase why not."""
    if plan.prior is None or (private := plan.prior.private) is None:
        return "the plan has no private sums of federated-prior"
    unknowns = len(private.unknowns)
    if unknowns**3 * _MOST_HOSPITALS * (_DRAWS + 1) > _MOST_WORK:
        return f"a fit of {unknowns} unknowns would take too long"
    ridge, generator = plan.prior.method.ridge, np.random.default_rng(0)
    sites = len(private.sites)
    people = made_up_patients(sites * PATIENTS + _TEST_ROWS, len(private.columns), generator)
    tested = people.part(slice(sites * PATIENTS, None))
    hospitals = [people.part(slice(site * PATIENTS, (site + 1) * PATIENTS)) for site in range(sites)]
    sums = [sums_of(private, site, hospital) for site, hospital in enumerate(hospitals)]
    total, found = np.sum(sums, axis=0), []
    for own, hospital in list(zip(sums, hospitals, strict=True))[:_MOST_HOSPITALS]:
        alone = _area(hospital, tested, None, ridge)
        without = _area(hospital, tested, noisy_fit_under(private, _NO_NOISE, total - own, ridge)[0][0], ridge)
        noises = generator.normal(0.0, private.noise, (_DRAWS, len(total)))
        noisy = [
            _area(hospital, tested, noisy_fit(private, total + noise - own, ridge)[0][0], ridge) for noise in noises
        ]
        found.append((alone, without, float(np.mean(noisy))))
    return MadeUpPrior(*(float(mean) for mean in np.mean(found, axis=0)))


def sums_of(private: PrivateSums, site: int, patients: MadeUpPatients) -> Float64:
    """Return the sums that a site would send without noise, in the order of `private.names`, for one row per patient.

    A term has at most the norm 1 by its units, so only rows are shortened.
    """
    intercepts = np.zeros((len(patients.outcomes), len(private.sites)))
    intercepts[:, site] = 1.0
    rows = np.hstack([patients.features, intercepts])
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / private.promise.clip)
    first, second = private.pairs
    hessian, gradient = rows.T @ rows / 4, rows.T @ (0.5 - patients.outcomes)
    return np.concatenate([hessian[first, second], gradient]) / private.units


def _area(known: MadeUpPatients, tested: MadeUpPatients, slopes: Float64 | None, ridge: float) -> float:
    """Fit a hospital's own regression, with the score from `slopes` as another column. Return AUROC on `tested`."""
    design, unseen = (_design(patients, slopes) for patients in (known, tested))
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 1e-6  # the intercept
    if slopes is not None:
        penalty[-1] = 1e-2  # one column, which already is a score
    weights = np.zeros(design.shape[1])
    for _ in range(_NEWTON_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(design @ weights, -40, 40)))
        hessian = (design.T * (likely * (1 - likely))) @ design + np.diag(penalty)
        weights -= np.linalg.solve(hessian, design.T @ (likely - known.outcomes) + penalty * weights)
    return ranked(unseen @ weights, tested.outcomes)


def _design(patients: MadeUpPatients, slopes: Float64 | None) -> Float64:
    parts = [np.ones((len(patients.outcomes), 1)), patients.features]
    return np.hstack(parts if slopes is None else [*parts, (patients.features @ slopes)[:, None]])
