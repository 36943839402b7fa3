"""The first screen: the quickstart's figures for each hospital, its table and its sentences."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as statsmodels
from rich.console import Console

from quickstart.federation import Rehearsal
from quickstart.figures import collect, odds_ratios, odds_table, sentences_of, table_of
from quickstart.hospitals import UCI_HOSPITALS, HospitalData

ROOT = Path(__file__).parents[2]


def report(federated: float, others: float | None = None) -> dict[str, Any]:
    """A site's report of one method: its AUROC, and what it is compared with."""
    interval = {"difference": federated - 0.7, "interval": [0.01, 0.09]}
    prior = {"prior": {"weights": {"regression": 0.2, "forest": 0.3, "others": 0.5}}}
    return (prior if others is not None else {}) | {
        "federated": {"metrics": {"auroc": federated}},
        "siloed": {"metrics": {"auroc": 0.6}},
        "simple_models": {"forest": {"metrics": {"auroc": 0.7}}, "regression": {"metrics": {"auroc": 0.65}}},
        "best_local": "forest",
        "differences": {"forest": {"auroc": interval}, "siloed": {"auroc": {"difference": others}}},
        "gain": {"verdict": "gained"},
    }


def test_the_figures_name_the_best_local_model_and_what_the_others_brought(tmp_path: Path) -> None:
    """Each method's AUROC, the chosen simple model's, and federated-prior minus the same model without the others."""
    hospital = HospitalData("va", tmp_path, tmp_path)
    methods = ("fedavg", "federated-prior")
    rehearsal = Rehearsal(folder=tmp_path, hospitals=[hospital], methods=methods, rounds=2, seed=0, is_masked=True)
    for study, each in zip(rehearsal.studies, (report(0.68), report(0.75, others=0.04)), strict=True):
        record = {"study": study.name, "run": study.name, "rounds_made": 8, "shared_parameters_sha256": study.label}
        run, kept = tmp_path / "coordinator" / "runs" / study.name, tmp_path / "va" / "state" / "reports"
        for path, content in ((run / "record.json", record), (kept / f"{study.name}.json", each)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))

    figures = collect(rehearsal)

    found = figures["sites"]["va"]
    assert found["best-local"] == {"model": "forest", "auroc": 0.7}
    assert (found["fedavg"]["auroc"], found["federated-prior"]["auroc"], found["siloed"]["auroc"]) == (0.68, 0.75, 0.6)
    assert found["others_part_auroc"] == 0.04
    assert found["difference_to_best_local"]["difference"] == pytest.approx(0.05)
    assert figures["runs"] == {"fedavg": "fedavg", "federated-prior": "federated-prior"}
    screen = StringIO()
    Console(width=80, file=screen).print(table_of(figures))
    (line,) = (each for each in screen.getvalue().splitlines() if each.startswith(" va"))
    assert line.split() == ["va", "0.700", "0.680", "0.750", "+5.0", "[+1.0,", "+9.0]", "+4.0"]


def test_readme_shows_the_odds_ratios_of_the_pooled_table(tmp_path: Path) -> None:
    """The screen in README is what statsmodels gives: all rows with an intercept for each clinic, and VA alone."""
    places = {0: "age, per unit (years)", 1: "sex: male, against female", 8: "exercise-angina: 1, against 0",
              9: "st-depression, per unit (mm)", 13: "ill"}  # fmt: skip
    files = {site: ROOT / f"deploy/data/uci-heart/{site}.data" for site in UCI_HOSPITALS}
    tables = {site: pd.read_csv(file, header=None, na_values="?").assign(site=site) for site, file in files.items()}
    terms = [*places.values()][:-1]
    fits = {}
    for kind, table in (("all", pd.concat(tables.values())), ("va", tables["va"])):
        rows = table.rename(columns=places)[[*terms, "ill", "site"]].dropna()
        design = pd.concat([rows[terms], pd.get_dummies(rows["site"], dtype=float)], axis=1)
        fits[kind] = statsmodels.Logit((rows["ill"] > 0).astype(float), design).fit(disp=0)
    found = {
        term: {kind: [math.exp(fit.params[term]), *np.exp(fit.conf_int().loc[term])] for kind, fit in fits.items()}
        for term in terms
    }
    screen = StringIO()
    Console(width=80, file=screen).print(odds_table(found, "va"))
    shown = [line.strip() for line in (ROOT / "README.md").read_text().splitlines()]

    assert all(line.strip() in shown for line in screen.getvalue().splitlines()[3:])

    folder = tmp_path / "va/state/statistics/run"
    folder.mkdir(parents=True)
    logs = {
        term: {
            kind: dict(zip(("estimate", "low", "high"), map(math.log, one), strict=True)) for kind, one in of.items()
        }
        for term, of in found.items()
    }
    parts = {label: label.replace(": ", "=").split(", ") for label in terms}
    result = {
        "name": "odds-ratios",
        "terms": [{"term": parts[one][0], "scale": parts[one][1], **of["all"]} for one, of in logs.items()],
    }
    (folder / "results.json").write_text(json.dumps({"analyses": [result]}))
    (folder / "own.json").write_text(
        json.dumps({"estimates": {"odds-ratios": {parts[one][0]: of["va"] for one, of in logs.items()}}})
    )
    rehearsal = Rehearsal(folder=tmp_path, hospitals=[], methods=(), rounds=2, seed=0, is_masked=True)
    read = odds_ratios(rehearsal, "va")
    assert [*read] == terms
    np.testing.assert_allclose([read[term]["va"] for term in terms], [found[term]["va"] for term in terms], rtol=1e-12)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.01, 0.09), "gained"), ((0.01, 0.09), "unclear"), ((-0.09, -0.01), "unclear"), ((-0.01, 0.09), "unclear"),
     (None, "unclear")],
)  # fmt: skip
def test_one_sentence_says_whether_to_join(interval: tuple[float, float] | None, verdict: str) -> None:
    """The sentence is "join" only if both the best local model and the placebo are beaten beyond noise."""
    difference = None if interval is None else {"difference": 0.0, "interval": interval}
    sites = {"va": {"difference_to_best_local": difference, "verdict": verdict}}

    (sentence,) = sentences_of({"runs": {"fedavg": "", "federated-prior": ""}, "sites": sites})

    assert sentence.startswith("va: join") is (verdict == "gained")
