"""Variants of the same sites: aligned, pooled, with fewer columns, or one site among copies of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.experiments.data.sources import Sites
from site_agent.trainer.data.dataset import Dataset, Examples, align

# The authors' FedAvg baseline has this site's columns one place off.
_SHIFTED_SITE = "south-africa"


def union_of_columns(sites: Sites) -> tuple[str, ...]:
    """Every column of any site once, in order of first appearance; equal names are one column."""
    return tuple(dict.fromkeys(name for dataset in sites.values() for name in dataset.columns))


def aligned(sites: Sites) -> Sites:
    """All sites with the same columns, absent ones zero, as FedAvg over all parameters needs them.

    The three heart sites have 31 under recipes with one column per feature: `age` is the same in all
    three, `sex` in two.
    """
    columns = union_of_columns(sites)
    return {site: align(dataset, columns) for site, dataset in sites.items()}


def aligned_as_authors(sites: Sites, *, in_alphabetical_order: bool = True, places: int = -1) -> Sites:
    """As `aligned`, but columns stand in alphabetical order and South Africa's values beside their names.

    Source: found by trial, because neither paper nor docs/design/methods.md states order and direction. Pandas sorts
    the columns of an outer alignment. With South Africa one place to the left, the published FedAvg comes out. What
    falls off one end returns at the other.

    Args:
        sites: with South Africa among them.
        in_alphabetical_order: False for the order of first appearance.
        places: how far South Africa's values stand to the right of their names; negative to the left.
    """
    if _SHIFTED_SITE not in sites:
        raise ValueError(f"only a federation with {_SHIFTED_SITE} can be misaligned as the authors did")
    columns = union_of_columns(sites)
    columns = tuple(sorted(columns)) if in_alphabetical_order else columns
    moved = {site: align(dataset, columns) for site, dataset in sites.items()}

    def shift(part: Examples) -> Examples:
        return replace(part, features=np.roll(part.features, places, axis=1))

    return moved | {_SHIFTED_SITE: _each_part(moved[_SHIFTED_SITE], shift)}


def pooled(sites: Sites) -> Dataset:
    """All sites' rows as one table, part by part: what the central baseline trains on.

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
    """The same rows with these encoded columns alone, in this order.

    Raises:
        ValueError: the dataset has no such column.
    """
    places = [dataset.columns.index(name) for name in names]

    def kept(part: Examples) -> Examples:
        return replace(part, features=np.ascontiguousarray(part.features[:, places]))

    return replace(_each_part(dataset, kept), columns=tuple(names))


def placebo(dataset: Dataset, copies: int, seed: int) -> Sites:
    """A site that federates with copies of itself: what averaging does where nobody brings anything new.

    Each copy has the same training, validation and test rows. Its training rows stand in an order of its
    own, so that a runner which draws the same places at every site still gives each copy other batches,
    as another hospital would have; the site itself, called "itself", is untouched.

    Args:
        dataset: the site.
        copies: how many beside it, at least one; two for the three sites of the heart experiment.
        seed: of the copies' orders.
    """
    if copies < 1:
        raise ValueError("a placebo federation needs at least one copy")
    sites = {"itself": dataset}
    for number in range(1, copies + 1):
        order = np.random.default_rng((seed, number)).permutation(len(dataset.training))
        training = Examples(
            features=dataset.training.features[order],
            targets=dataset.training.targets[order],
        )
        sites[f"copy-{number}"] = replace(dataset, training=training)
    return sites


def _each_part(dataset: Dataset, change: Callable[[Examples], Examples]) -> Dataset:
    return replace(
        dataset,
        training=change(dataset.training),
        validation=change(dataset.validation),
        test=change(dataset.test),
    )
