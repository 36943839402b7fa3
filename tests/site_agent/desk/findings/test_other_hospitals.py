"""The row "client i" of FENDA-FL: a clinic's own model is handed over and tested at another clinic, and only there."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save
from sklearn.metrics import roc_auc_score

from audit.reading.log_report import in_words
from protos.errors import ConfigurationError, OperatorError
from site_agent.desk.applied import AppliedModel
from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.gain import FEDERATED, SILOED
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.export import received_export
from site_agent.desk.export.export_folder import export_model
from site_agent.desk.export.received_export import read_received
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_lines, report_page
from site_agent.desk.results import simple_models
from site_agent.desk.results.run_report import make_report
from site_agent.desk.results.saved_model import load_model
from site_agent.desk.use.new_rows import read_new_rows
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import audit_log_path
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.splits import split_rows
from site_agent.trainer.data.tables import read_table
from tests.fuzz.mutator import mutated
from tests.protos.examples import TWO_EXTRACTORS
from tests.site_agent.conftest import RESAMPLES
from tests.site_agent.desk.terminal import typed
from tests.site_agent.trainer.after_a_run import RUN, site_after_run
from tests.site_agent.trainer.sites import LOOSE_POLICY, Table, at_the_end, make_plan, prepare, run_rounds

HEART = Path(__file__).parents[4] / "deploy" / "data" / "uci-heart"
CLINICS = ("hungarian", "cleveland")
COMMON = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "thal"]
Command = Callable[..., tuple[int, str]]


def clinic(folder: Path, name: str) -> Path:
    """The hospital.yaml of a heart clinic with its table and contract."""
    folder.mkdir()
    shutil.copy(HEART / f"{name}.data", folder / "table.csv")
    shutil.copy(HEART / f"{name}.yaml", folder / "contract.yaml")
    data = {"table": "table.csv", "contract": "contract.yaml", "split": {"seed": 3}, "unaccepted_warnings": "tell"}
    training = {"simple_models": True, "siloed_baseline": True, "draws": "published"}
    hospital = {"site": name, "state": "state", "policy": LOOSE_POLICY, "data": data, "training": training}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(hospital))
    return folder / "hospital.yaml"


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clinics after one run of FENDA-FL, and what each exported of its network trained alone."""
    folder = tmp_path_factory.mktemp("clinics")
    sites = [{"name": name, "identity": "-".join(["aaa" + name[0]] * 8)} for name in CLINICS]
    plan = make_plan(method={"name": "fenda-fl"}, architecture=TWO_EXTRACTORS, columns=COMMON, sites=sites)
    begun = [prepare(clinic(folder / name, name), plan) for name in CLINICS]
    last = run_rounds(plan, [study for _, study, _ in begun])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simple_models, "_TREES", 10)
        for hospital, study, preprocessing in begun:
            study.close(at_the_end(plan), last)
            make_report(hospital, study, preprocessing, RUN)
    for hospital, _, _ in begun:
        export_model(hospital, folder / f"from-{hospital.site}", RUN, has_onnx=False, name=SILOED)
    return folder


@pytest.fixture
def handed(clinics: Path, tmp_path: Path) -> Path:
    """A copy of Budapest's folder, in which a test may do what it likes."""
    return Path(shutil.copytree(clinics / "from-hungarian", tmp_path / "from-hungarian"))


@pytest.fixture
def terminal(clinics: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A terminal of a clinic: exit status, and what was written."""

    def run(site: str, command: str, *words: object) -> tuple[int, str]:
        config = ["--config", str(clinics / site / "hospital.yaml")]
        return typed(capfd, monkeypatch, command, *config, *words)

    return run


def cleveland(clinics: Path) -> Hospital:
    """The clinic that receives."""
    return read_hospital(clinics / "cleveland" / "hospital.yaml")


def computed_directly(clinics: Path, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What Budapest's model in its own state says of Cleveland's test rows, read under Budapest's contract."""
    here, there = cleveland(clinics), read_hospital(clinics / "hungarian" / "hospital.yaml")
    contract = read_contract(Path(here.data.contract))
    rows = split_rows(read_table(Path(here.data.table), contract), here.data.split).test
    model = load_model(there.state_path, RUN, name)
    new = read_new_rows(Path(here.data.table), model.preprocessing.contract, None)
    assert not new.left_out
    return AppliedModel(model, RUN, there.training).scores(model.encode(new.table, rows))


def test_a_clinics_own_model_has_the_figures_that_it_has_when_computed_directly(clinics: Path) -> None:
    """Scikit-learn agrees on the same scores, and every model stands on the same rows and resamples."""
    hospital, kept = cleveland(clinics), scored_rows(clinics / "cleveland" / "state", RUN)

    facts: Mapping[str, Any] = site_facts(hospital, RUN, received=[clinics / "from-hungarian"])
    found = facts["other_hospitals"][0]

    scores = computed_directly(clinics, SILOED)
    wanted = compare(kept.test, {"received": scores}, 20_261_123, RESAMPLES)
    assert found["rows"] == len(kept.test)
    assert found["left_out"] == {}
    assert found["models"]["received"]["metrics"]["auroc"] == roc_auc_score(kept.test.labels, scores)
    assert found["models"]["received"]["intervals"]["auroc"] == wanted.intervals("received")["auroc"]
    assert found["models"][FEDERATED]["metrics"] == facts[FEDERATED]["metrics"]
    assert set(found["models"]) == {FEDERATED, SILOED, facts["best_local"], "received"}
    assert found["differences"][SILOED]["auroc"]["difference"] == pytest.approx(
        facts[SILOED]["metrics"]["auroc"] - roc_auc_score(kept.test.labels, scores)
    )
    assert any(line.startswith("  received: from-hungarian") for line in report_lines(facts))
    assert "trained alone (siloed), minus the received" in report_page(facts)


@pytest.mark.parametrize("name", ["random_forest", "gradient_boosting", "logistic_regression", FEDERATED])
def test_trees_and_lines_arrive_whole(clinics: Path, tmp_path: Path, name: str) -> None:
    """Every kind of saved model gives the scores that it gives at home."""
    there = read_hospital(clinics / "hungarian" / "hospital.yaml")
    export_model(there, tmp_path / "handed", RUN, has_onnx=False, name=name)
    kept = scored_rows(clinics / "cleveland" / "state", RUN)

    facts: Mapping[str, Any] = site_facts(cleveland(clinics), RUN, received=[tmp_path / "handed"])

    metrics = facts["other_hospitals"][0]["models"]["received"]["metrics"]
    assert metrics["brier"] == pytest.approx(kept.test.evaluate(computed_directly(clinics, name))["brier"])


@pytest.mark.parametrize("table", ["wine", "diabetes"])
def test_classes_and_numbers_arrive_in_their_own_order_and_unit(tmp_path: Path, table: Table) -> None:
    """A hospital that receives its own model finds the figures of its run, also with its classes turned."""
    hospital = site_after_run(tmp_path / "site", table=table, siloed_baseline=False)
    export_model(hospital, tmp_path / "own", RUN, has_onnx=False, name=FEDERATED)
    export_model(hospital, tmp_path / "turned", RUN, has_onnx=False, name=FEDERATED)
    if table == "wine":
        turned_classes(tmp_path / "turned")

    facts: Mapping[str, Any] = site_facts(hospital, RUN, received=[tmp_path / "own", tmp_path / "turned"])

    for found in facts["other_hospitals"]:
        models = found["models"]
        assert models["received"]["metrics"] == pytest.approx(models[FEDERATED]["metrics"], rel=1e-5)
        assert models[FEDERATED]["metrics"] == facts[FEDERATED]["metrics"]


def turned_classes(folder: Path) -> None:
    """The same model, with its classes and its scores in the opposite order."""
    facts = json.loads((folder / "model.json").read_text())
    turn = {"name": "gather", "inputs": [facts["result"]], "output": "turned", "attributes": {"places": [2, 1, 0]}}
    change(folder, classes=facts["classes"][::-1], operations=[*facts["operations"], turn], result="turned")


def test_handing_over_is_an_act_of_a_person_on_record(clinics: Path, tmp_path: Path, terminal: Command) -> None:
    """Export names model, recipient and person in the audit log; the other clinic's report takes the folder."""
    place, figures = tmp_path / "handed", tmp_path / "figures.json"
    words = ("--run", RUN, "--model", "siloed", "--to", "cleveland, for client i", "--by", "A. Jones")

    alone, _ = terminal("hungarian", "export", "--output", place, "--by", "A. Jones")
    status, said = terminal("hungarian", "export", "--output", place, *words)
    reported, shown = terminal("cleveland", "report", "--with", place, "--json", figures)

    log = audit_log_path(clinics / "hungarian" / "state")
    records = [json.loads(line)["facts"] for line in log.read_text().splitlines()]
    handed = [record for record in records if record.get("event") == "model_handed_over"]
    assert (alone, status, reported) == (2, 0, 0)
    assert "Neither masking nor differential privacy protects an exported model" in said
    assert [(one["model"], one["recipient"], one["by"]) for one in handed] == [
        ("siloed", "cleveland, for client i", "A. Jones")
    ]
    assert "A. Jones exported the model siloed" in in_words(handed[0])
    assert "received: handed" in shown
    assert json.loads(figures.read_text())["other_hospitals"][0]["name"] == "handed"


def test_nothing_is_written_if_the_act_cannot_be_recorded(clinics: Path, tmp_path: Path) -> None:
    """The record is written before the first file."""
    there = read_hospital(clinics / "hungarian" / "hospital.yaml")

    def full(*facts: str) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        export_model(there, tmp_path / "handed", RUN, has_onnx=False, name=SILOED, record=full)

    assert not (tmp_path / "handed").exists()


def change(folder: Path, **changes: Any) -> None:
    """Write other facts into model.json."""
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def column(folder: Path, feature: str, **changes: Any) -> None:
    """Write other facts of a feature into model.json."""
    features = json.loads((folder / "model.json").read_text())["features"]
    for one in features:
        if one["name"] == feature:
            rule = one["rule"] | changes.pop("rule", {})
            one.update(changes, rule=rule)
    change(folder, features=features)


def refusal(clinics: Path, folder: Path) -> str:
    """The error of a report with this folder, which has three sentences or more and is the operator's."""
    with pytest.raises(OperatorError) as error:
        site_facts(cleveland(clinics), RUN, received=[folder])
    assert "nothing was sent" in error.value.consequence
    assert error.value.remedy.endswith(".")
    return error.value.what


def test_a_column_that_this_hospital_lacks_is_refused_by_its_name(clinics: Path) -> None:
    """Cleveland's model requires ca, which Budapest does not record."""
    here = read_hospital(clinics / "hungarian" / "hospital.yaml")

    with pytest.raises(ConfigurationError, match="column ca: it is missing"):
        site_facts(here, RUN, received=[clinics / "from-cleveland"])


def test_a_column_that_the_model_can_miss_is_missing(clinics: Path, handed: Path) -> None:
    """The model then uses its own median, as where a cell is empty."""
    column(handed, "chol", name="chol-of-budapest", required=False)

    facts: Mapping[str, Any] = site_facts(cleveland(clinics), RUN, received=[handed, clinics / "from-hungarian"])

    without, whole = (one["models"]["received"]["metrics"] for one in facts["other_hospitals"])
    assert facts["other_hospitals"][0]["left_out"] == {}
    assert without["brier"] != whole["brier"]


def test_an_error_never_has_a_patients_value(clinics: Path, handed: Path) -> None:
    """The other hospital chooses the range, so it would choose which patient's value is in a message."""
    column(handed, "age", rule={"range": [1000.0, 2000.0]})

    assert refusal(clinics, handed).endswith("column age has a value that its contract does not allow.")


def test_rows_with_other_codes_or_numbers_than_the_model_allows_are_left_out(clinics: Path, handed: Path) -> None:
    """All models then have their figures on the rows that are left, and the report counts the others."""
    kept = scored_rows(clinics / "cleveland" / "state", RUN)
    column(handed, "age", rule={"range": [0, 60]})
    column(handed, "thal", rule={"codes": ["3", "6", "8"]})

    facts: Mapping[str, Any] = site_facts(cleveland(clinics), RUN, received=[handed])

    found = facts["other_hospitals"][0]
    assert set(found["left_out"]) == {"column age", "column thal"}
    assert 0 < found["rows"] < len(kept.test)
    assert found["models"][FEDERATED]["metrics"] != facts[FEDERATED]["metrics"]
    assert f"tested on {found['rows']} test rows. The other test rows were not used" in " ".join(report_lines(facts))


MISFITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "another plan": (lambda folder: change(folder, plan_digest="00" * 32), "another plan than the run"),
    "another task": (lambda folder: change(folder, task="regression"), "another kind of outcome"),
    "swapped classes": (lambda folder: change(folder, classes=["disease", "no disease"]), "without the outcome"),
    "another question": (lambda folder: change(folder, outcome={"unit": None, "answers": "other"}), "same question"),
    "another unit": (lambda folder: column(folder, "chol", unit="mmol/l"), "in mmol/l. Here it is in mg/dl"),
    "another kind": (
        lambda folder: column(folder, "sex", rule={"kind": "number"}),
        "another type",
    ),
    "no row left": (
        lambda folder: column(folder, "age", rule={"range": [200, 300]}),
        "fits no test row of",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_model_that_does_not_fit_is_refused_in_words(clinics: Path, handed: Path, misfit: str) -> None:
    """Plan, outcome, units and kinds of columns are those of this hospital's contract."""
    spoil, words = MISFITS[misfit]
    spoil(handed)

    assert words in refusal(clinics, handed)


def append(folder: Path, *steps: dict[str, Any]) -> None:
    """Add operations before the result."""
    facts = json.loads((folder / "model.json").read_text())
    last = [{"name": "add", "inputs": [facts["result"]] * 2, "output": "more0", "attributes": {}}]
    change(folder, operations=[*facts["operations"], *last, *steps], result=steps[-1]["output"] if steps else "more0")


def doubled(folder: Path) -> None:
    """Sixty concatenations, each of which doubles the columns."""
    names = [f"more{place}" for place in range(61)]
    append(folder, *(
        {"name": "concatenate", "inputs": [before, before], "output": after, "attributes": {"axis": 1}}
        for before, after in pairwise(names)
    ))  # fmt: skip


def step(name: str, **attributes: Any) -> Callable[[Path], None]:
    """One more operation on the result."""
    return lambda folder: append(
        folder, {"name": name, "inputs": ["more0"], "output": "more1", "attributes": attributes}
    )


def filtered(folder: Path) -> None:
    """A right convolution of one number, as an export of images has it."""
    tensors = load_file(folder / "model.safetensors") | {
        "weight": torch.ones(1, 1, 1, 1, dtype=torch.float64),
        "bias": torch.zeros(1, dtype=torch.float64),
    }
    (folder / "model.safetensors").write_bytes(save(tensors))
    facts = json.loads((folder / "model.json").read_text())
    steps = [
        ("reshape", [facts["result"]], {"shape": [-1, 1, 1, 1]}),
        ("convolution", ["more0", "weight", "bias"], {"stride": 1, "groups": 1}),
        ("reshape", ["more1"], {"shape": [-1, 1]}),
    ]
    more = [
        {"name": name, "inputs": inputs, "output": f"more{place}", "attributes": attributes}
        for place, (name, inputs, attributes) in enumerate(steps)
    ]
    change(folder, operations=[*facts["operations"], *more], result="more2")


def endless(folder: Path) -> None:
    """A tree of two nodes, each of which is the child of the other."""
    tensors = load_file(folder / "model.safetensors") | {
        "roots": torch.zeros(1, dtype=torch.int64),
        "columns": torch.zeros(2, dtype=torch.int64),
        "thresholds": torch.zeros(2),
        "children": torch.tensor([[1, 1], [0, 0]]),
        "leaves": torch.zeros(2, 1, dtype=torch.float64),
    }
    (folder / "model.safetensors").write_bytes(save(tensors))
    inputs = ["more0", "roots", "columns", "thresholds", "children", "leaves"]
    append(folder, {"name": "forest", "inputs": inputs, "output": "more1", "attributes": {}})


def linked(name: str) -> Callable[[Path], None]:
    """A file of the folder is a link to a right one outside."""

    def link(folder: Path) -> None:
        moved = (folder / name).rename(folder.parent / f"moved-{name}")
        (folder / name).symlink_to(moved)

    return link


def piped(folder: Path) -> None:
    """A pipe that nobody writes to, at which a reader would wait."""
    (folder / "model.json").unlink()
    os.mkfifo(folder / "model.json")


def grown(name: str, size: int) -> Callable[[Path], None]:
    """A file that says it is as large, without using the disk."""
    return lambda folder: os.truncate(folder / name, size)


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "code": (lambda folder: change(folder, module={"file": "own_network.py", "sha256": "00"}), "'module'"),
    "an image": (lambda folder: change(folder, image={"name": "scan"}), "'image.channels'"),
    "one more key": (lambda folder: change(folder, path="/etc/passwd"), "'path'"),
    "another format": (lambda folder: change(folder, format="global-layers export 99"), "'format'"),
    "deep": (lambda folder: (folder / "model.json").write_text("[" * 100_000) and None, "model.json"),
    "an operation that nobody has": (step("eval"), "do not fit"),
    "a type by its name": (step("cast", to="load"), "do not fit"),
    "a filter of images": (filtered, "do not fit"),
    "doubling": (doubled, "too much memory"),
    "a shape beyond memory": (step("reshape", shape=[1 << 62]), "too much memory"),
    "a negative slice": (step("slice", axis=1, start=-9, stop=1 << 62), "do not fit"),
    "no probabilities": (lambda folder: append(folder, *[
        {"name": "add", "inputs": [f"more{place}"] * 2, "output": f"more{place + 1}", "attributes": {}}
        for place in range(20)
    ]), "do not fit"),
    "an endless tree": (endless, "do not fit"),
    "a linked description": (linked("model.json"), "cannot be read"),
    "linked tensors": (linked("model.safetensors"), "cannot be read"),
    "a pipe": (piped, "not a regular file"),
    "a huge description": (grown("model.json", 1 << 34), "bytes. At most"),
    "huge tensors": (grown("model.safetensors", 1 << 40), "bytes. At most"),
    "no tensors": (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read"),
    "cut tensors": (grown("model.safetensors", 900), "damaged"),
    "an empty folder": (lambda folder: shutil.rmtree(folder), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_folder_is_refused_in_three_sentences(clinics: Path, handed: Path, attack: str) -> None:
    """Whatever the folder has, nothing is run, followed or waited for, and memory stays bounded."""
    spoil, words = HOSTILE[attack]
    spoil(handed)

    assert words in refusal(clinics, handed)


def trees(roots: torch.Tensor, children: torch.Tensor, *, twice: bool = False) -> Callable[[Path], None]:
    """A forest whose last node is the one leaf; or two forests."""

    def add(folder: Path) -> None:
        nodes = len(children)
        thresholds = torch.zeros(nodes)
        thresholds[-1] = torch.inf
        tensors = load_file(folder / "model.safetensors") | {
            "roots": roots,
            "columns": torch.zeros(nodes, dtype=torch.int64),
            "thresholds": thresholds,
            "children": children,
            "leaves": torch.zeros(nodes, 1, dtype=torch.float64),
        }
        (folder / "model.safetensors").write_bytes(save(tensors))
        inputs = ["more0", "roots", "columns", "thresholds", "children", "leaves"]
        append(folder, *(
            {"name": "forest", "inputs": inputs, "output": f"more{place + 1}", "attributes": {}}
            for place in range(1 + twice)
        ))  # fmt: skip

    return add


def chain(nodes: int) -> torch.Tensor:
    """Each node's left child is the next node; its right child is the leaf at the end."""
    following = torch.arange(1, nodes + 1).clamp(max=nodes - 1)
    return torch.stack([following, torch.full_like(following, nodes - 1)], dim=1)


def with_products(shapes: tuple[tuple[int, ...], tuple[int, ...]], many: int) -> Callable[[Path], None]:
    """Many products of the same two arrays."""

    def add(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors |= {name: torch.zeros(shape) for name, shape in zip(("left", "right"), shapes, strict=True)}
        (folder / "model.safetensors").write_bytes(save(tensors))
        append(folder, *(
            {"name": "matmul", "inputs": ["left", "right"], "output": f"more{place + 1}", "attributes": {}}
            for place in range(many)
        ))  # fmt: skip

    return add


COSTLY: dict[str, Callable[[Path], None]] = {
    "a path of a million nodes": trees(torch.zeros(1, dtype=torch.int64), chain(1 << 20)),
    "paths that meet": trees(torch.zeros(1, dtype=torch.int64), chain(4)[:, [0, 0]]),
    "a square of roots": trees(torch.zeros(1, 1 << 20, dtype=torch.int64), torch.tensor([[0, 0]])),
    "two forests": trees(torch.zeros(1, dtype=torch.int64), torch.tensor([[0, 0]]), twice=True),
    "stacks that are repeated": with_products(((1000, 1, 1, 1000), (1000, 1000, 1)), 1),
    "long products": with_products(((1, 1 << 23), (1 << 23, 1)), 5_000),
    "one name for two values": lambda folder: append(
        folder, {"name": "exp", "inputs": ["more0"], "output": "more0", "attributes": {}}
    ),
}


@pytest.mark.parametrize("attack", COSTLY)
def test_a_costly_model_is_refused_before_a_value_is_computed(
    handed: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """A small folder could keep the command busy for days, or fill the memory."""

    def computed(*_: object) -> None:
        raise AssertionError("a value was computed")

    COSTLY[attack](handed)
    monkeypatch.setattr(received_export.ReceivedExport, "_block", computed)
    if attack == "long products":  # a sixteenth of the products that the whole limit needs
        monkeypatch.setattr(received_export, "_MOST_WORK", received_export._MOST_WORK >> 4)

    with pytest.raises(ConfigurationError, match="too much memory or time"):
        read_received(handed).scores(np.full((9, 12), 50.0))


def test_code_in_the_folder_is_never_run(clinics: Path, handed: Path, tmp_path: Path) -> None:
    """Loaders, an own network and ONNX in a folder stay unread."""
    for name in ("loader.py", "onnx_loader.py", "own_network.py", "__init__.py", "model.onnx"):
        (handed / name).write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")

    facts: Mapping[str, Any] = site_facts(cleveland(clinics), RUN, received=[handed])

    assert not (tmp_path / "ran").exists()
    assert facts["other_hospitals"][0]["models"]["received"]["metrics"]["auroc"] is not None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_fuzzed_folder_is_read_or_refused(
    handed: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    """No other error comes of a changed byte or word, also where the model is then computed."""
    monkeypatch.setattr(received_export, "_MOST_NUMBERS", 1 << 20)
    luck, whole = random.Random(seed), (handed / name).read_bytes()
    values = np.random.default_rng(seed).normal(50, 20, (9, 12))
    endings = []
    for _ in range(60):
        (handed / name).write_bytes(mutated(luck, [whole], is_text=name == "model.json"))
        try:
            read_received(handed).scores(values)
            endings.append("read")
        except ConfigurationError:
            endings.append("refused")

    assert endings.count("refused") > 10


def test_shapes_are_known_before_values(handed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small blocks of rows the scores are the same."""
    export = read_received(handed)
    values = np.random.default_rng(1).normal(50, 20, (40, 12))
    at_once = export.scores(values)
    per_row, _ = export._costs(values[:1], 0)

    monkeypatch.setattr(received_export, "_MOST_NUMBERS", 3 * per_row)
    in_blocks = export.scores(values)
    monkeypatch.setattr(received_export, "_MOST_NUMBERS", per_row // 3)

    np.testing.assert_allclose(in_blocks, at_once, atol=1e-6)
    with pytest.raises(ConfigurationError, match="too much memory"):
        export.scores(values)
