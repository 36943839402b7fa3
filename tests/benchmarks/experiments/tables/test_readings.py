"""Other readings of the Global Layers paper: the module with measuring normalisations is the paper's network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.experiments.modules.heart_batch_normalisation import MeasuredNormalisation, build
from benchmarks.experiments.tables.readings import listed_tensors

from ..data.conftest import needs_heart
from .test_smoke import run


def test_the_listed_tensors_are_those_of_the_module() -> None:
    """298,688 numbers in 16 tensors, as the paper counts, each with its name and shape; running values are buffers."""
    module, listed = build(columns=5, outputs=1), listed_tensors()

    found = {name: list(values.shape) for name, values in module.named_parameters()}
    assert {each["name"]: each["shape"] for each in listed}.items() <= found.items()
    assert (len(listed), sum(torch.Size(each["shape"]).numel() for each in listed)) == (16, 298_688)
    assert not any("running" in each["name"] or "tracked" in each["name"] for each in listed)


def test_a_measuring_normalisation_measures() -> None:
    """By hand: of 1 and 3 the mean is 2 and the variance 1; in use the running values, here still 0 and 1."""
    normalisation = MeasuredNormalisation(1)
    normalisation.gain.data.fill_(1.0)
    normalisation.shift.data.fill_(5.0)
    rows = torch.tensor([[1.0], [3.0]])

    in_use = normalisation.eval()(rows)
    in_training = normalisation.train()(rows)

    torch.testing.assert_close(in_training, torch.tensor([[3.0], [7.0]]), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(in_use, 2.0 * rows + 5.0, atol=1e-4, rtol=0.0)


@needs_heart
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sum of changes", "global-layers, measuring"])
def test_a_reading_is_run_and_shown(variant: str, tmp_path: Path) -> None:
    """The command writes finite figures and a page."""
    run("heart-readings", variant, "0", tmp_path)
