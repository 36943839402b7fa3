"""How FedAvg's AUROC on covertype is counted in other ways, and which rows its changes give to the sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.experiments.data.covertype import covertype
from benchmarks.experiments.data.recipes import Authors
from benchmarks.experiments.tables.covertype import as_the_authors
from benchmarks.experiments.tables.covertype_fedavg import (
    CLASSES,
    CLASSES_OF_AREAS,
    TEST_RECORDS,
    over_all_classes,
    over_present_classes,
    readings,
    with_one_scale,
    with_own_codes,
)
from site_agent.trainer.data.dataset import Dataset, Examples
from tests.for_each import for_each
from tests.laws.catalogue import SITES, rows_at

from ..data.conftest import DATA, needs_covertype


def rows_of_classes(seed: int) -> tuple[Dataset, np.ndarray]:
    """Forty test rows of the classes 0, 3 and 5 of seven, and their logits."""
    generator = np.random.default_rng(seed)
    targets = generator.permutation(np.repeat([0, 3, 5], (20, 14, 6)))
    test = Examples(features=np.zeros((40, 1), np.float32), targets=targets)
    dataset = replace(rows_at(SITES[0]), test=test, task="multi-class", classes=tuple("1234567"))
    return dataset, generator.normal(size=(40, CLASSES)).astype(np.float32)


@for_each("seed", range(3))
def test_the_mean_over_all_classes_is_the_authors(seed: int) -> None:
    """It follows from the mean over the classes present, and leads back to it."""
    dataset, logits = rows_of_classes(seed)

    found = readings(dataset, logits, np.ones(40))
    auroc, auprc = as_the_authors(dataset.test.targets, logits)

    assert over_all_classes(found["auroc_of_logits"], found["classes"], 0.5) == pytest.approx(auroc)
    assert over_present_classes(auroc, found["classes"], 0.5) == pytest.approx(found["auroc_of_logits"])
    assert over_all_classes(found["auprc_of_logits_published_rows"], 3, 0.0) == pytest.approx(auprc)


@for_each("seed", range(3))
def test_a_weight_is_a_number_of_equal_rows(seed: int) -> None:
    """A row with the weight 3 counts as three rows with the weight 1."""
    dataset, logits = rows_of_classes(seed)
    times = np.random.default_rng(seed).integers(1, 4, 40)
    repeated = np.repeat(np.arange(40), times)
    test = Examples(features=dataset.test.features[repeated], targets=dataset.test.targets[repeated])

    weighted = readings(dataset, logits, times.astype(np.float64))
    counted = readings(replace(dataset, test=test), logits[repeated], np.ones(len(repeated)))

    for metric in ("auroc_published_rows", "auroc_of_logits_published_rows", "auprc_of_logits_published_rows"):
        assert weighted[metric] == pytest.approx(counted[metric])
    assert weighted["auroc_published_rows"] != pytest.approx(weighted["auroc_of_logits_published_rows"])


@needs_covertype
def test_changes_of_rows_keep_rows_and_classes() -> None:
    """The known numbers of classes, and one scale that pools to mean 0 and deviation 1.

    The site's own codes are 0, 1, ... in the order of its classes.
    """
    sites = covertype(DATA, 8, Authors())
    scaled, recoded = (change(DATA, sites) for change in (with_one_scale, with_own_codes))

    place = sites["rawah"].columns.index("elevation")
    pooled = np.concatenate([dataset.training.features[:, place] for dataset in scaled.values()])
    assert (pooled.mean(), pooled.std()) == pytest.approx((0.0, 1.0), abs=1e-3)
    for name, dataset in recoded.items():
        classes, before = np.unique(dataset.test.targets), sites[name].test.targets
        assert classes.tolist() == list(range(CLASSES_OF_AREAS[name]))
        assert np.array_equal(np.unique(before)[dataset.test.targets.astype(int)], before)


def test_the_published_test_rows_are_all_others() -> None:
    """581,012 records less 15,120."""
    assert TEST_RECORDS.sum() == 565_892
