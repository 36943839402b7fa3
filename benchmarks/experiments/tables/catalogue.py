"""Lists every table of results by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.experiments.tables import (
    chfl,
    composed,
    covertype,
    covertype_fedavg,
    fed_heart,
    fed_heart_tuning,
    heart,
    images,
    join,
    player,
    readings,
    rehearsal,
    vectors,
)
from benchmarks.experiments.tables.chfl_page import render_chfl
from benchmarks.experiments.tables.covertype_fedavg_page import render_covertype_fedavg
from benchmarks.experiments.tables.covertype_page import render_covertype
from benchmarks.experiments.tables.fed_heart_page import render_fed_heart
from benchmarks.experiments.tables.heart_page import render_heart
from benchmarks.experiments.tables.images_page import render_images
from benchmarks.experiments.tables.join_page import render_join
from benchmarks.experiments.tables.player_page import render_player
from benchmarks.experiments.variants import Row, Variant


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results: the variants to run, the seeds, and the function that writes its page."""

    variants: Callable[[], list[Variant]]
    seeds: Sequence[int]
    render: Callable[[list[Row], Path], None]


def _join_and_composed() -> list[Variant]:
    """Return the variants of the tables `join` and `composed`. The page of join shows the results of both tables."""
    return join.variants() + composed.variants()


TABLES: Final = {
    "heart": Table(variants=heart.variants, seeds=range(101), render=render_heart),
    "heart-readings": Table(variants=readings.variants, seeds=readings.SEEDS, render=readings.render_readings),
    "fed-heart": Table(variants=fed_heart.variants, seeds=range(20), render=render_fed_heart),
    "fed-heart-tuning": Table(
        variants=fed_heart_tuning.variants, seeds=fed_heart_tuning.SEEDS, render=fed_heart_tuning.render_tuning
    ),
    "chfl": Table(variants=chfl.variants, seeds=chfl.SEEDS, render=render_chfl),
    "covertype": Table(variants=covertype.variants, seeds=covertype.SEEDS, render=render_covertype),
    "covertype-fedavg": Table(
        variants=covertype_fedavg.variants, seeds=covertype_fedavg.SEEDS, render=render_covertype_fedavg
    ),
    "single-vectors": Table(variants=vectors.variants, seeds=range(20), render=vectors.render_vectors),
    "join": Table(variants=_join_and_composed, seeds=join.SEEDS, render=render_join),
    "rehearsal": Table(variants=rehearsal.variants, seeds=range(4), render=rehearsal.render_rehearsal),
    "images": Table(variants=images.variants, seeds=images.SEEDS, render=render_images),
    "player": Table(variants=player.variants, seeds=player.SEEDS, render=render_player),
}


def table_named(name: str) -> Table:
    """Return the table with this name."""
    return TABLES[name]
