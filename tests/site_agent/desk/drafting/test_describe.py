"""A draft describes the table's probable content, marks suspicious parts, and has no data of a patient."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from openpyxl import Workbook

from protos.errors import ConfigurationError, DataError
from protos.plan.concepts import NumberConcept
from protos.plan.documents import LARGEST_DOCUMENT_BYTES, parse_document
from site_agent.desk.drafting.column_draft import ColumnDraft, feature_line, rounded_range
from site_agent.desk.drafting.describe import describe
from site_agent.desk.drafting.format_guess import has_header
from site_agent.desk.examination.examine import examine
from site_agent.desk.examination.examined_columns import unlikely_markers
from site_agent.hospital import Split
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, NumericFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.labelled_files import FileNote
from site_agent.trainer.data.tables import survey_new_rows, survey_table
from tests.for_each import for_each

HEART = Path(__file__).parents[5] / "shared" / "data" / "heart"
needs_heart = pytest.mark.skipif(not HEART.is_dir(), reason="the shared public tables are not here")


def _drafted(path: Path) -> tuple[Contract, str]:
    return _parsed(text := describe(path).text), text


def _parsed(text: str) -> Contract:
    return parse_document(text.encode(), Contract, source="draft.yaml", consequence="Nothing was sent.")


def _made(tmp_path: Path, lines: list[str], name: str = "table.csv", encoding: str = "utf-8") -> Path:
    (path := tmp_path / name).write_bytes("\r\n".join(lines).encode(encoding))
    return path


def test_a_german_export_is_described_as_it_is_written(tmp_path: Path) -> None:
    """Semicolons, decimal commas, an umlaut of windows-1252, German dates, an identifier, codes and an outcome."""
    rows = [f"P{i:03};{20 + i % 60},5;1{i % 9}.03.1950;{'mw'[i % 2]};{'ja' if i % 3 else 'nein'}" for i in range(90)]
    path = _made(tmp_path, ["Patient;Größe;geboren;Geschlecht;outcome", *rows], encoding="windows-1252")
    contract, text = _drafted(path)
    form = contract.format
    assert (form.kind, form.header, form.decimal) == ("text", True, ",")
    assert all(one in text for one in ('delimiter: ";"', "encoding: windows-1252  # "))
    size, born, sex = contract.features
    assert isinstance(size, NumericFeature)
    assert isinstance(born, DateFeature)
    assert isinstance(sex, CategoricalFeature)
    assert (size.range, born.pattern, sex.codes) == ((20, 80), "%d.%m.%Y", ("m", "w"))
    assert (size.missing, born.missing, sex.missing, text.count("missing: refuse")) == (*["refuse"] * 3, 3)
    assert (bool(contract.patient), contract.target.name, survey_table(path, contract).mistakes) == (
        True,
        "outcome",
        (),
    )


def test_no_patient_is_in_a_draft(tmp_path: Path) -> None:
    """Names, notes and words that occur once are not listed, and no range ends at a patient's value."""
    rows = [f"Zebra{i},{['calm', 'tense'][i % 2] if i else 'zebrafever'},{37.3 + i / 7:.4f},{i % 2}" for i in range(40)]
    _, text = _drafted(_made(tmp_path, ["name,mood,temperature,target", *rows]))
    assert "zebra" not in text.lower().replace("zebra0", "zebra")
    assert "1 further words occur only once" in text
    assert not any(value in text for value in ("37.3", "42.8714"))
    notes = [f"Ann Zebra{i % 28} lives alone" for i in range(200)]
    codes = ["never smoked", "other cause of death", "cancer of the lung", "not known at all"] * 6
    kinds = {"a": notes, "b": codes[1:4] * 2, "contact_person": codes, "Name2": codes, "c": codes}
    roles = [dict(feature_line(ColumnDraft(name, ".", cells)).keys)["role"] for name, cells in kinds.items()]
    assert roles == [*["ignore"] * 4, "feature"]


@pytest.mark.parametrize(
    ("values", "markers"),
    [
        *((one, (0,)) for one in ([0, 0, 210, 180, 233, 254, 199, 301], [0, 0, 0])),
        ([71, 68, 80, 999, 75, 62], (999,)),
        *[([34, -9, 51, 62, 27, 48], (-9,)), ([3, -97, 5, -98, 6, 2, -99, 4, 7.5], (-99, -98, -97))],
        *((one, ()) for one in ([0, 0.1, 1.2, 2.3, 0.4, 3.1, 0], [0, 1, 2, 3, 0, 1], [88, 91, 99, 102, 77, 83])),
        *((one, ()) for one in ([-2.5, -1, 0, 1.1, 2.3, 0.4], [5, 6, 7])),
    ],
)
def test_numbers_that_stand_for_not_known_are_pointed_out(values: list[float], markers: tuple[float, ...]) -> None:
    """Zero far below all others, nines far above, a minus where all others are positive; and no ordinary number."""
    assert unlikely_markers(np.array(values, dtype=np.float64)) == markers


@for_each("seed", range(50))
def test_a_drafted_range_holds_every_value_and_ends_at_none(seed: int) -> None:
    """Rounded outward, and a table without negative numbers is given no negative limit."""
    values = np.random.default_rng(seed).lognormal(sigma=3, size=30) * (1 if seed % 2 else -1)
    low, high = rounded_range(float(values.min()), float(values.max()))
    assert low <= values.min() <= values.max() < high
    assert not {low, high} & set(values.tolist())
    assert low >= 0 or seed % 2 == 0
    written = dict(feature_line(ColumnDraft("x", ".", map(repr, (1.8e8 + np.arange(30) / 8).tolist()))).keys)["range"]
    assert json.loads(written) == [179999999.5, 180000004]


def test_a_draft_of_very_many_columns_is_no_larger_than_a_contract(tmp_path: Path) -> None:
    """Its remarks give way, as an expression of each gene needs; the check reads it."""
    (path := tmp_path / "t.csv").write_text(
        "\n".join(",".join(f"{row}{one}" for one in range(5001)) for row in ("g" * 80, 1, 2, 3))
    )
    assert 0.5 < len(describe(path).text.encode()) / LARGEST_DOCUMENT_BYTES < 1


@needs_heart
@pytest.mark.parametrize(
    "file", ["cleveland.data", "hungarian.data", "switzerland.data", "va.data", "sa.data", "faisalabad.csv"]
)
def test_every_heart_study_meets_its_own_draft(file: str) -> None:
    """What is drafted is a contract, 63.0 and 63 are the same number in it, and every cell is as it says."""
    contract, text = _drafted(HEART / file)
    assert [mistake.words for mistake in survey_table(HEART / file, contract).mistakes] == []
    if file == "cleveland.data":
        assert "name: column_1, role: feature, type: numeric, range: [20, 80]" in text
    if file == "faisalabad.csv":
        assert "{name: time, role: follow-up, unit: days}" in text
        time = NumberConcept(kind="number", name="time", definition="Time.", low=0.0, high=900.0, unit="days")
        assert "unit: days, concept: time}" in describe(HEART / file, concepts=[time]).text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((one, "no rows") for one in (b"", b"a,b\n")),
        (b"a,,b\n1,2,3\n", "no first row"),
        (b"a,A\n1,2\n", "1 and 2"),
        (b"a,b\n1,\x00\n", "zero bytes"),
        *((one + b"\n1,2,3\n" * 9, "more cells") for one in (b"id,sex (1=m,2=f),dead", b"id,sex,dead,")),
        (b"id,sex,dead\n" + b"1,2,0\n3,1\n4\n" * 9, "most lines"),
        (b"a,b\n\xc3\xbc,1\n\xc3\xbc,2\n\xfc,3\n", "line 4"),  # one line of another encoding
    ],
)
def test_a_table_that_cannot_be_described_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """Empty, with a name twice or a separator in one, or damaged; a first row with an empty cell can be a patient's."""
    (path := tmp_path / "table.csv").write_bytes(content)
    if words == "no first row":
        assert "no first row of names was found" in describe(path).text
        return
    with pytest.raises(DataError, match=words):
        describe(path)


def _of_dates(tmp_path: Path, cells: list[str]) -> tuple[Contract, str]:
    lines = [f"P{i:03},{cell},{30 + i / 7:.2f},{i % 2}" for i, cell in enumerate(cells)]
    return _drafted(_made(tmp_path, ["patient,seen,age,outcome", *lines]))


def test_dates_that_cannot_be_told_apart_are_reported(tmp_path: Path) -> None:
    """Day first and month first in one column are not read, and dates that could be either are suspicious."""
    clashing = [f"{day:02}/03/2020" for day in range(1, 29)] + [f"03/{day:02}/2020" for day in range(1, 29)]
    either = [f"{1 + day % 12:02}/{1 + day // 12 % 12:02}/2020" for day in range(60)]
    contract, text = _of_dates(tmp_path, clashing)
    assert [feature.name for feature in contract.features] == ["age"]
    assert ("dates in several ways" in text, "month first" in text, "identifier" in text) == (True, True, False)
    _, text = _of_dates(tmp_path, [*(f"{10 + i}.03.2020" for i in range(20)), *["2020-03-07", "2020-03-08"] * 9, "?a"])
    assert ('pattern: ["%Y-%m-%d", "%d.%m.%Y"]' in text, "identifier" in text) == (True, False)
    for sign in ("", "-", " "):  # as SAS, Oracle and people write
        written = [f"{1 + k % 28:02}{sign}{('Jan', 'FEB', 'dec')[k % 3]}{sign}2020" for k in range(60)]
        contract, text = _of_dates(tmp_path, written)
        assert f'pattern: "%d{sign}%b{sign}%Y"' in text
        assert not survey_table(tmp_path / "table.csv", contract).mistakes
    contract, text = _of_dates(tmp_path, either)
    assert isinstance(contract.features[0], DateFeature)
    assert "could also be written as %m/%d/%Y" in text
    assert [name for _, name in survey_table(tmp_path / "table.csv", contract).doubts] == ["seen"]


@pytest.mark.parametrize(
    "name", ["Patientennr", "Patientennummer", "PatNr", "Pat-ID", "NHS_number", "record_id", "pseudonym", "identifier"]
)
def test_the_usual_names_of_an_identifier_are_recognised(tmp_path: Path, name: str) -> None:
    """German and English names get the role patient. If few of them come again, as by mistake, this is said."""
    numbers = (100_000 + np.random.default_rng(0).permutation(900_000)[:300]).tolist()  # 60 come again
    lines = [f"{one},{i % 50 + 30},{i % 2}" for i, one in enumerate([*numbers, *numbers[:60]])]
    few = [f"P-{i // 8:02}{line[6:]}" for i, line in enumerate(lines[:240])]  # patients, with many rows
    for some in (lines, few, lines[:310]):
        contract, text = _drafted(_made(tmp_path, [f"{name},age,outcome", *some]))
        assert [one.name for one in contract.columns if one.role == "patient"] == [name]
        assert "P-" not in text
        assert ("10 of 300 patients have several rows" in text) is (some not in (lines, few))


def test_numbers_with_check_digits_are_those_of_persons() -> None:
    """Whatever the name of the column is, and with blanks: 11 divides the sum of the digits times 10, 9 and so on."""
    checks = {n: -sum(int(one) * (10 - i) for i, one in enumerate(str(n))) % 11 for n in range(943476000, 943476200)}
    texts = [f"{n // 10**6} {n // 1000 % 1000} {n % 1000:03}{check}" for n, check in checks.items() if check < 10]
    assert [ColumnDraft("x", ".", one).is_named_as_identifier for one in (texts, [f"{n}0" for n in checks])] == [1, 0]


@pytest.mark.parametrize("place", ["first", "quoted", "last"])
def test_a_column_without_a_name_is_never_read(tmp_path: Path, place: str) -> None:
    """The index of pandas, the row names of R and a separator at each line's end: a note, and no column is lost."""
    names = {"first": ",age,outcome", "quoted": '"","age","outcome"', "last": "age;outcome;;"}[place]
    row = {"first": "{0},{1},{2}", "quoted": '"{0}",{1},{2}', "last": "{1};{2};;"}[place]
    path = _made(tmp_path, [names, *(row.format(i, 30 + i % 40, i % 2) for i in range(80))])
    contract, text = _drafted(path)
    assert [column.name for column in contract.columns] == ["age", "outcome"]
    numbers = (3, 4) if place == "last" else (1,)
    for number in numbers:
        assert f"# Column number {number} has no name in the header, so it is never read." in text
    survey = survey_table(path, contract)
    assert (survey.mistakes, survey_new_rows(path, contract).mistakes, survey.nameless) == ((), (), numbers)
    notes = [one for one in examine(survey, Split(seed=0)).findings if one.key.startswith("nameless")]
    assert [one.level for one in notes] == ["note"] * len(numbers)
    assert has_header([["", "dose", "height", "y"], *([f"{row}", "1", "2", "yn"[row % 2]] for row in range(9))])
    patients = [["", "Smith", "clotted", "refused", "yes"], *([f"{row}", "Smith", "5", "6", "yes"] for row in range(9))]
    assert not has_header(patients)
    assert has_header([["9" * 5000, "dose", "height"], *([["1", "2", "3"]] * 20)])


@pytest.mark.parametrize(
    ("first", "is_named"),
    [
        *((one, True) for one in ("id,age,2019,1,outcome", "id,age,null,1/1/2020,y", "2018,2019,2020,2021,2022")),
        *((one, False) for one in ("7,clotted,5.5,5.1,1", "7,51,clotted,refused,1", "7,clotted,refused,5.1,1")),
        *((one, False) for one in ("1,2,3,4,5", "id,age,5,2020,outcome")),  # it could be a patient's
    ],
)
def test_numbers_are_names_only_where_no_patient_has_them(tmp_path: Path, first: str, is_named: bool) -> None:
    """Years above measurements are names; a patient with words in place of numbers is not."""
    rows = [f"{row + 8},{50 + row % 40},{row % 7 + 2.5},{row % 9 + 3.5},{row % 2}" for row in range(60)]
    assert f"header: {str(is_named).lower()}" in describe(_made(tmp_path, [first, *rows])).text
    book = Workbook()
    for row in [*[["Export"]] * is_named, *(one.split(",") for one in (first, *rows))]:
        book.active.append([int(cell) if cell.isdecimal() else cell for cell in row])  # type: ignore[union-attr]
    book.save(tmp_path / "table.xlsx")
    if not first.startswith("2018"):
        draft = describe(tmp_path / "table.xlsx")
        assert ("in row 2, and" if is_named else "header: false") in draft.text
        assert draft.rows == 61 - is_named
    with nullcontext() if is_named else pytest.raises(DataError, match="names above"):
        describe(tmp_path / "table.csv", query='SELECT * FROM "table"')


@pytest.mark.parametrize(
    ("first", "below", "query"),
    [
        ("t1,age,died", "T{0},{1},{2}", "*"), ("q1,age,died", "a{0},{1},{2}", "*"),
        ("sex,2019,2020", "m{2}f,{1},{1}.5", "*"), ("age,died", "{1},{2}", "age, died, 1"),
        ("P0000,Kowalski0,1952-07-15,35", "P{3},Kowalski{0},19{1}-07-15,{1}", "*"),
        ("P0000,Kowalski,refused,35", "P{3},Kowalski{3},{0}.5,{1}", "*"),
    ],
)  # fmt: skip
def test_names_of_a_query_that_can_be_a_patient_are_refused(tmp_path: Path, first: str, below: str, query: str) -> None:
    """Names like values are asked about where words beside them, or the query, prove names."""
    path = _made(tmp_path, [first, *(below.format(i % 4, 30 + i % 40, i % 2, f"{i + 1:04}") for i in range(60))])
    with pytest.raises(DataError, match="names above") if first[0] == "P" else nullcontext():
        assert "are they names" in describe(path, query=f'SELECT {query} FROM "table"').text


def test_a_mark_of_the_outcome_empties_no_other_column(tmp_path: Path) -> None:
    """A 9 beside 0 and 1 is drafted as a marker of the outcome, and as one of all columns it is told."""
    rows = [f"{row % 20},{row % 37},{9 if row % 30 == 7 else row % 2}" for row in range(300)]
    contract, text = _drafted(path := _made(tmp_path, ["nodes,crp,died", *rows]))
    features = tuple(one.model_copy(update={"missing": "median"}) for one in contract.features)
    assert (contract.target.missing_markers, "role: target, task: binary, positive: [1]" in text) == (("9",), True)
    for shared, told in (((), []), (("9",), ["emptied:nodes", "emptied:crp"])):
        survey = survey_table(
            path, contract.model_copy(update={"missing_markers": shared, "columns": (*features, contract.target)})
        )
        found = examine(survey, Split(seed=0)).findings
        assert (survey.mistakes, [one.key for one in found if one.key.startswith("emptied")]) == ((), told)
    with pytest.raises(ConfigurationError, match="missing markers"):
        _parsed(text.replace("missing_markers: [9]", "missing_markers: [1]"))
    fields = ["id,f,text,Id,", 'died,f,radio,Died,"0, no | 1, yes | 2, late | 9, ?"']
    head = "field_name,form_name,field_type,field_label,select_choices_or_calculations"
    dictionary = _made(tmp_path, [head, *fields], "dictionary.csv")
    for codes in ("01", "012"):  # nor is it lost beside what the file calls missing, or one of the labelled codes
        rows = [f"{row},{row % 37},{[*codes, '9', 'NI'][row % (len(codes) + 2)]}" for row in range(300)]
        path = _made(tmp_path, ["id,age,died", *rows])
        target = (contract := _parsed(describe(path, dictionary=dictionary).text)).target
        assert (set(target.missing_markers), survey_table(path, contract).mistakes) == ({"9", "NI"}, ())


def test_a_unit_in_a_name_is_drafted_if_it_is_hardly_anything_else() -> None:
    """In brackets or at the end. Pack years are no years, and mg can be magnesium."""
    units = {"crea_mg_dl": "mg/dl", "Hb (g/dL)": "g/dL", "sbp_mmHg": "mmHg", "PLT [10^9/l]": "10^9/l", "EF (%)": "%"}
    others = ("pack_years", "serum_mg", "score (MS)", "height (m)", "bp_min", "tooth_u_l", "smoker (ever)", "kg")
    for name, unit in {**units, **dict.fromkeys(others)}.items():
        line = feature_line(ColumnDraft(name, ".", [f"{one}.5" for one in range(40)]))
        assert (dict(line.keys).get("unit"), "unit: add" in str(line.words)) == (unit and f'"{unit}"', unit is None)
    labels = {one: FileNote(label=f"Level [{one}]").written_unit for one in ("cmH2O", "s", "L", "mOsm/kg", "0-10")}
    assert labels == {one: one for one in labels} | {"0-10": ""}


def test_a_time_of_admission_is_known_before_the_outcome() -> None:
    """As admittime of MIMIC; but how long a stay was, or when it ended, is not."""
    names = ("admittime", "Admission_Time", "ed_intime", "survtime", "dischtime", "time")
    told = [str(feature_line(ColumnDraft(one, ".", ["2020-01-31", "2020-02-01"] * 9)).words) for one in names]
    assert ["only after" in one for one in told] == [False] * 3 + [True] * 3


@for_each("number", (1_700_000_000, 1_700_000_000_000, 45_000))
def test_moments_as_numbers_are_asked_about(number: int) -> None:
    """Seconds and milliseconds since 1970, and days; but no number between, and no amount of this size."""
    columns = [ColumnDraft("x", ".", [f"{at + 17 * i}" for i in range(40)]) for at in (number, number * 100, 0)]
    assert ["since 1970" in str(feature_line(one).words) for one in columns] == [True, False, False]
    counted = [ColumnDraft(name, ".", [f"{21915 + i % 30}" for i in range(90)]) for name in ("ADMDT", "PLT")]  # by SAS
    assert ["since 1970" in str(feature_line(one).words) for one in counted] == [True, False]


def test_numbers_of_which_some_are_text_are_no_codes(tmp_path: Path) -> None:
    """As if every seventh has a decimal comma, or a dash; and numbers with units, and dates with French months."""
    mark = {i: "," if i % 7 == 0 else "." for i in range(210)}
    rows = [f"1{m}{i % 9};{i}{m}5;{'x' if m == ',' else ''}{i}.5;{i % 3}a;{i % 2}" for i, m in mark.items()]
    units = [f"{10 + i % 5} g/dl;{i % 9}%;{100 + i % 80}/{60 + i % 50};{i % 28 + 1}MAI20{i % 50:02};" for i in mark]
    rows = list(map("".join, zip(units, rows, strict=True)))
    _, text = _drafted(_made(tmp_path, ["hb;ef;pressure;day;few;many;dash;code;outcome", *rows]))
    assert text.count("it is never read\n  # suspicious: most cells begin with a digit") == 7
    assert {*feature_line(ColumnDraft("x", ".", ["0000-00-00"] * 99 + ["2024-03-01"] * 2)).keys} >= {("type", "date")}
    kinds = (("a_concept_id", ["0", "85"] * 9), ("x", ["0,3", "1,2"] * 9), ("age", [f"1900-02-1{i}" for i in range(9)]))
    coded = ("1-MAI-2024 2-MAI-2024", "2024-01 2024-02", "2024-02-03 x", "kg lb", "1-2 3-Mar", "5 9e+17", "1'234 980")
    pairs = (*kinds, ("at", [*kinds[2][1], "infinity"]), *(("x", one.split() * 9) for one in coded))
    lines = [feature_line(ColumnDraft(name, ".", cells)) for name, cells in pairs]
    assert all(any("suspicious" in word for word in line.words) for line in lines)
    cells = ([*(f"{one} {i}" for i in range(99)), "2024-03-01"] for one in ("nurse", "0"))  # one date among notes
    noted, dosed = (str(feature_line(ColumnDraft("x", ".", one)).words) for one in cells)
    assert ("suspicious" in noted, "units" in dosed) == (False, True)
    ranked = [one.split() * 9 for one in ("1:40 1:80 <1:10", "agree disagree strongly-agree", "- + ++", "1/1 1/2 2/2")]
    assert ["ordinal" in str(feature_line(ColumnDraft("x", ".", one)).words) for one in ranked] == [1, 1, 1, 0]
    periods = (["1977-1989", "2000-2002"], ["2020/21", "2021/22"], ["Apr", "May"])  # and no days
    assert not any("suspicious" in str(feature_line(ColumnDraft("x", ".", one * 9)).words) for one in periods)
    assert feature_line(ColumnDraft("größe", ".", ["ä", "ö"] * 9)).text.count("ö") == 2
    assert 'codes: ["0a", "1a", "2a"]' in text


def test_a_first_sheet_with_a_note_is_no_table(tmp_path: Path) -> None:
    """The error names the sheet and the other ones, and the named sheet is described."""
    with pd.ExcelWriter(path := tmp_path / "table.xlsx") as book:
        pd.DataFrame(["Please use the sheet Data"]).to_excel(book, sheet_name="Notes", index=False, header=False)
        pd.DataFrame({"age": range(30, 70), "outcome": [0, 1] * 20}).to_excel(book, sheet_name="Data", index=False)
    with pytest.raises(DataError, match="--sheet NAME"):
        describe(path)
    assert describe(path, sheet="Data").rows == 40
