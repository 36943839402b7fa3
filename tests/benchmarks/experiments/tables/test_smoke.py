"""Each table's command runs on the public tables, one variant and one or two seeds, and writes its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.experiments.data.dealt_columns import Deal, dealt_covertype
from benchmarks.experiments.store import read_rows
from benchmarks.experiments.tables import chfl, covertype, join
from benchmarks.experiments.tables.catalogue import TABLES
from benchmarks.experiments.tables.covertype import as_the_authors
from benchmarks.papers import main

from ..data.conftest import DATA, needs_covertype, needs_heart

HEART = [
    ("heart", "global-layers, authors", "0"),
    ("fed-heart", "scaffold, global", "0-1"),
    ("fed-heart", "central, own scales, local", "0-1"),
    ("fed-heart", "majority", "0-1"),
    ("player", "player-fl", "0"),
    ("single-vectors", "pfedla", "0"),
    ("join", "training rows a site 20, heart, global-layers, placebo, best epoch", "0-1"),
]
COVERTYPE = [
    ("chfl", "common columns, fedavg", "7"),
    ("chfl", "chfl, mu 1", "7"),
    ("covertype", "global-layers", "8"),
    ("join", "share of columns in common 0.5, covertype dealt, fenda-fl, federated", "0-1"),
]


@needs_heart
@pytest.mark.parametrize(("table", "variant", "seeds"), HEART)
def test_a_table_of_the_heart_files_is_made(table: str, variant: str, seeds: str, tmp_path: Path) -> None:
    """Every metric that a row has is finite, and the page shows the variant's table."""
    run(table, variant, seeds, tmp_path)


@needs_covertype
@pytest.mark.parametrize(("table", "variant", "seeds"), COVERTYPE)
def test_a_table_of_covertype_is_made(
    table: str, variant: str, seeds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with one epoch, where the table's own number takes minutes."""
    monkeypatch.setattr(chfl, "ROUNDS", 1)
    monkeypatch.setattr(chfl, "EPOCHS_PER_ROUND", 1)
    monkeypatch.setattr(covertype, "EPOCHS", 1)

    run(table, variant, seeds, tmp_path)


@needs_covertype
@pytest.mark.parametrize("seed", range(5))
def test_dealt_sites_share_what_they_are_dealt(seed: int) -> None:
    """Common columns stand first at every site, the others are one site's alone, and no row is dealt twice."""
    deal = Deal(sites=3, training_rows=40, choosing_rows=10, test_rows=30, classes=4, columns=12, common_share=0.25)

    dealt = dealt_covertype(DATA, seed, deal)

    assert len(dealt.common) == 3
    own = [set(dataset.columns[3:]) for dataset in dealt.sites.values()]
    assert all(dataset.columns[:3] == dealt.common for dataset in dealt.sites.values())
    assert len(set.union(*own)) == 27
    for dataset in dealt.sites.values():
        assert (len(dataset.training), len(dataset.validation), len(dataset.test)) == (40, 10, 30)
        assert len(dataset.classes) == 4
        assert int(dataset.training.targets.max()) < 4


@needs_covertype
def test_more_rows_than_there_are_cannot_be_dealt() -> None:
    """15,120 rows are not enough for thirty sites of 600."""
    with pytest.raises(ValueError, match="not so many rows"):
        dealt_covertype(DATA, 0, Deal(sites=30, training_rows=60))


@needs_heart
def test_seeds_of_a_setting_can_be_stacked() -> None:
    """All plans of a setting differ in their seed alone, so that ten seeds cost little more than one."""
    setting = next(each for each in join.settings() if each.data == "fed-heart")

    plans = [join.join_plan(setting.sites(DATA, seed), seed, "fedavg", "latest", "fedavg") for seed in (0, 1)]

    assert plans[0] != plans[1]
    assert plans[0] == plans[1].model_copy(update={"seed": 0})


def test_an_absent_class_counts_half_for_the_authors() -> None:
    """Two of three classes present and distinguished: (1 + 1 + 0.5) / 3, and (1 + 1 + 0) / 3 for the AUPRC."""
    logits = np.array([[3, 1, 0], [2, 1, 0], [0, 5, 0]], np.float32)

    auroc, auprc = as_the_authors(np.array([0, 0, 1]), logits)

    assert auroc == pytest.approx(2.5 / 3)
    assert auprc == pytest.approx(2.0 / 3)


def run(table: str, variant: str, seeds: str, folder: Path) -> None:
    """The command, its rows and its page."""
    arguments = [table, "--data", str(DATA), "--results", str(folder), "--seeds", seeds, "--variant", variant]

    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    rows = read_rows(folder / f"{table}.csv")
    assert {row.variant for row in rows} == {variant}
    assert all(np.isfinite(list(row.metrics.values())).all() for row in rows)
    assert (folder / f"{table}.md").read_text().startswith("# ")
    assert variant in [each.name for each in TABLES[table].variants()]
