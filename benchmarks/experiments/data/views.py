"""Makes variants of the same sites: aligned, pooled, with fewer columns, or one site with copies of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.experiments.data.sources import Sites
from site_agent.trainer.data.dataset import Dataset, Examples, align

# In the authors' FedAvg baseline this site's columns are shifted by one place.
_SHIFTED_SITE = "south-africa"


def union_of_columns(sites: Sites) -> tuple[str, ...]:
    """Return every column of any site once, in order of first appearance. Columns with equal names are one column."""
    return tuple(dict.fromkeys(name for dataset in sites.values() for name in dataset.columns))


def aligned(sites: Sites) -> Sites:
    """Return all sites with the same columns, as FedAvg over all parameters needs. Columns that a site lacks are zeros.

    The three heart sites have 31 under recipes with one column per feature: `age` is the same in all
    three, `sex` in two.
    """
    columns = union_of_columns(sites)
    return {site: align(dataset, columns) for site, dataset in sites.items()}


def aligned_as_authors(sites: Sites) -> Sites:
    """Return `aligned` with columns in alphabetical order, and with South Africa's values under wrong column names.

    Source: found by trial, because neither the paper nor docs/researcher.md states order and direction. Pandas
    sorts the columns of an outer alignment. If South Africa is shifted one place to the left, the result equals the
    published FedAvg. Values that leave one end return at the other.
    """
    columns = tuple(sorted(union_of_columns(sites)))
    moved = {site: align(dataset, columns) for site, dataset in sites.items()}

    def shift(part: Examples) -> Examples:
        return replace(part, features=np.roll(part.features, -1, axis=1))

    return moved | {_SHIFTED_SITE: _each_part(moved[_SHIFTED_SITE], shift)}


def pooled(sites: Sites) -> Dataset:
    """Return the rows of all sites as one data set, for the central baseline. Parts stay separate.

    Each row stays encoded as its own site encoded it.

    Raises:
        ValueError: the sites differ in columns, task or classes; align them first.
    """
    first, *others = sites.values()
    if any((o.columns, o.task, o.classes) != (first.columns, first.task, first.classes) for o in others):
        raise ValueError("only sites with the same columns, task and classes can be pooled")

    def together(*parts: Examples) -> Examples:
        return Examples(
            features=np.concatenate([part.features for part in parts]),
            targets=np.concatenate([part.targets for part in parts]),
        )

    return replace(
        first,
        training=together(*(dataset.training for dataset in sites.values())),
        validation=together(*(dataset.validation for dataset in sites.values())),
        test=together(*(dataset.test for dataset in sites.values())),
    )


def only_columns(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return the same rows with only these encoded columns, in this order.

    Raises:
        ValueError: the dataset has no such column.
    """
    places = [dataset.columns.index(name) for name in names]

    def kept(part: Examples) -> Examples:
        return replace(part, features=np.ascontiguousarray(part.features[:, places]))

    return replace(_each_part(dataset, kept), columns=tuple(names))


def placebo(dataset: Dataset, copies: int, seed: int) -> Sites:
    """Return copies of one site as all sites of a federation.

    They show the effect of averaging without new information.

    Each copy has the same training, validation and test rows. Each copy's training rows have an order of its own. So a
    runner that draws the same places at every site gives each copy other batches, as another hospital would have. The
    site itself, called "itself", is unchanged.

    Args:
        dataset: the site.
        copies: how many copies beside it, at least one; two for the three sites of the heart experiment.
        seed: of the copies' orders.
    """
    if copies < 1:
        raise ValueError("a placebo federation needs at least one copy")
    sites = {"itself": dataset}
    for number in range(1, copies + 1):
        order = np.random.default_rng((seed, number)).permutation(len(dataset.training))
        training = Examples(features=dataset.training.features[order], targets=dataset.training.targets[order])
        sites[f"copy-{number}"] = replace(dataset, training=training)
    return sites


def _each_part(dataset: Dataset, change: Callable[[Examples], Examples]) -> Dataset:
    return replace(
        dataset, training=change(dataset.training), validation=change(dataset.validation), test=change(dataset.test)
    )
