"""A statistics plan from its file to the results of all programs: approvals, masks, TLS, no library for training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import yaml
from rich.console import Console

import quickstart.federation
from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import HospitalData
from quickstart.programs import run_to_the_end
from tests.protos.examples import listed
from tests.statistics.federations import CONCEPTS, patients
from tests.statistics.test_regression import FORMULA, NAMES, TERMS, compare, fitted

SITES = ("ahus", "berlin", "cluj", "delft")
ANALYSES: list[dict[str, Any]] = [
    {"name": "who they are", "table_one": {"columns": ["age", "stage"], "by": "sex", "bins": 60}},
    {"name": "death", "regression": {"family": "binomial", "outcome": "died", "terms": TERMS}},
    {
        "name": "admissions",
        "regression": {"family": "poisson", "outcome": "admissions", "terms": ["age"], "exposure": "days"},
    },
    {"name": "hazards", "cox": {"time": "days", "event": "died", "terms": ["age", "sex"]}},
    {"name": "survival", "curve": {"time": "days", "event": "died", "by": "sex", "grid": 50.0, "to": 900.0}},
]


def contract() -> dict[str, Any]:
    """A contract that maps columns with other names and codes to the concepts; the outcome is one of them."""
    number = {"role": "feature", "type": "numeric", "missing": "median"}
    return {
        "format": {"header": True},
        "columns": [
            {"name": "Alter", "concept": "age", "unit": "years", **number},
            {"name": "Laktat", "concept": "lactate", **number},
            {
                "name": "Geschlecht", "role": "feature", "type": "categorical", "codes": ["w", "m"],
                "concept": "sex", "concept_codes": ["female", "male"],
            },
            {
                "name": "stage", "role": "feature", "type": "categorical", "codes": ["III", "II", "I"],
                "concept": "stage",
            },
            {"name": "admissions", "concept": "admissions", **number},
            {"name": "days", "role": "follow-up", "unit": "days", "concept": "days"},
            {"name": "pressure", "concept": "pressure", **number},
            {
                "name": "died", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"],
                "concept": "died",
            },
        ],
    }  # fmt: skip


def hospital_of(folder: Path, site: str, table: pd.DataFrame) -> HospitalData:
    """A hospital's table and contract."""
    own = table.rename(columns={"age": "Alter", "lactate": "Laktat", "sex": "Geschlecht"}).drop(columns="site")
    own["Geschlecht"] = own["Geschlecht"].map({"female": "w", "male": "m"})
    own["died"] = (own["died"] == "yes").astype(int)
    own.to_csv(folder / f"{site}.csv", index=False)
    (folder / f"{site}.yaml").write_text(yaml.safe_dump(contract()))
    return HospitalData(name=site, table=folder / f"{site}.csv", contract=folder / f"{site}.yaml")


def plan_of(*_: object, **__: object) -> dict[str, Any]:
    """The plan without sites and masking."""
    return {
        "kind": "statistics", "study": "answers", "version": 1, "concepts": CONCEPTS, "analyses": ANALYSES,
        "smallest_cell": 10, "rows_per_unknown": 1.0,
    }  # fmt: skip


def rehearsal_of(folder: Path, tables: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """The hospitals of these patients, with their tables in another folder."""
    hospitals = [hospital_of(tables, site, table[table.site == place]) for place, site in enumerate(SITES)]
    monkeypatch.setattr(quickstart.federation, "plan_of", plan_of)
    return Rehearsal(folder=folder, hospitals=hospitals, methods=("federated-prior",), rounds=2, seed=0, is_masked=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_over_tls_with_masks_prints_the_pooled_table_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator and every hospital have the same files, whose numbers are those of one table."""
    table = patients(0)
    rehearsal = rehearsal_of(tmp_path, tmp_path, table, monkeypatch)
    prepare(rehearsal)

    run_to_the_end(rehearsal, Console(quiet=True))

    (path,) = tmp_path.glob("coordinator/runs/*/results.json")
    files = [next((tmp_path / site).glob("state/statistics/*/results.json")) for site in SITES]
    assert {file.read_bytes() for file in files} == {path.read_bytes()}
    pages = [file.with_name("results.html").read_text() for file in (path, *files)]
    assert ["this hospital alone" in page for page in pages] == [False, True, True, True, True]
    assert len(set(pages)) == 5
    for program, config in (("coordinator", "coordinator.yaml"), ("site-agent", "ahus/hospital.yaml")):
        assert "age × sex: male" in command(program, "results", "--config", tmp_path / config)
    found = {one["name"]: one for one in json.loads(path.read_text())["analyses"]}
    assert set(found) == {one["name"] for one in ANALYSES}
    assert not any("refused" in one for one in found.values())
    compare(found["death"], fitted(table, f"event ~ C(site) + {FORMULA}", sm.families.Binomial()), NAMES)
    women = found["who they are"]["columns"]["age"]["sex=female"]
    own = table[table.sex == "female"].dropna().age  # the rows of the models
    assert women["mean"] == pytest.approx(own.mean(), rel=1e-10)
    assert (np.abs(women["quartiles"] - np.quantile(own, [0.25, 0.5, 0.75])) < women["resolution"]).all()
    assert women["deviation"] == pytest.approx(own.std(), rel=1e-9)


def test_no_library_for_training_is_loaded_for_statistics(tmp_path: Path) -> None:
    """The trainer's code for all rounds and for the results runs without PyTorch, scikit-learn and SciPy."""
    hospital_of(tmp_path, "ahus", patients(0).query("site == 0"))
    sites = [*listed(3), {"name": "ahus", "identity": "-".join(["aaaa"] * 8)}]
    (tmp_path / "plan.json").write_text(json.dumps(plan_of() | {"sites": sites}))
    script = (
        "import json, sys; from pathlib import Path; import numpy as np;"
        "from protos.plan.plan import plan_from_json; from protos.wire.messages import Stage;"
        "from site_agent.desk.results.statistics_results import write_results;"
        "from site_agent.trainer.data.contract import read_contract;"
        "from site_agent.trainer.data.tables import read_table;"
        "from site_agent.trainer.requests import Asked;"
        "from site_agent.trainer.statistics.concept_frame import concept_frame;"
        "from site_agent.trainer.statistics.statistics_study import StatisticsStudy;"
        "import site_agent.trainer.worker, site_agent.trainer.before_rounds, site_agent.trainer.data.run_table;"
        "plan = plan_from_json(Path('plan.json').read_bytes());"
        "table = read_table(Path('ahus.csv'), read_contract(Path('ahus.yaml')));"
        "study = StatisticsStudy(plan, concept_frame(plan, table, 'ahus', 10), site='ahus', secret=b'secret');"
        "zeros = np.zeros(plan.tensor.number_count, np.float32);"
        "assert any(study.train(Asked(round=0, stage=Stage.STATISTICS), zeros).scalars);"
        "study.close(Asked(round=3, stage=None), zeros); assert len(study.results()) == 5;"
        "print(sorted({'torch', 'sklearn', 'scipy'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.strip() == "[]"
