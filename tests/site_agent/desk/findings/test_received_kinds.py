"""A received model of dates, lists, notes or images has the same figures here as at its own hospital."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save

from protos.errors import ConfigurationError, DataError, OperatorError
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.export import received_export
from site_agent.desk.export.export_folder import export_model
from site_agent.desk.export.received_export import Intensities, read_received
from site_agent.desk.findings import other_hospitals
from site_agent.desk.findings.cells_again import cells_again
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital, read_hospital
from tests.site_agent.desk.findings.test_other_hospitals import append, change
from tests.site_agent.trainer.after_a_run import RUN
from tests.site_agent.trainer.sites import at_the_end, make_plan, make_site, prepare, run_rounds

ROWS = 90
SIZE = {"height": 6, "width": 8, "channels": 1}
OUTCOME = {"name": "ill", "role": "target", "task": "binary", "positive": [1], "negative": [0]}


def patients() -> list[tuple[date, date | None, list[str], str | None, int]]:
    """Birth, visit, diagnoses, note and outcome; the ill are older, with other codes and words."""
    generator, found = np.random.default_rng(5), []
    for place in range(ROWS):
        ill = place % 2
        born = date(1980 - 20 * ill, 1, 1) + timedelta(days=int(generator.integers(0, 9000)))
        seen = None if place % 17 == 3 else date(2020, 1, 1) + timedelta(days=int(generator.integers(0, 900)))
        codes = list(generator.choice(["I10", "E11.9", "N18.5", "Z99"], int(generator.integers(0, 3))))
        note = None if place % 13 == 5 else f"{'short of breath' if ill else 'walks alone'} day {place % 7}"
        found.append((born, seen, [*codes, *["N18.5"] * (ill and place % 3 > 0)], note, ill))
    return found


def date_columns(pattern: str, **interval: str) -> list[dict[str, Any]]:
    """The two dates, of which the age is counted."""
    age = {"name": "seen", "role": "feature", "type": "date", "pattern": pattern, "missing": "median", **interval}
    return [{"name": "born", "role": "date", "pattern": pattern}, age]


def put(config: Path, header: bool, columns: Sequence[dict[str, Any]], rows: Sequence[Sequence[object]]) -> Path:
    """Another table and contract in a hospital's folder."""
    lines = [[column["name"] for column in columns]] * header + [list(map(str, row)) for row in rows]
    (config.parent / "table.csv").write_text("\n".join("\t".join(line) for line in lines) + "\n")
    contract = {"format": {"header": header, "delimiter": "\t"}, "columns": list(columns)}
    (config.parent / "contract.yaml").write_text(yaml.safe_dump(contract))
    return config


def first(folder: Path) -> Path:
    """A hospital with a header, plain dates, two declared codes, and empty cells."""
    lists = {"name": "codes", "role": "feature", "type": "codes", "codes": ["I10", "N18.5"], "missing": "empty"}
    note = {"name": "note", "role": "feature", "type": "text", "buckets": 16, "missing": "empty"}
    columns = [{"name": "who", "role": "patient"}, *date_columns("%Y-%m-%d", since="born", unit="years"), lists, note]
    rows = [
        (f"P{place:03d}", born, seen or "", ";".join(codes), note_ or "", ill)
        for place, (born, seen, codes, note_, ill) in enumerate(patients())
    ]
    return put(make_site(folder, "ahus", siloed_baseline=False), True, [*columns, OUTCOME], rows)


def second(folder: Path) -> Path:
    """The same patients in another hospital: no header, other order, dates, unit and markers, and codes by hash."""
    lists = {"name": "codes", "role": "feature", "type": "codes", "buckets": 8, "missing": "empty"}
    lists |= {"missing_markers": ["none"]}
    note = {"name": "note", "role": "feature", "type": "text", "buckets": 32, "missing": "empty"}
    note |= {"missing_markers": ["n/a"]}
    dates = date_columns("%d.%m.%Y", until="2030-01-01", unit="days")
    dates[1] |= {"missing_markers": ["unknown"]}
    columns = [note, dates[1], OUTCOME, {"name": "who", "role": "patient"}, lists, dates[0]]
    rows = [
        (
            note_ or "n/a", f"{seen:%d.%m.%Y}" if seen else "unknown", ill, f"P{place:03d}", "; ".join(codes) or "none",
            f"{born:%d.%m.%Y}",
        )
        for place, (born, seen, codes, note_, ill) in enumerate(patients())
    ]  # fmt: skip
    return put(make_site(folder, "berlin", siloed_baseline=False), False, columns, rows)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hospital, Hospital]:
    """The folder with the first hospital's export, and both hospitals after one run."""
    folder = tmp_path_factory.mktemp("kinds")
    plan = make_plan()
    begun = [prepare(make(folder / name), plan) for name, make in (("ahus", first), ("berlin", second))]
    last = run_rounds(plan, [study for _, study, _ in begun])
    for hospital, study, preprocessing in begun:
        study.close(at_the_end(plan), last)
        make_report(hospital, study, preprocessing, RUN)
    export_model(begun[0][0], folder / "handed", RUN, has_onnx=False, name=FEDERATED)
    return folder / "handed", begun[0][0], begun[1][0]


def copied(folder: Path, place: Path) -> Path:
    """A copy of an export, in which a test may do what it likes."""
    place.mkdir()
    for name in ("model.json", "model.safetensors"):
        (place / name).write_bytes((folder / name).read_bytes())
    return place


def test_dates_lists_and_notes_are_read_by_the_contract_of_the_hospital_that_has_them(
    pair: tuple[Path, Hospital, Hospital],
) -> None:
    """The same patients in other spelling have the same figures, which are those of the model at home."""
    handed, there, here = pair

    home: Mapping[str, Any] = site_facts(there, RUN)
    found: Mapping[str, Any] = site_facts(here, RUN, received=[handed])["other_hospitals"][0]  # type: ignore[index, call-overload]

    assert found["left_out"] == {}
    assert found["models"]["received"]["metrics"] == pytest.approx(home[FEDERATED]["metrics"], rel=1e-5)
    assert found["models"]["received"]["metrics"] != found["models"][FEDERATED]["metrics"]


def columns_of(folder: Path, key: str, **changes: Any) -> None:
    """Other facts of the first date, day or list in model.json."""
    facts = json.loads((folder / "model.json").read_text())
    rule = facts[key][0]["rule"] | changes.pop("rule", {})
    facts[key][0] |= changes | {"rule": rule}
    if "interval" in changes:
        facts[key][0]["interval"] = json.loads((folder / "model.json").read_text())[key][0]["interval"]
        facts[key][0]["interval"] |= changes["interval"]
    (folder / "model.json").write_text(json.dumps(facts))


def repeated(folder: Path, key: str, times: int, **rule: Any) -> None:
    """So many more columns like the first one, under other names."""
    (one, *_) = facts = json.loads((folder / "model.json").read_text())[key]
    many = [one | {"name": f"more{place}", "required": False, "rule": one["rule"] | rule} for place in range(times)]
    change(folder, **{key: [*facts, *many]})


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "an interval to a number": (lambda folder: columns_of(folder, "features", interval={"other": "codes"}), "features"),
    "an interval to nothing": (lambda folder: columns_of(folder, "features", interval={"other": "who"}), "features"),
    "a divisor of zero": (lambda folder: columns_of(folder, "features", interval={"divisor": 0.0}), "divisor"),
    "a direction of zero": (lambda folder: columns_of(folder, "features", interval={"sign": 0}), "sign"),
    "a date without an interval": (
        lambda folder: change(
            folder, features=[json.loads((folder / "model.json").read_text())["features"][0] | {"interval": None}]
        ),
        "features.0",
    ),
    "a column twice": (lambda folder: columns_of(folder, "days", name="seen"), "features"),
    "a day under another name": (lambda folder: columns_of(folder, "days", name="who2"), "features"),
    "another separator": (lambda folder: columns_of(folder, "terms", rule={"separator": "|"}), "another type"),
    "a note as a list": (lambda folder: columns_of(folder, "terms", rule={"separator": None}), "another type"),
    "an empty separator": (lambda folder: columns_of(folder, "terms", rule={"separator": ""}), "separator"),
    "no place": (lambda folder: columns_of(folder, "terms", rule={"codes": None}), "terms.0"),
    "endless places": (lambda folder: columns_of(folder, "terms", rule={"codes": None, "buckets": 1 << 40}), "buckets"),
    "many columns of many places": (
        lambda folder: repeated(folder, "terms", 20_000, codes=None, buckets=2048),
        "too much memory for this number of test rows",
    ),
    "a list that is required and not here": (
        lambda folder: repeated_required(folder),
        "column more0: it is missing",
    ),
}


def repeated_required(folder: Path) -> None:
    """A list that this hospital does not have, and that the model cannot miss."""
    repeated(folder, "terms", 1)
    facts = json.loads((folder / "model.json").read_text())["terms"]
    change(folder, terms=[*facts[:-1], facts[-1] | {"required": True}])


@pytest.mark.parametrize("attack", SPOILT)
def test_hostile_columns_are_refused_in_words(
    pair: tuple[Path, Hospital, Hospital], tmp_path: Path, attack: str
) -> None:
    """Each error is the operator's, names what does not fit, and has no cell of a patient."""
    spoil, words = SPOILT[attack]
    folder = copied(pair[0], tmp_path / "handed")
    spoil(folder)

    with pytest.raises(OperatorError) as error:
        site_facts(pair[2], RUN, received=[folder])

    assert words in error.value.what
    assert "nothing was sent" in error.value.consequence
    assert not any(word in error.value.what for word in ("breath", "walks", "N18", "198", "202"))


def test_a_pattern_and_a_marker_of_the_other_hospital_decide_nothing_here(
    pair: tuple[Path, Hospital, Hospital], tmp_path: Path
) -> None:
    """Only this hospital's contract reads its dates. So a pattern of megabytes costs nothing."""
    folder = copied(pair[0], tmp_path / "handed")
    for key in ("features", "days"):
        columns_of(folder, key, rule={"pattern": ["%d" * 1_000_000, "%q"], "missing": []})

    spoilt, whole = site_facts(pair[2], RUN, received=[folder, pair[0]])["other_hospitals"]  # type: ignore[misc]

    assert spoilt["models"] == whole["models"]  # type: ignore[call-overload, index]


ODD: tuple[Any, ...] = (
    None, "", "%", "seen", -1, 0, 3, 1e-308, 1e308, -1e308, 1 << 70, True, [], [None, None], [1e308, -1e308],
    ["", "I10"], {}, ";", "years", "x" * 99,
)  # fmt: skip


def with_an_odd_value(luck: random.Random, facts: Any) -> None:
    """Put another value into one place of these facts, at any depth."""
    while True:
        key = luck.choice(list(facts) if isinstance(facts, dict) else range(len(facts)))
        inner = facts[key]
        if not isinstance(inner, dict | list) or not inner or luck.random() < 0.2:
            facts[key] = copy.deepcopy(luck.choice(ODD))
            return
        facts = inner


@pytest.mark.parametrize("seed", range(3))
def test_odd_facts_of_columns_are_read_or_refused(
    pair: tuple[Path, Hospital, Hospital], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """No other error comes of one or two odd values in the facts of columns, also where rows are then computed."""
    monkeypatch.setattr(received_export, "_MOST_NUMBERS", 1 << 20)
    folder, luck, endings = copied(pair[0], tmp_path / "handed"), random.Random(seed), list[str]()
    whole = (folder / "model.json").read_bytes()
    rows = [{"born": 3000.0, "seen": 18_000.0, "codes": "I10;Z99", "note": "walks"}, dict.fromkeys(("born", "seen"))]
    for _ in range(300):
        facts = json.loads(whole)
        for _ in range(luck.randint(1, 2)):
            with_an_odd_value(luck, facts[luck.choice(["features", "days", "terms"])])
        (folder / "model.json").write_text(json.dumps(facts))
        try:
            export = read_received(folder)
            export.check_rows(len(rows))
            read = [export.description.reader.read(row) for row in rows]
            endings.append("read")
            export.scores(np.array([numbers for numbers, reasons in read if not reasons] or [[0.0]]))
        except ConfigurationError:
            endings.append("refused")

    assert min(endings.count("refused"), endings.count("read")) > 5


@pytest.mark.parametrize("change_table", [lambda lines: lines[1:] + lines[:1], lambda lines: lines[:-40]])
def test_a_table_that_changes_between_two_readings_is_refused(
    pair: tuple[Path, Hospital, Hospital],
    monkeypatch: pytest.MonkeyPatch,
    change_table: Callable[[list[str]], list[str]],
) -> None:
    """A query may return its rows in another order. Then a date would be another patient's."""
    path = Path(pair[2].data.table)
    whole = path.read_text()

    def meanwhile(*words: Any) -> Any:
        path.write_text("\n".join(change_table(whole.splitlines())) + "\n")
        return cells_again(*words)

    monkeypatch.setattr(other_hospitals, "cells_again", meanwhile)
    try:
        with pytest.raises(DataError, match="the table changed between the two readings"):
            site_facts(pair[2], RUN, received=[pair[0]])
    finally:
        path.write_text(whole)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hospital]:
    """A hospital of images after a run, and the folder with its export."""
    folder = tmp_path_factory.mktemp("images")
    config = make_site(folder / "ahus", siloed_baseline=False)
    (config.parent / "scans").mkdir()
    for place in range(ROWS):
        pixels = np.random.default_rng(place).integers(0, 150, (6, 8)) + 80 * (place % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(config.parent / "scans" / f"{place}.png")
    scan = {"name": "scan", "role": "image", "folder": "scans", "image": SIZE, "window": [10, 220]}
    rows = [(f"P{place:03d}", f"{place}.png", place % 2) for place in range(ROWS)]
    put(config, True, [{"name": "who", "role": "patient"}, scan, OUTCOME], rows)
    network = {"name": "convolutional", "blocks": [4], "hidden": [], "image": SIZE}
    plan = make_plan(method={"name": "fedavg"}, architecture=network, outputs=1)
    hospital, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, RUN)
    export_model(hospital, folder / "handed", RUN, has_onnx=False, name=FEDERATED)
    return folder / "handed", read_hospital(config)


def test_a_model_of_images_has_the_figures_of_its_run(images: tuple[Path, Hospital]) -> None:
    """A hospital that receives its own model finds the figures of its run."""
    facts: Mapping[str, Any] = site_facts(images[1], RUN, received=[images[0]])

    models = facts["other_hospitals"][0]["models"]
    assert models["received"]["metrics"] == pytest.approx(facts[FEDERATED]["metrics"], rel=1e-5)


def of_image(**changes: Any) -> Callable[[Path], None]:
    """Other facts of the image in model.json."""
    return lambda folder: change(folder, image=json.loads((folder / "model.json").read_text())["image"] | changes)


FOREIGN: dict[str, tuple[Callable[[Path], None], str]] = {
    "another size": (of_image(width=9), "other images"),
    "another window": (of_image(window=[10, 221]), "other images"),
    "other files": (of_image(highest=65_535), "other images"),
    "another column": (of_image(name="xray"), "other images"),
    "two channels": (of_image(channels=2), "channels"),
    "no image": (lambda folder: change(folder, image=None), "other images"),
    "a mask": (lambda folder: change(folder, task="segmentation"), "'task'"),
}


@pytest.mark.parametrize("misfit", FOREIGN)
def test_a_model_of_other_images_is_refused(images: tuple[Path, Hospital], tmp_path: Path, misfit: str) -> None:
    """Size, window and kind of file are those of this hospital's contract."""
    spoil, words = FOREIGN[misfit]
    folder = copied(images[0], tmp_path / "handed")
    spoil(folder)

    with pytest.raises(OperatorError) as error:
        site_facts(images[1], RUN, received=[folder])

    assert words in error.value.what


def filtered(shape: tuple[int, ...], times: int = 1, **attributes: Any) -> Callable[[Path], None]:
    """Convolutions of the images with filters of this shape."""

    def add(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors |= {"filters": torch.zeros(shape), "starts": torch.zeros(shape[0])}
        (folder / "model.safetensors").write_bytes(save(tensors))
        facts = json.loads((folder / "model.json").read_text())
        made = [{"name": "cast", "inputs": ["values"], "output": "single", "attributes": {"to": "float32"}}]
        made += [{"name": "reshape", "inputs": ["single"], "output": "image", "attributes": {"shape": [-1, 1, 6, 8]}}]
        made += [
            {
                "name": "convolution",
                "inputs": ["image", "filters", "starts"],
                "output": f"filtered{place}",
                "attributes": {"stride": 1, "groups": 1} | attributes,
            }
            for place in range(times)
        ]
        change(folder, operations=[*made, *facts["operations"]])

    return add


COSTLY: dict[str, Callable[[Path], None]] = {
    "wide filters": filtered((1, 1, 2001, 2001)),
    "many filters": filtered((1 << 22, 1, 1, 1)),
    "no stride": filtered((1, 1, 3, 3), stride=0),
    "a negative stride": filtered((1, 1, 3, 3), stride=-1),
    "no group": filtered((1, 1, 3, 3), groups=0),
    "filters of something else": filtered((1, 3, 3, 3)),
    "filters of a line": filtered((1, 1, 3)),
    "many wide filters": filtered((1, 1, 101, 101), 400),
    "more after the result": lambda folder: append(
        folder, {"name": "largest", "inputs": ["more0"], "output": "more1", "attributes": {}}
    ),
}


@pytest.mark.parametrize("attack", COSTLY)
def test_a_costly_filter_is_refused_before_a_value_is_computed(
    images: tuple[Path, Hospital], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """A convolution's copies and multiplications are counted from shapes alone."""

    def computed(*_: object) -> None:
        raise AssertionError("a value was computed")

    folder = copied(images[0], tmp_path / "handed")
    COSTLY[attack](folder)
    monkeypatch.setattr(received_export.ReceivedExport, "_block", computed)

    with pytest.raises(OperatorError, match="too much memory or time"):
        read_received(folder).scores(np.full((9, 48), 50.0))


def test_images_are_computed_in_blocks(images: tuple[Path, Hospital], monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of three images the scores are the same, and each image is in the unit of its file."""
    export = read_received(images[0])
    pixels = np.random.default_rng(1).random((20, 48)).astype(np.float32)
    values = Intensities(pixels, np.arange(19, -1, -1), (10.0, 220.0))
    at_once = export.scores(values)
    per_row, _ = export._costs(values[:1], 0)

    monkeypatch.setattr(received_export, "_MOST_NUMBERS", 3 * per_row)

    np.testing.assert_allclose(export.scores(values), at_once, atol=1e-6)
    np.testing.assert_allclose(values[:1], 10 + 210 * pixels[19:].astype(np.float64))
