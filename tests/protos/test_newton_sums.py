"""The sums of a regression that sites fit together: exact integers, announced words, the same next step."""

from __future__ import annotations

import numpy as np
import pytest

from protos.numbers.newton_sums import NewtonSums, OutOfBound, announced, read_announced
from tests.for_each import for_each


def _sums(seed: int, columns: int = 5, outputs: int = 2) -> NewtonSums:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(outputs, 40, columns))
    return NewtonSums(hessian=rows.transpose(0, 2, 1) @ rows / 4, gradient=generator.normal(size=(outputs, columns)))


@for_each("seed", range(20))
def test_sums_come_back_from_their_integers(seed: int) -> None:
    """Decoding the integers of a site gives its H and g to within half a unit of the scale."""
    sums = _sums(seed)

    integers = sums.encoded()
    back = NewtonSums.decoded(integers, 5, 2)

    assert len(integers) == 2 * 5 * (5 + 3) // 2
    np.testing.assert_allclose(back.hessian, sums.hessian, rtol=0, atol=2.0**-37)
    np.testing.assert_allclose(back.gradient, sums.gradient, rtol=0, atol=2.0**-37)


@for_each("seed", range(20))
def test_announced_sums_are_exact(seed: int) -> None:
    """Integers of any sign and size survive the way down as float32."""
    generator = np.random.default_rng(seed)
    integers = tuple(generator.integers(-(2**63), 2**63 - 1, size=37).tolist())

    down = announced(integers)

    assert down.dtype == np.float32
    assert np.isfinite(down).all()
    assert read_announced(down) == integers


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 0.5, 65536.0])
def test_other_numbers_are_no_announced_sums(wrong: float) -> None:
    """A number that is not whole, negative, too large or not finite is refused."""
    down = announced((1, 2))
    down[3] = wrong

    with pytest.raises(OutOfBound):
        read_announced(down)


def test_what_is_not_finite_is_not_encoded() -> None:
    """A number that is infinite or undefined does not become an integer."""
    sums = _sums(0)
    sums.gradient[0, 0] = np.nan

    with pytest.raises(OutOfBound, match="not finite"):
        sums.encoded()


@pytest.mark.parametrize("change", ["hessian", "gradient", "indefinite"])
def test_impossible_sums_are_refused(change: str) -> None:
    """An entry beyond its bound and an indefinite Hessian are refused; honest sums are not."""
    design = np.random.default_rng(1).normal(size=(100, 3))
    design /= np.sqrt((design**2).mean(axis=0))
    honest = NewtonSums(hessian=(design.T @ design / 4)[None], gradient=np.zeros((1, 3)))
    honest.require_possible(100, 0.25)
    wrong = NewtonSums(hessian=honest.hessian.copy(), gradient=honest.gradient.copy())
    if change == "hessian":
        wrong.hessian[0, 0, 0] = 25.1
    elif change == "gradient":
        wrong.gradient[0, 1] = -100.1
    else:
        wrong.hessian[0, 0, 1] = wrong.hessian[0, 1, 0] = 24.9
        wrong.hessian[0, 0, 0] = 20.0

    with pytest.raises(OutOfBound):
        wrong.require_possible(100, 0.25)
