"""A regression that sites fit together from sums equals the one fitted to all rows in one place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_breast_cancer

from protos.numbers.newton_sums import NewtonSums, has_converged
from site_agent.trainer.fitted_models import probabilities
from site_agent.trainer.prior.site_sums import Concentrated, Rows, own_sums, require_spread
from tests.for_each import for_each

RIDGE = 10.0
Float64 = npt.NDArray[np.float64]


def _dealt(seed: int, sites: int = 4, columns: int = 8) -> list[Rows]:
    """A bundled table standardised and dealt to sites of unlike sizes."""
    table = load_breast_cancer()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table.target))
    design = table.data[order][:, generator.permutation(30)[:columns]]
    design = (design - design.mean(axis=0)) / design.std(axis=0)
    cuts = np.sort(generator.choice(np.arange(60, 500), sites - 1, replace=False))
    cuts = np.linspace(60, 500, sites - 1).astype(int) if (np.diff(cuts) < 40).any() else cuts
    targets = table.target[order].astype(float)[:, None]
    parts = zip(np.split(design, cuts), np.split(targets, cuts), strict=True)
    return [_rows(some, outcome) for some, outcome in parts]


def _rows(design: Float64, targets: Float64, *, is_number: bool = False) -> Rows:
    """Rows of a patient each."""
    return Rows(design=design, targets=targets, patients=np.arange(len(design)), is_number=is_number)


def _total(sites: list[Rows], coefficients: Float64) -> NewtonSums:
    """The sums as the coordinator announces them: integers, added."""
    integers = np.sum([own_sums(site, coefficients).encoded() for site in sites], axis=0)
    return NewtonSums.decoded(integers.tolist(), coefficients.shape[1], coefficients.shape[0])


def _fit(sites: list[Rows]) -> tuple[Float64, NewtonSums]:
    before = np.zeros((sites[0].targets.shape[1], sites[0].design.shape[1]))
    for _ in range(15):
        sums = _total(sites, before)
        after = sums.next_coefficients(before, RIDGE)
        if has_converged(before, after):
            return after, sums
        before = after
    raise AssertionError("no convergence")


def _pooled(sites: list[Rows]) -> tuple[Float64, Float64]:
    """Coefficients and standard errors with all rows in one place and an unpenalised intercept for each site."""
    columns = sites[0].design.shape[1]
    owner = np.repeat(np.arange(len(sites)), [len(site.design) for site in sites])
    design = np.hstack([np.concatenate([site.design for site in sites]), np.eye(len(sites))[owner]])
    targets = np.concatenate([site.targets[:, 0] for site in sites])
    penalty = np.diag([RIDGE] * columns + [0.0] * len(sites))
    values = np.zeros(columns + len(sites))
    for _ in range(60):
        fitted = probabilities("binary", design @ values)
        hessian = design.T @ (design * (fitted * (1 - fitted))[:, None]) + penalty
        values = values - np.linalg.solve(hessian, design.T @ (fitted - targets) + penalty @ values)
    return values[:columns], np.sqrt(np.diag(np.linalg.inv(hessian)))[:columns]


@for_each("seed", range(10))
def test_federated_equals_pooled(seed: int) -> None:
    """Coefficients and standard errors from sums lie within 1e-8 of the fit to all rows in one place."""
    sites = _dealt(seed)

    coefficients, sums = _fit(sites)
    wanted, errors = _pooled(sites)

    np.testing.assert_allclose(coefficients[0], wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(sums.standard_errors(RIDGE)[0], errors, rtol=0, atol=1e-8)


@for_each("seed", range(5))
def test_numbers_need_one_step(seed: int) -> None:
    """For an outcome that is a number, one step gives the pooled ridge regression."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=4)
    sites = []
    for shift in (0.0, 1.0, -2.0, 4.0):
        design = generator.normal(size=(50, 4))
        noise = generator.normal(size=50)
        sites.append(_rows(design, (design @ truth + shift + noise)[:, None], is_number=True))

    found = _total(sites, np.zeros((1, 4))).next_coefficients(np.zeros((1, 4)), RIDGE)

    centred = np.concatenate([site.design - site.design.mean(axis=0) for site in sites])
    outcome = np.concatenate([site.targets[:, 0] - site.targets[:, 0].mean() for site in sites])
    wanted = np.linalg.solve(centred.T @ centred + RIDGE * np.eye(4), centred.T @ outcome)
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-8)


@for_each("seed", range(10))
def test_without_a_site_is_near_the_fit_of_the_others(seed: int) -> None:
    """One step from the joint fit less a site's own sums predicts nearly as a fit that never saw the site."""
    sites = _dealt(seed)
    joint, _ = _fit(sites)
    total = _total(sites, joint)

    others = total.without(own_sums(sites[0], joint)).next_coefficients(joint, RIDGE)

    wanted, _ = _fit(sites[1:])
    gap = np.abs(sites[0].design @ (others - wanted)[0])
    moved = np.abs(sites[0].design @ (joint - wanted)[0])
    assert gap.mean() < 0.5 * moved.mean()


@for_each("seed", range(20))
def test_honest_sums_pass_their_bounds(seed: int) -> None:
    """At any coefficients, also wild ones, the sums of honest sites lie within the bounds."""
    generator = np.random.default_rng(seed)
    sites = _dealt(seed)
    rows = sum(len(site.design) for site in sites)
    weighed = 0
    for size in (0.0, 0.1, 1.0, 3.0):
        try:
            sums = _total(sites, generator.normal(size=(1, 8)) * size)
        except Concentrated:
            continue
        sums.require_possible(rows, 0.25)
        weighed += 1
    assert weighed


def test_one_class_contributes_zeros() -> None:
    """A site whose rows are all of one class, or that has none, sends zeros."""
    design = np.random.default_rng(0).normal(size=(30, 3))
    for targets in (np.ones((30, 1)), np.zeros((30, 1))):
        assert not any(own_sums(_rows(design, targets), np.zeros((1, 3))).encoded())
    assert not any(own_sums(_rows(design[:0], np.zeros((0, 1))), np.zeros((1, 3))).encoded())


def test_a_chosen_direction_is_refused() -> None:
    """Coefficients at which one patient alone has a weight are refused, and those of an honest run are not."""
    generator = np.random.default_rng(3)
    design = np.concatenate([generator.normal(size=(99, 2)), [[9.0, -9.0]]])
    rows = _rows(design, (np.arange(100) % 2).astype(float)[:, None])
    own_sums(rows, np.zeros((1, 2)))

    with pytest.raises(Concentrated):
        own_sums(rows, np.array([[400.0, 385.0]]))
    with pytest.raises(Concentrated):
        require_spread(np.concatenate([np.ones(199), [22.0]]), 50.0)
    require_spread(np.concatenate([np.ones(199), [22.0]]), 5.0)  # of a rare outcome
