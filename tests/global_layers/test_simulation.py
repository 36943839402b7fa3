"""From data frames of several hospitals to a table: the documented example runs, and bad frames are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from global_layers.simulation import simulate

PAGE = Path(__file__).parents[2] / "docs" / "researcher.md"


@pytest.mark.slow
def test_the_documented_example_gives_a_table() -> None:
    """The example of the researcher's page has twelve lines at most and ends with a row of figures for each site."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    example = next(block for block in blocks if "import simulate" in block)
    names: dict[str, Any] = {}

    exec(compile(example, str(PAGE), "exec"), names)  # the page is this repository's own

    table = names["table"]
    assert len(example.split("\n")) <= 13
    assert list(table.index) == ["ahus", "berlin", "cluj", "delft"]
    assert list(table.columns) == ["best local", "fedavg", "federated-prior", "others brought"]
    assert table.drop(columns="others brought").min(axis=None) > 0.8
    assert (table["others brought"] != 0).any()


def _frames(seed: int, sites: int = 4) -> dict[str, pd.DataFrame]:
    """Patients whose outcome follows from a number, with gaps, and a text code; one site lacks the code."""
    generator, found = np.random.default_rng(seed), {}
    for place in range(sites):
        age = generator.normal(60.0, 10.0, size=90)
        pain = generator.choice(["none", "mild", "severe"], size=90, p=[0.5, 0.3, 0.2])
        logit = (age - 60.0) / 5.0 + 2.0 * (pain == "severe")
        died = np.where(generator.random(90) < 1 / (1 + np.exp(-logit)), "yes", "no")
        age[generator.random(90) < 0.1] = np.nan
        found[f"site-{place}"] = pd.DataFrame({"Age (years)": age, "Pain": pain, "constant": 1, "died": died})
    found["site-0"] = found["site-0"].drop(columns="Pain")
    return found


@pytest.mark.slow
def test_codes_gaps_and_missing_columns_are_read() -> None:
    """Texts are codes, gaps are missing values, a constant column is left out, and a site may lack a column."""
    table = simulate(_frames(0, sites=3), outcome="died", networks=(), seed=3)

    assert list(table.columns) == ["best local", "federated-prior", "others brought"]
    assert table["federated-prior"].min() > 0.6
    assert not table.isna().any(axis=None)


def test_frames_of_no_federation_are_refused() -> None:
    """Fewer than three sites, or an outcome that has not two values, end with a sentence that states both figures."""
    frames = _frames(0)
    with pytest.raises(ValueError, match="needs 3 sites, and has 2"):
        simulate(dict(list(frames.items())[:2]), outcome="died")
    with pytest.raises(ValueError, match="has 3 values, and a simulation needs two"):
        simulate({name: frame for name, frame in frames.items() if name != "site-0"}, outcome="Pain")
