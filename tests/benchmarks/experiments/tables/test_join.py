"""The study "should I join?": the number of rows of each site, the comparisons, and the conclusions of the page."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.experiments.data.natural_sites import NaturalSites
from benchmarks.experiments.tables import composed, join
from benchmarks.experiments.tables.catalogue import TABLES
from benchmarks.experiments.tables.join_page import MEAN, bar_lines, figures_of, render_join
from benchmarks.experiments.variants import Row
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


def test_of_many_sites_each_is_tested_once() -> None:
    """Over the splits of a table with many sites every site is tested once."""
    sites = clinics(12, 40)

    tested = [site for seed in join.SEEDS[:5] for site, _ in join.federations(sites, join.ALL, seed)]

    assert sorted(tested) == sorted(sites.tables)


def test_a_site_with_hardly_more_rows_is_left_out() -> None:
    """55 of 60 training rows would be the same figure as all of them."""
    assert not dict(join.federations(clinics(4, 90), 55, 400))


@pytest.mark.slow
def test_others_bring_a_common_effect_and_shuffled_ones_do_not() -> None:
    """With ten rows of its own a clinic gains from the others' score.

    A clinic without outcomes also receives it.
    """
    sites = clinics(4, 240, seed=3)
    first = islice(join.federations(sites, 10, 400), 2)
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

    rows = list(variant.run(Path(), seeds))

    wanted = {(seed, site) for seed in seeds for site, _ in join.federations(sites, join.ALL, seed)}
    assert {(row.seed, row.site) for row in rows} == wanted
    assert len(rows) == 4
    assert all(set(row.metrics) == {"federated"} for row in rows)


def test_the_page_names_methods_that_were_not_measured(tmp_path: Path) -> None:
    """A method without rows is named with its table, and a method without a placebo has none in its line."""
    rows = [row(f"centre-{place}", 0, "dialysis, 0", best_local=0.75 + 0.002 * place) for place in range(10)]
    measured = [
        Row(variant="dialysis, 0, fedavg", seed=0, site=one.site, chosen_round=-1, metrics={"federated": 0.8})
        for one in rows
    ]

    render_join([*rows, *measured], tmp_path / "join.md")

    text = (tmp_path / "join.md").read_text()
    assert "| dialysis | all | fedavg | 80.0 | +4.1 ± 0.4 | - | +0.0 ± 0.0 | 10 |" in text
    (line,) = (each for each in text.splitlines() if each.startswith("Not measured:"))
    assert "local at dialysis, all rows" in line
    assert "player-fl-random, fenda-fl, perfcl, fedprox" in line  # without fedavg between them


def row(site: str, seed: int, table: str = "UCI heart, 50", **figures: float) -> Row:
    """A row in which all omitted values are .8."""
    names = ("federated-prior", "best local", "without others", "pooled", "permuted", "no outcomes", "weight", "rows")
    return Row(
        variant=table,
        seed=seed,
        site=site,
        chosen_round=-1,
        metrics=dict.fromkeys((*names, "guard", "guard of permuted"), 0.8)
        | {n.replace("_", " "): v for n, v in figures.items()},
    )


def cells(rows: list[Row]) -> dict[str, dict[tuple[str, int], dict[str, float]]]:
    """As the page groups them."""
    found: dict[str, dict[tuple[str, int], dict[str, float]]] = {}
    for one in rows:
        found.setdefault(one.variant, {})[one.site, one.seed] = dict(one.metrics)
    return found


def test_differences_are_paired_by_split_and_corrected() -> None:
    """Minus best local is 2 and 4 points in two splits: mean 3, half width 12.706 * 1.414 * sqrt(1 / 2 + 1 / 2)."""
    rows = [row("va", 1, best_local=0.78), row("va", 2, best_local=0.76)]

    (figure,) = figures_of(cells(rows))

    assert figure.less["best local"].value == pytest.approx(3.0)
    assert figure.less["best local"].half_width == pytest.approx(12.7062 * math.sqrt(2.0), rel=1e-4)
    assert figure.less["permuted"].value == 0.0


def test_of_many_sites_the_interval_is_over_the_sites() -> None:
    """Ten sites in one split each give one line with ten values, and no line of a single site."""
    table = "dialysis, 30"
    rows = [row(f"centre-{place}", place % 5, table, best_local=0.8 - 0.01 * place) for place in range(10)]

    (figure,) = figures_of(cells(rows))

    assert (figure.site, figure.splits) == (MEAN, 10)
    assert figure.less["best local"].value == pytest.approx(4.5)
    assert figure.less["best local"].half_width == pytest.approx(
        2.2622 * np.std(range(10), ddof=1) / math.sqrt(10), rel=1e-4
    )


def test_the_page_says_where_the_bar_is_missed() -> None:
    """A site that is clearly below its best local model is named, and so is one that is clearly above."""
    rows = [row("va", seed, best_local=0.7 + 0.001 * seed) for seed in range(3)]
    rows += [row("cleveland", seed, best_local=0.9 + 0.001 * seed) for seed in range(3)]

    below, above, at_va, *_ = bar_lines(list(figures_of(cells(rows))))

    assert "cleveland, 50 rows" in below
    assert "va" not in below.replace("Above", "")
    assert "va, 50 rows" in above
    assert "yes at UCI heart, va" in at_va


def test_the_page_tells_what_no_site_can_have_from_what_is_missing(tmp_path: Path) -> None:
    """If the largest site has 210 training rows, 100 of them could be measured, and 200 are all of them."""
    rows = [row("va", seed, "UCI heart, 0", rows=90 + seed) for seed in range(3)]
    render_join([*rows, row("cleveland", 0, "UCI heart, 0", rows=210)], tmp_path / "join.md")

    text = (tmp_path / "join.md").read_text()

    assert "clearly more training rows than: UCI heart at 200, 400" in text
    assert "Measured at one site at most: UCI heart at 30, 50, 100;" in text


@pytest.mark.parametrize(("lead", "verdict"), [(0.1, "prior path at UCI heart, 50 rows"), (-0.1, "nowhere")])
def test_the_page_says_where_a_composition_helps(tmp_path: Path, lead: float, verdict: str) -> None:
    """It helps if it is better than both of its parts beyond noise, and the linear path alone is no composition."""
    rows = [
        Row(
            variant=composed.variant_name("UCI heart", 50),
            seed=seed,
            site="va",
            chosen_round=-1,
            metrics=dict.fromkeys(composed.PARTS, 0.7)
            | {"linear path": 0.9, "prior path": 0.7 + lead + 0.001 * seed, "join of four": 0.7},
        )
        for seed in range(4)
    ]

    render_join(rows, tmp_path / "join.md")

    assert f"Better than both parts beyond noise: {verdict}." in (tmp_path / "join.md").read_text()


@pytest.mark.slow
def test_both_compositions_are_tested_on_the_rows_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts alone have the figures of the study, and each training row of a site is left out of one network."""
    monkeypatch.setattr(composed, "FOLDS", 2)
    sites = clinics(3, 40, seed=1)
    members = dict(join.federations(sites, join.ALL, 400))["clinic-00"]
    datasets = {name: member.dataset for name, member in members.items()}

    out = [composed.left_out(datasets, ("clinic-00",), fold) for fold in range(composed.FOLDS)]

    own = datasets["clinic-00"]
    assert sum(len(one["clinic-00"].test) for one in out) == len(own.training)
    assert all(len(one["clinic-00"].test) + len(one["clinic-00"].training) == len(own.training) for one in out)
    assert all(one["clinic-01"] is datasets["clinic-01"] for one in out)
    (found,) = composed.rows_of(sites, "", {400: members}, {400: ("clinic-00",)}, is_of_all=False)
    assert found.metrics["federated-prior"] == join.measured(sites, members, "clinic-00", 400)["federated-prior"]
    assert set(found.metrics) == {*composed.PARTS, *composed.WAYS, "weight"}


def test_a_page_without_rows_is_written(tmp_path: Path) -> None:
    """If nothing was measured, the page reports that and has no plot."""
    render_join([], tmp_path / "join.md")

    assert "not measured" in (tmp_path / "join.md").read_text()
    assert not (tmp_path / "join.svg").exists()


def test_every_variant_has_its_own_name() -> None:
    """Rows of two variants would otherwise be mixed."""
    names = [variant.name for variant in TABLES["join"].variants()]

    assert len(set(names)) == len(names)
