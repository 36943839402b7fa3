"""Audits federated-prior in one run, with a plan of the form that hospitals approve.

It draws made-up patients by coin, and guesses which were drawn.

A canary is a patient with two rows of the same 256 columns, each 1 or -1, and both outcomes. The gradients of the two
rows cancel, so the whole term is in the Hessian. The terms of two canaries are nearly orthogonal. That needs a special
set of 32,768 rows, because terms of random rows overlap more. Terms are those of the deployed trainer, noise that of
the deployed gate. The bound is that of private_audit.py.

Source: Cameron and Seidel 1973, "Quadratic forms over GF(2)" (Kerdock's set, by traces in the field of 128 elements).
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.private_audit import Audited
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import RandomBytes
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.prior.site_sums import clipped_terms

Integers: TypeAlias = npt.NDArray[np.int64]

COLUMNS: Final = 256
_FIELD: Final = 128  # number of elements of the field: polynomials over GF(2) modulo x^7 + x + 1
_MODULUS: Final = 0b10000011


def wide_content(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a plan with its concepts replaced by `COLUMNS` concepts, and with the usual clip."""
    number = {"kind": "number", "definition": "Made up.", "low": 0.0, "high": 1.0}
    concepts = [number | {"name": f"canary-{place:03d}"} for place in range(COLUMNS)]
    return content | {"concepts": concepts, "privacy": content["privacy"] | {"clip": (COLUMNS + 1) ** 0.5 / 2}}


def canary_rows(bases: int) -> Integers:
    """Return rows of 1 and -1, int64 of shape (256 * bases, 256), for at most 128 bases.

    The product of two rows is 0, 16 or -16. It is 0 if they are different rows of the same 256.
    """
    elements = np.arange(_FIELD)
    times = _product(elements[:, None], elements)
    square, numbers = np.diag(times), np.arange(COLUMNS)
    trace, power = elements.copy(), elements
    for _ in range(6):
        power = square[power]
        trace = trace ^ power
    linear = 1 - 2 * (np.bitwise_count(numbers[:, None] & numbers).astype(np.int64) % 2)
    found = []
    for element in range(bases):
        power, form = times[element], np.zeros(_FIELD, np.int64)
        for _ in range(3):
            power = square[power]
            form = form ^ trace[times[times[element], power]]
        found.append((1 - 2 * np.concatenate([form, form ^ trace[times[element]]])) * linear)
    return np.concatenate(found)


def audited_prior(plans: list[Plan], bases: int = 128, random_bytes: RandomBytes = os.urandom) -> list[Audited]:
    """Sum the terms of the canaries once, and add the noise of each plan. Only the honest sites have patients.

    Args:
        plans: that differ in epsilon alone, with the content of `wide_content`.
        bases: each has 256 canaries, at most 128.
        random_bytes: for the coins and the noise.
    """
    first = plans[0]
    assert isinstance(first, PriorPlan)
    private = first.private
    assert private is not None
    rows, sites = canary_rows(bases), private.sites[private.colluders :]
    is_in = np.frombuffer(random_bytes(len(rows)), np.uint8) < 128
    exact = []
    for site, mine in zip(sites, np.array_split(np.flatnonzero(is_in), len(sites)), strict=True):
        both = np.repeat(mine, 2)
        exact.append(clipped_terms(private, site, rows[both].astype(np.float64), np.arange(len(both)) % 2.0, both))
    one, other = private.pairs
    are_used = (other < COLUMNS) & (one != other)
    found = []
    for plan in plans:
        noisy = np.sum([with_noise(plan, terms, random_bytes) for terms in exact], axis=0)[: len(one)] / PRIVATE_SCALE
        products = np.zeros((COLUMNS, COLUMNS))
        products[one[are_used], other[are_used]] = noisy[are_used]
        found.append(Audited(scores=((rows @ products) * rows).sum(axis=1), is_in=is_in))
    return found


def _product(left: Integers, right: Integers) -> Integers:
    """Return the products of elements of the field."""
    total = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64)
    for place in range(7):
        total = total ^ np.where((right >> place) & 1, left, 0)
        left = (left << 1) ^ np.where(left & 64, _MODULUS, 0)
    return total
