"""From data frames of several hospitals to a table: the documented example runs, and bad frames are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from global_layers import statistics_simulation
from global_layers.simulation import simulate
from protos.errors import OperatorError
from tests.for_each import for_each
from tests.statistics.federations import CONCEPTS, patients

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
    """Too few sites, other outcomes than two values, and what would be another column, code or patient. It is named."""
    two, three = (dict(list(_frames(0).items())[-number:]) for number in (2, 3))
    (site, own), coded = list(three.items())[-1], {name: one["died"].eq("yes") * 1.0 for name, one in three.items()}
    numbered = {name: one.assign(died=coded[name]) for name, one in three.items()}
    wrong: list[tuple[str, Any, str]] = [
        ("dictionary", two, "died"), ("dictionary", [own] * 3, "died"), ("3 values", three, "Pain"),
        ("dead is absent", three, "dead"),
        ("'Pain', 'pain'", three | {site: own.rename(columns={"Pain": "pain"})}, "died"),
        (f"{site}: 1 of 90 rows", three | {site: own.assign(died=own["died"].where(own.index > 0))}, "died"),
        (f"{site}: 1 of 90 rows", numbered | {site: own.assign(died=coded[site].where(own.index > 0))}, "died"),
        (f"{site}: died", three | {site: own.assign(died="no")}, "died"),
        ("'NO', 'no'", three | {site: own.assign(died=own["died"].str.upper())}, "died"),
        (f"{site}: the column at", three | {site: own.assign(at=pd.Timestamp(2026, 1, 1))}, "died"),
        (f"{site}: the column id", three | {site: own.assign(id=[f"P{n}" for n in range(90)])}, "died"),
    ]  # fmt: skip
    for place, sites, outcome in wrong:
        with pytest.raises(OperatorError) as refusal:
            simulate(sites, outcome=outcome)
        assert place in refusal.value.what, place


def test_a_mistake_in_a_notebook_has_its_place_and_no_traceback() -> None:
    """Whatever is wrong in the plan, the frames or their types: an error for operators, which names the place."""
    cox: dict[str, Any] = {"time": "days", "event": "died", "terms": ["age"]}
    plan: dict[Any, Any] = {
        "concepts": CONCEPTS,
        "analyses": [{"name": "y", "cox": cox}],
        "smallest_cell": np.int64(10),
    }
    sites = {f"site-{number}": own for number, own in patients(0).groupby("site")}
    analyses = {
        "analyses.x: ": {"logistic": {}},
        "analyses.x: an ": {"cox": cox, "table_one": {"columns": ["age"]}},
        "x names ": {"cox": cox | {"terms": ["agee"]}},
        "analyses.x.cox.ridge: ": {"cox": cox | {"ridge": pd.Timedelta(1)}},
    }
    ages = pd.Timestamp(1990, 5, 4), pd.Timedelta(days=9), pd.Period("2024-05"), "fifty", -np.inf, 10**400
    wrong: list[tuple[str, Any, Any]] = [
        *((place, plan | {"analyses": [{"name": "x", **one}]}, sites) for place, one in analyses.items()),
        ("smalest_cell: ", plan | {"smalest_cell": 3}, sites),
        ("concepts.died.codes.1: ", plan | {"concepts": [{**CONCEPTS[4], "codes": [0, 1]}]}, sites),
        ("keys", plan | {("age",): 1}, sites), ("plan", "plan.yaml", sites), ("owner", plan, sites),
        *(
            (f"column sex has values that are none of its codes female, male, such as '{one}'", plan, coded)
            for one in ("unknown", True)
            for coded in [{name: own.assign(sex=one) for name, own in sites.items()}]
        ),
        ("column days", plan, {name: own.assign(days=-1.0) for name, own in sites.items()}),
        *(("number in years", plan, sites | {"site-2": sites["site-2"].assign(age=age)}) for age in ages),
        ("site-1: ", plan, sites | {"site-1": sites["site-1"][["age", "age"]]}),
        *(("dictionary", plan, frames) for frames in ([*sites.values()], sites["site-0"], {"site-0": {"age": [1.0]}})),
    ]  # fmt: skip
    for place, keys, frames in wrong:
        with pytest.raises(OperatorError) as refusal:
            statistics_simulation.simulate(keys, frames, patient="owner" if place == "owner" else None)
        assert place in refusal.value.what
        assert not re.search(r"\bage\b.*mean age", refusal.value.what)  # of a column that is there twice
    two = [{"name": "x", "cox": cox | {"terms": ["sex"]}}, *plan["analyses"]]
    alike = {name: own.assign(sex="female") for name, own in sites.items()}
    found = statistics_simulation.simulate(plan | {"analyses": two, "newton_rounds": 1}, alike)
    assert all("refused" in one for one in found)  # of the second one no hospital has a reason


@pytest.mark.parametrize(("male", "code"), [("m\u00e2le", "ma\u0302le"), ("ma\u0302le", "m\u00e2le")])
def test_accents_are_the_same_however_they_are_composed(male: str, code: str) -> None:
    """In a frame or in the plan they are joined to their letters or not. What is printed has them joined."""
    sex, table = {**CONCEPTS[2], "codes": ["female", code]}, {"name": "x", "table_one": {"columns": ["sex"]}}
    sites = {f"site-{number}": own.replace({"sex": {"male": male}}) for number, own in patients(0).groupby("site")}
    (found,) = statistics_simulation.simulate({"concepts": [sex], "analyses": [table], "smallest_cell": 10}, sites)
    assert [*found["columns"]["sex"]["all"]["codes"]] == ["female", "m\u00e2le"]


@for_each("rows", ({"False": 392, "True": 98}, {"true": 98, "false": 392}, {"no": 392, "yes": 98}, {"0": 392, "1": 98}))
def test_truth_values_are_the_codes_that_mean_them(rows: dict[str, int]) -> None:
    """In any order of the codes. Of other words nobody knows which of them is true."""
    column, table = {**CONCEPTS[2], "codes": [*rows]}, {"name": "x", "table_one": {"columns": ["sex"]}}
    sites = {f"site-{k}": own.assign(sex=own.index % 5 == 0) for k, own in patients(0).groupby("site")}
    (found,) = statistics_simulation.simulate({"concepts": [column], "analyses": [table], "smallest_cell": 10}, sites)
    assert {code: one["rows"] for code, one in found["columns"]["sex"]["all"]["codes"].items()} == rows


@pytest.mark.filterwarnings("error")
def test_a_notebook_is_warned_of_what_a_hospital_would_ask_or_refuse() -> None:
    """Its policy, cut values, times of 0, rows of one patient, codes whose first is an event, counts that are none."""
    cox = {"name": "x", "cox": {"time": "days", "event": "died", "terms": ["age"]}}
    count = {"name": "y", "regression": {"family": "poisson", "outcome": "pressure", "terms": ["days"]}}
    plan = {"analyses": [cox], "smallest_cell": 10, "concepts": CONCEPTS}
    sites = {f"site-{number}": own.assign(id=own.index // 2) for number, own in patients(0).groupby("site")}
    statistics_simulation.simulate(plan, sites, patient="id")
    line = {"family": "gaussian", "outcome": "pressure", "terms": ["sex"]}
    statistics_simulation.simulate(plan | {"analyses": [{**count, "regression": line | {"robust": True}}]}, sites, "id")
    with pytest.warns(UserWarning, match="90 rows of 45 patients .* in y, .*`robust: true`"):
        statistics_simulation.simulate(plan | {"analyses": [{**count, "regression": line}]}, sites, patient="id")
    plan["concepts"] = [{**CONCEPTS[0], "high": 60}, {**CONCEPTS[4], "codes": ["yes", "no"]}, *CONCEPTS[5:]]
    first = {name: own.assign(days=own.days.where(own.index > own.index[0], 0)) for name, own in sites.items()}
    with pytest.warns(UserWarning, match="smallest_cell below 10") as told:
        found, _ = statistics_simulation.simulate(plan | {"smallest_cell": 9, "analyses": [cox, count]}, first)
    words = str(told[0].message)
    assert all(one in words for one in (" of age (", "zero: keep", "patient='id'", "=no is the", "whole", "days is"))
    assert (len(words.splitlines()), found["event"]) == (2 + 5 * len(sites), "died=no")
