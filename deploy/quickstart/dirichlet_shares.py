"""Divides a table's rows among sites, so that sites have unequal shares of each class. Needs no other file here.

Source: Elhussein and Gürsoy 2025, "PLayer-FL": for each class the sites' shares are drawn from a Dirichlet distribution
with the parameter 0.5. One thing differs: each site first receives eight rows of each class, so that it has every class
in training and in test.
"""

from __future__ import annotations

import numpy as np

CONCENTRATION = 0.5
FEWEST_OF_CLASS = 8


def deal(classes: np.ndarray, count: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return the sorted row numbers of each of `count` sites. `classes` has the class of each row."""
    sites: list[list[int]] = [[] for _ in range(count)]
    for one in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == one))
        sure, others = rows[: count * FEWEST_OF_CLASS], rows[count * FEWEST_OF_CLASS :]
        shares = generator.dirichlet(np.full(count, CONCENTRATION))
        ends = np.rint(np.cumsum(shares)[:-1] * len(others)).astype(int)
        for site, own, more in zip(sites, np.split(sure, count), np.split(others, ends), strict=True):
            site.extend([*own.tolist(), *more.tolist()])
    return [np.array(sorted(site)) for site in sites]
