"""Pages and plots follow from stored rows alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.data.covertype import AREAS
from benchmarks.experiments.data.dealt import FAMILIES
from benchmarks.experiments.data.heart import FILES
from benchmarks.experiments.data.uci_centres import CENTRES
from benchmarks.experiments.layer_measures import MEASURES
from benchmarks.experiments.sensitivity_readings import READINGS
from benchmarks.experiments.store import Cost, add_cost, costs_beside
from benchmarks.experiments.tables import chfl, composed, fed_heart, fed_heart_tuning, heart, heart_page, player
from benchmarks.experiments.tables.catalogue import TABLES
from benchmarks.experiments.tables.chfl_page import accuracies
from benchmarks.experiments.tables.fed_heart_page import render_fed_heart
from benchmarks.experiments.tables.heart_page import render_heart
from benchmarks.experiments.tables.player_page import weighted_by_seed
from benchmarks.experiments.variants import Row
from tests.for_each import some

SITES = {
    "heart": tuple(FILES),
    "heart-readings": tuple(FILES),
    "fed-heart": CENTRES,
    "single-vectors": CENTRES,
    "player": CENTRES,
    "covertype": AREAS,
    "covertype-fedavg": AREAS,
    "rehearsal": tuple(FAMILIES),
}
NAMES = (
    "auroc", "auprc", "balanced_accuracy", "balanced_accuracy_at_logit_half", "accuracy", "macro_f1", "rows",
    "validation_accuracy", "validation_loss", "auroc_of_authors", "auprc_of_authors", "classes", "auroc_of_logits",
    "auroc_published_rows", "auroc_of_logits_published_rows", "auprc_of_logits_published_rows",
    "test_loss",
)  # fmt: skip


JOIN: tuple[str, ...] = (
    "federated-prior", "best local", "without others", "pooled", "permuted", "no outcomes", "weight", "rows", "guard",
    "guard of permuted", "federated", "placebo", *composed.PARTS[1:], *composed.WAYS,
)  # fmt: skip


def made_up_rows(table: str, seeds: int = 3) -> list[Row]:
    """Every variant of a table at every site, its metrics drawn from its name's length."""
    generator, names = np.random.default_rng(5), JOIN if table == "join" else NAMES
    rows = [
        Row(
            variant=variant.name,
            seed=seed,
            site=site,
            chosen_round=1 + seed,
            metrics=dict(zip(names, generator.random(len(names)).tolist(), strict=True)),
        )
        for variant in TABLES[table].variants()
        for seed in range(seeds)
        for site in SITES.get(table, ("site-1", "site-2"))
    ]
    if table == "player":
        metrics = {f"F {layer}": float(3**place) for place, layer in enumerate(player.LAYERS)} | {"layers": 2.0}
        rows += [
            Row(variant=player.CHOSEN_BY, seed=seed, site=player.FEDERATION, chosen_round=-1, metrics=metrics)
            for seed in range(seeds)
        ]
        measures = {f"{kind} {layer}": 0.5 for kind in MEASURES for layer in player.LAYERS}
        rows += [
            Row(variant=name, seed=0, site=player.FEDERATION, chosen_round=-1, metrics=measures)
            for name in player.MEASURES_OF
        ]
        read = {f"{name} {layer}": float(3**place) for name in READINGS for place, layer in enumerate(player.LAYERS)}
        rows.append(Row(variant=player.READ, seed=0, site=player.FEDERATION, chosen_round=-1, metrics=read))
    return rows


@pytest.mark.parametrize("table", some(sorted(TABLES), 4))
def test_the_same_rows_make_the_same_page(table: str, tmp_path: Path) -> None:
    """Page and plot have the same bytes again, name the command and the plot, and show every variant that was run."""
    rows, path = made_up_rows(table), tmp_path / f"{table}.md"

    TABLES[table].render(rows, path)
    first = path.read_bytes(), path.with_suffix(".svg").read_bytes()
    TABLES[table].render(rows, path)

    assert (path.read_bytes(), path.with_suffix(".svg").read_bytes()) == first
    page = path.read_text()
    assert f"python -m benchmarks.papers {table} " in page
    assert f"({table}.svg)" in page
    assert "nan" not in page
    assert all(line.count("|") == page_header(page, line).count("|") for line in page.splitlines() if line[:1] == "|")


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_table_without_rows_has_a_page(table: str, tmp_path: Path) -> None:
    """If nothing was run yet, the page shows nothing, and no error occurs."""
    TABLES[table].render([], tmp_path / "empty.md")

    assert (tmp_path / "empty.md").read_text().startswith("# ")


def test_the_page_of_heart_says_which_targets_are_met(tmp_path: Path) -> None:
    """Within 0.3 of the published area and above local with its interval; the cost as a share of the authors'."""
    path = tmp_path / "heart.md"
    rows = [
        row_of(variant, seed, site, auroc=value + 0.001 * seed)
        for site, target in (("cleveland", 0.8959), ("south-africa", 0.77), ("faisalabad", 0.8677))
        for variant, value in (("global-layers, authors", target), ("local, authors", target - 0.02))
        for seed in range(3)
    ]
    for name, seconds in (("local, authors", 2.0), ("fedavg, authors", 3.0), ("global-layers, authors", 5.0)):
        cost = Cost(variant=name, seeds=2, processor_seconds=2 * seconds, day="2026-01-02", libraries="torch 1")
        add_cost(costs_beside(path), cost)

    render_heart(rows, path)

    page = path.read_text()
    assert "cleveland: 89.69 AUROC over 3 seeds, +0.10 from the published 89.59 (within 0.3)" in page
    assert "south-africa: 77.10 AUROC over 3 seeds, +1.08 from the published 76.02 (not within 0.3)" in page
    assert "minus local 2.00 ± 0.00 (above 0)" in page
    assert "101 seeds of the three methods: 1,010, 0.316 of the authors' 3,200" in page
    assert "on 2026-01-02; torch 1." in page


def test_the_default_recipe_stands_beside_the_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results, made by a command of its own, are shown with and without the leaking column."""
    file = tmp_path / "default.csv"
    lines = [f"faisalabad,{without},federated,{seed},0.{seed}5" for without in (True, False) for seed in (7, 8)]
    file.write_text("\n".join(["site,without_time,model,seed,auroc", *lines]))
    monkeypatch.setattr(heart_page, "DEFAULT", file)

    render_heart([], tmp_path / "heart.md")

    half = 100 * 12.7062 * 0.05
    beside = f"| default recipe, federated | - | - | 80.00 ± {half:.2f} | 80.00 ± {half:.2f} |"
    assert beside in (tmp_path / "heart.md").read_text()


def test_every_reading_of_heart_is_explained() -> None:
    """Each difference between paper and experiment can be selected, or the page gives the reason."""
    readings = Path(heart.__file__).with_name("heart_readings.md").read_text()

    for word in ("batches", "latent", "gate", "normalisation", "aggregation", "sum or mean", "update rate", "start"):
        assert word in readings
    for word in ("FedAvg", "label", "discrete", "thresholds", "*authors*", "*paper*", "*declared*", "*aligned*"):
        assert word in readings


def test_fed_heart_says_where_it_is_below_the_paper(tmp_path: Path) -> None:
    """A method below the tolerance and its interval is named, with how many runs kept an early model."""
    rows = [
        row_of("fedprox, local", seed, site, chosen_round=1 + 9 * (seed % 2), accuracy=0.65 + 0.05 * (seed % 2))
        for seed in range(20)
        for site in CENTRES
    ]
    rows += [row_of("fedper, local", seed, site, accuracy=0.82) for seed in range(20) for site in CENTRES]

    render_fed_heart(rows, tmp_path / "fed-heart.md")

    page = (tmp_path / "fed-heart.md").read_text()
    assert "**fedprox**: 0.675" in page
    assert "10 of 20 runs kept the model of round 2 or earlier, with accuracy 0.650 there; the others 0.700" in page
    assert "**fedper**" not in page
    assert set(fed_heart.PUBLISHED) >= {"fedprox", "siloed", "central"}


def test_a_combination_is_chosen_on_the_validation_loss(tmp_path: Path) -> None:
    """The combination with the lowest mean loss over the runs, once every combination of table 7 was tried.

    PerFCL's gamma of 5 is better than the paper's 1 by 0.2 in each run.
    """
    best = fed_heart_tuning.Combination("perfcl", 0.01, (0.1, 5.0))
    rows = [
        row_of(each.name, seed, "all", validation_loss=(0.4 if each == best else 0.6) + 0.1 * seed)
        for each in fed_heart_tuning.combinations("perfcl")
        for seed in range(2)
    ]

    fed_heart_tuning.render_tuning(rows, tmp_path / "tuning.md")

    assert fed_heart_tuning.chosen(rows, "perfcl") == best
    assert fed_heart_tuning.chosen(rows[2:], "perfcl") is None
    half = 12.7062 * 50
    chosen = f"| perfcl | rate 0.01, mu 0.1, gamma 5 | 450 ± {half:.0f} | rate 0.001, mu 0.1, gamma 1 |"
    assert f"{chosen} 650 ± {half:.0f} | 200 ± 0 |" in (tmp_path / "tuning.md").read_text()


def test_the_combinations_are_those_of_table_7() -> None:
    """153 with the ranges of seven methods, 15 rates of three others. Every one has the values that the paper chose."""
    counts = {method: len(fed_heart_tuning.combinations(method)) for method in fed_heart.RANKS}

    assert counts == {
        "fedavg": 5, "fedadam": 25, "fedprox": 6, "scaffold": 25, "moon": 30, "fedper": 5, "ditto": 15, "apfl": 25,
        "perfcl": 27, "fenda-fl": 5,
    }  # fmt: skip
    for method in fed_heart.RANKS:
        assert fed_heart_tuning.published(method) in fed_heart_tuning.combinations(method)


def test_a_combination_changes_only_its_own_settings() -> None:
    """The plan's method has the combination's values, and SCAFFOLD's own optimiser has the client's rate."""
    entry = fed_heart_tuning.Combination("scaffold", 0.01, (1e-3,)).entry()
    usual = fed_heart.ENTRIES["scaffold"]

    assert entry.method == {"name": "scaffold", "rate": 1e-3}
    assert entry.keys == usual.keys | {"optimiser": {"name": "sgd", "learning_rate": 0.01}}
    assert fed_heart_tuning.published("scaffold").entry() == usual


def test_methods_are_ranked_by_their_better_checkpoint(tmp_path: Path) -> None:
    """A method with one model for all has the better of local and global, a personal one its local model."""
    scores = {"local": 0.5, "global": 0.6, "latest": 0.9}
    rows = [
        row_of(f"{name}, {checkpoint}", 1, site, accuracy=score + (0.05 if name == "fedper" else 0.0))
        for name in fed_heart.RANKS
        for checkpoint, score in scores.items()
        for site in CENTRES
    ]

    render_fed_heart(rows, tmp_path / "fed-heart.md")

    page = (tmp_path / "fed-heart.md").read_text()
    assert "| fedavg | 8 | 1 | 0.600 |" in page
    assert "| fedper | 2 | 6 | 0.550 |" in page
    assert "| ditto | 4 | 7 | 0.500 |" in page


def test_each_client_chooses_mu_and_rate_on_its_own_validation_rows() -> None:
    """Each client takes its best candidate, whatever its test accuracy; a seed without a candidate is left out."""
    connected = [chfl.strength_name(strength) for strength in chfl.STRENGTHS if strength]
    candidates = [each.name for each in chfl.candidates(chfl.TABLE_II) if each.method in connected]
    rows = [
        row_of(name, 7, site, validation_accuracy=0.7 if place == best else 0.6, accuracy=0.1 * place)
        for site, best in (("site-1", 0), ("site-2", 3))
        for place, name in enumerate(candidates)
    ]
    rows.append(row_of(candidates[0], 8, "site-1", validation_accuracy=0.7, accuracy=0.5))

    assert accuracies(rows, chfl.TABLE_II) == {"mu above 0": {7: pytest.approx(0.15)}}
    # Without the higher rate the second site loses its best candidate.
    assert accuracies(rows, chfl.TABLE_II, rates=(chfl.RATE,)) == {"mu above 0": {7: pytest.approx(0.0)}}


def test_the_page_of_chfl_compares_the_same_runs_with_more_rounds(tmp_path: Path) -> None:
    """With more rounds mu 0 gains 0.2 and local 0.1. Runs that only the usual number of rounds has do not count.

    So mu 0 minus local becomes 0.1, where the paper has 0.034. Without such runs the page has no such section.
    """
    usual = {"local": 0.5, "chfl, mu 0": 0.5}
    rows = [
        row_of(
            f"{method}, 5 clients, 30% common, rate 0.001", seed, "site-1", accuracy=value, validation_accuracy=value
        )
        for method, value in usual.items()
        for seed in range(4)
    ]
    longer = [
        row_of(f"{method}, 5 clients, 30% common, rate 0.001, 12 rounds", seed, "site-1", accuracy=value + gain)
        for (method, value), gain in zip(usual.items(), (0.1, 0.2), strict=True)
        for seed in (0, 2)
    ]

    TABLES["chfl"].render(rows, tmp_path / "usual.md")
    TABLES["chfl"].render([*rows, *longer], tmp_path / "longer.md")

    page = (tmp_path / "longer.md").read_text()
    assert "12 rounds" not in (tmp_path / "usual.md").read_text()
    assert "| mu 0 | 0.500 ± 0.000 | 0.700 ± 0.000 | 0.674 | 0.200 ± 0.000 | 2 |" in page
    assert "Mu 0 minus local is 0.100 ± 0.000 with 12 rounds (2 runs)" in page
    assert "The paper has +0.034." in page
    assert {variant.name for variant in chfl.variants()} >= {row.variant for row in longer}


def test_the_page_of_chfl_shows_further_splits_in_a_table_of_their_own(tmp_path: Path) -> None:
    """Runs of a further split change no line of tables II and III, and without such runs there is no such table."""
    own = [
        row_of(f"{method}, 5 clients, 30% common, rate {rate:g}", seed, "site-1", accuracy=0.5, validation_accuracy=0.5)
        for method in ("common", "local", "chfl, mu 0")
        for rate in chfl.RATES
        for seed in range(15)
    ]
    further = [
        row_of(f"{method}, 5 clients, 30% common, rate 0.001", seed, "site-1", accuracy=value, validation_accuracy=0.5)
        for method, value in (("common", 0.6), ("local", 0.7), ("chfl, mu 0", 0.8))
        for seed in (15, 16)
    ]

    TABLES["chfl"].render(own, tmp_path / "own.md")
    TABLES["chfl"].render([*own, *further], tmp_path / "further.md")

    before, after = (tmp_path / "own.md").read_text(), (tmp_path / "further.md").read_text()
    line = next(each for each in before.splitlines() if each.startswith("| 5 clients, 30% common | 0.5"))
    assert line in after
    assert "elevation" not in before
    assert "| 3 | all clients | 0.600 ± 0.000 | 0.700 ± 0.000 | 0.800 ± 0.000 | 0.100 ± 0.000 | 2 |" in after
    assert "| 0 | one client | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.000 ± 0.000 | 5 |" in after


def test_the_page_of_chfl_shows_what_the_choice_of_the_learning_rate_brings(tmp_path: Path) -> None:
    """Two of four clients prefer the higher rate, which gives them 0.2 more. So the choice brings 0.1 in every setting.

    A setting without the higher rate has no such line. Its other lines name the only rate, and the page states what the
    missing runs would cost: 15 runs at 20 seconds.
    """
    complete = chfl.Setting(clients=2)
    rows = [
        row_of(
            f"local, {setting.title}, rate {rate:g}", seed, f"site-{site}", accuracy=accuracy, validation_accuracy=0.5
        )
        for setting, rates in ((complete, chfl.RATES), (chfl.Setting(clients=10), chfl.RATES[:1]))
        for rate in rates
        for seed in range(2)
        for site, accuracy in enumerate((0.5, 0.5, 0.5, 0.5) if rate == chfl.RATE else (0.7, 0.7, 0.1, 0.1))
    ]
    preferred = {("site-0", 3e-3), ("site-1", 3e-3), ("site-2", 1e-3), ("site-3", 1e-3)}
    rows = [
        replace(row, metrics={**row.metrics, "validation_accuracy": 0.6})
        if any(row.site == site and row.variant.endswith(f"rate {rate:g}") for site, rate in preferred)
        else row
        for row in rows
    ]

    cost = Cost(
        variant="local, 10 clients, 30% common, rate 0.001", seeds=2, processor_seconds=40.0, day="-", libraries="-"
    )
    add_cost(costs_beside(tmp_path / "chfl.csv"), cost)

    TABLES["chfl"].render(rows, tmp_path / "chfl.md")

    page = (tmp_path / "chfl.md").read_text()
    section = page[page.index("## What the choice of the learning rate brings") :]
    assert "| 2 clients, 30% common | - | 0.100 ± 0.000 | - | - | - |" in section
    assert "10 clients" not in section
    assert "| 10 clients, 30% common, rate 0.001 | - (paper 0.601, deviation 0.111) | 0.500 ± 0.000" in page
    assert "The missing runs would cost about 300 processor seconds." in page
    assert "| 2 clients, 30% common | - (paper 0.642, deviation 0.110) | 0.600 ± 0.000 (deviation 0.000)" in page


def test_every_client_chooses_its_learning_rate_in_every_setting() -> None:
    """Each method has both rates in each setting of tables II and III and figure 4, as in the paper."""
    for setting in (*chfl.TABLE_III, *chfl.FIGURE_4):
        rates: dict[str, set[float]] = {}
        for each in chfl.candidates(setting):
            rates.setdefault(each.method, set()).add(each.rate)
        assert set(map(frozenset, rates.values())) == {frozenset(chfl.RATES)}
        assert (chfl.CONCATENATED in rates) == (setting == chfl.TABLE_II)


def test_figure_3_has_both_checkpoints(tmp_path: Path) -> None:
    """A method with one model for all sites has a line for each checkpoint, and one with local models only local."""
    rows = [
        row_of(f"{method}{size}, {checkpoint}", seed, site, accuracy=value)
        for method, checkpoints in (("fedavg", ("local", "global")), ("siloed", ("local",)))
        for size, value in (("", 0.5), (", large network", 0.75))
        for checkpoint in checkpoints
        for seed in range(2)
        for site in CENTRES
    ]

    TABLES["fed-heart"].render(rows, tmp_path / "fed-heart.md")

    page = (tmp_path / "fed-heart.md").read_text()
    for method, checkpoint in (("fedavg", "local"), ("fedavg", "global"), ("siloed", "local")):
        line = f"| {method} | {checkpoint} | 0.500 ± 0.000 | 0.750 ± 0.000 | 0.250 ± 0.000 |"
        assert line in page
    assert {row.variant for row in rows} <= {variant.name for variant in fed_heart.variants()}


def test_the_macro_f1_is_weighted_by_rows() -> None:
    """Three rows of 0.2 and one of 1 make 0.4; the federation's own line does not count."""
    rows = [
        row_of("player-fl", 1, "va", macro_f1=0.2, rows=3.0),
        row_of("player-fl", 1, "cleveland", macro_f1=1.0, rows=1.0),
        row_of("player-fl", 1, player.FEDERATION, layers=2.0),
    ]

    assert weighted_by_seed(rows, "player-fl") == pytest.approx({1: 0.4})


def test_a_centre_gains_if_it_beats_both_itself_and_fedavg(tmp_path: Path) -> None:
    """To beat only its own model alone is not enough: two of four centres beat both, by F1 and by accuracy.

    So the incentive is 50 percent. The published figures are those of tables A.5, A.6, A.8 and A.9.
    """
    scores = {"local": (0.1, 0.1, 0.9, 0.1), "fedavg": (0.1, 0.1, 0.1, 0.9), "ditto": (0.5, 0.5, 0.5, 0.5)}
    rows = [
        row_of(name, 1, site, macro_f1=value, accuracy=value if name != "ditto" else value / 2, rows=1.0)
        for name, values in scores.items()
        for site, value in zip(CENTRES, values, strict=True)
    ]

    TABLES["player"].render(rows, tmp_path / "player.md")

    page = (tmp_path / "player.md").read_text()
    assert "| ditto | 0.082 | 0.000 | 0 | 50 |" in page
    assert "| ditto | 0.057 | 0.000 | 0 | 50 |" in page


def test_a_smaller_loss_is_a_gain(tmp_path: Path) -> None:
    """A centre gains if its loss is below that of its own model alone and below FedAvg's.

    Ditto is below both at one of four centres. The published figures are those of tables A.10 to A.12. Losses are shown
    times 100: of 0.1, 0.3, 0.3 and 0.3 the weighted mean is 0.25 and the median is 0.3.
    """
    losses = {"local": (0.2, 0.2, 0.4, 0.2), "fedavg": (0.2, 0.4, 0.2, 0.2), "ditto": (0.1, 0.3, 0.3, 0.3)}
    rows = [
        row_of(name, 1, site, macro_f1=0.5, accuracy=0.5, test_loss=value, rows=1.0)
        for name, values in losses.items()
        for site, value in zip(CENTRES, values, strict=True)
    ]

    TABLES["player"].render(rows, tmp_path / "player.md")

    page = (tmp_path / "player.md").read_text()
    assert "| ditto | 26.2 ± 0.4 | 25.00 | 30.00 | 1 |" in page
    assert "| ditto | 0.017 | 0.007 | 75 | 25 |" in page


def test_the_page_of_player_divides_measures_as_the_paper_does(tmp_path: Path) -> None:
    """The trace is divided by the number of a layer's parameters, and the sensitivity is a percentage of FC1's."""
    found = {f"{kind} {layer}": 2.0**place for kind in MEASURES for place, layer in enumerate(player.LAYERS)}
    rows = [row_of(player.MEASURED_ALONE, seed, player.FEDERATION, **found) for seed in range(2)]

    TABLES["player"].render(rows, tmp_path / "player.md")

    page = (tmp_path / "player.md").read_text()
    assert "| final, alone | sensitivity, percent of FC1 | 100 | 200 | 400 | 800 | A.9 | 2 |" in page
    assert "| final, alone | Hessian trace by parameter | 0.00182 | 0.00196 | 0.00952 | 0.0762 | A.5 | 2 |" in page


def test_the_page_of_player_has_the_median_over_the_centres(tmp_path: Path) -> None:
    """Of 0.1, 0.2, 0.4 and 0.9 it is 0.3; the mean, with these weights, is 0.70."""
    values = zip(CENTRES, (0.1, 0.2, 0.4, 0.9), (1.0, 1.0, 1.0, 7.0), strict=True)
    rows = [row_of("ditto", 1, site, macro_f1=value, accuracy=value, rows=weight) for site, value, weight in values]

    TABLES["player"].render(rows, tmp_path / "player.md")

    assert "| 55.5 ± 1.0 | 70.00 | 30.00 |" in (tmp_path / "player.md").read_text()


def test_the_page_of_player_counts_runs_whose_layers_depend_on_the_gradients(tmp_path: Path) -> None:
    """F rises by 1.8, 2.5 and 4, and by 1.2, 1.8 and 4 in one reading, which chooses another layer below 2.5."""
    usual, slow = (1.0, 1.8, 4.5, 18.0), (1.0, 1.2, 2.16, 8.64)
    found = {
        f"{name} {layer}": value
        for name in READINGS
        for layer, value in zip(player.LAYERS, slow if name == "last batch" else usual, strict=True)
    }
    rows = [row_of(player.READ, seed, player.FEDERATION, **found) for seed in range(4)]

    TABLES["player"].render(rows, tmp_path / "player.md")

    page = (tmp_path / "player.md").read_text()
    assert "| all rows | 1.8 (1.8 to 1.8) | 2.5 (2.5 to 2.5) | 4 (4 to 4) | 0 (4, 0) | 4 (0, 0) | 0 (0, 4) |" in page
    assert "| last batch | 1.2 (1.2 to 1.2) | 1.8 (1.8 to 1.8) | 4 (4 to 4) | 4 (0, 0) | 0 (0, 4) | 0 (0, 4) |" in page
    assert "another reading federates other layers in 4 cases" in page
    assert "last batch: 4, 4, 0; mean of batches: 0, 0, 0; random batch: 0, 0, 0" in page


def row_of(variant: str, seed: int, site: str, *, chosen_round: int = -1, **metrics: float) -> Row:
    """A row with these metrics."""
    return Row(variant=variant, seed=seed, site=site, chosen_round=chosen_round, metrics=metrics)


def page_header(page: str, line: str) -> str:
    """The first line of the table that contains a line."""
    table = next(part for part in page.split("\n\n") if line in part.splitlines())
    return next(each for each in table.splitlines() if each.startswith("|"))
