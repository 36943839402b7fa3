"""The study "should I join?": the number of rows of each site, the comparisons, and the conclusions of the page."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.experiments.data.natural_sites import NaturalSites
from benchmarks.experiments.tables import join
from global_layers.frames import tables_of
from protos.plan.methods import NETWORK_METHODS
from tests.for_each import for_each


def clinics(number: int, rows: int, seed: int = 0) -> NaturalSites:
    """Clinics of made-up patients: one column has the same effect everywhere, another one has none."""
    generator, frames = np.random.default_rng(seed), {}
    for place in range(number):
        x, y = generator.normal(size=(2, rows))
        happened = generator.random(rows) < 1 / (1 + np.exp(-2 * x))
        frames[f"clinic-{place:02}"] = pd.DataFrame({"x": x, "y": y, "outcome": happened.astype(int)})
    tables, concepts = tables_of(frames, "outcome")
    return NaturalSites(tables=tables, concepts=concepts)


@for_each("seed", range(400, 410))
def test_only_the_hospital_that_joins_has_few_rows(seed: int) -> None:
    """The others use all their rows, fewer rows are a part of more rows, and the test rows never change."""
    sites = clinics(4, 90)

    few, more, most = (dict(join.federations(sites, rows, seed)) for rows in (12, 30, join.ALL))

    for site, members in few.items():
        own = [set(found[site][site].split.training) for found in (few, more, most)]
        assert own[0] < own[1] < own[2]
        assert len(own[0]) == pytest.approx(12, abs=1)
        assert [len(one.dataset.training) for name, one in members.items() if name != site] == [60] * 3
        tests = [tuple(found[site][site].split.test) for found in (few, more, most)]
        assert tests[0] == tests[1] == tests[2]
        assert not set(tests[0]) & own[2]


@pytest.mark.slow
def test_others_bring_a_common_effect_and_shuffled_ones_do_not() -> None:
    """With sixteen rows of its own a clinic gains from the others' score. A clinic without outcomes also receives
    it."""
    sites = clinics(4, 240, seed=3)
    first = islice(join.federations(sites, 16, 400), 4)
    found = [join.measured(sites, members, site, 400) for site, members in first]

    mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}

    assert mean["federated-prior"] > mean["without others"] + 0.005
    assert mean["no outcomes"] > 0.8
    assert mean["weight"] > 0.3
    assert mean["guard"] > 20 > mean["guard of permuted"]


def test_methods_that_a_table_s_sites_rule_out_do_not_run() -> None:
    """CHFL needs a column that not all sites have, and areas with other classes cannot share a last layer."""
    assert join.methods_at("UCI heart") == NETWORK_METHODS
    assert set(NETWORK_METHODS) - set(join.methods_at("dialysis")) == {"chfl"}
    assert not {"fedavg", "lg-fedavg", "chfl"} & set(join.methods_at("covertype areas"))
    assert {"global-layers", "fedper", "local"} <= set(join.methods_at("covertype areas"))
    names = {variant.name for variant in join.variants()}
    assert "dialysis, 0, fedavg" in names
    assert "covertype areas, 0, fedavg" not in names


def test_of_many_sites_those_of_a_split_are_tested_in_one_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split has a row for each of its sites, and no placebo, because copies of each site would cost too much."""
    sites, seeds = clinics(10, 30), join.SEEDS[:2]
    monkeypatch.setitem(join.SOURCES, "dialysis", lambda _: sites)  # type: ignore[arg-type]
    (variant,) = (each for each in join.variants() if each.name == "dialysis, 0, fenda-fl")

    rows = [row for seed in seeds for row in variant.run(Path(), seed)]

    wanted = {(seed, site) for seed in seeds for site, _ in join.federations(sites, join.ALL, seed)}
    assert {(row.seed, row.site) for row in rows} == wanted
    assert len(rows) == 4
    assert all(set(row.metrics) == {"federated"} for row in rows)
