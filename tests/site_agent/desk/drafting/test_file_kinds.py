"""A file whose kind is not read is named, and a draft takes what REDCap's dictionary says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from protos.errors import DataError
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.columns import CategoricalFeature, NumericFeature
from site_agent.trainer.data.file_kinds import kind_of
from site_agent.trainer.data.tables import read_table, survey_table
from tests.site_agent.trainer.data.conftest import contract_from

STARTS: Final = {
    "table.mdb": b"\0\1\0\0Standard Jet DB\0",
    "table.accdb": b"\0\1\0\0Standard ACE DB\0",
    "table.ods": b"PK\3\4" + bytes(22) + b"\x08\0\0\0mimetypeapplication/vnd.oasis.opendocument.spreadsheet",
    "table.rtf": b"{\\rtf1\\ansi a,b\n1,2\n",
    "table.pdf": b"%PDF-1.7\na,b\n1,2\n",
    "table.xls": b"<html><table><tr><td>1</td></tr></table></html>",
    "table.json": b'[{"patient": 1, "age": 50},\n {"patient": 2, "age": 51}]\n',
    "table.ndjson": b'{"resourceType": "Patient", "id": "1"}\n{"resourceType": "Patient", "id": "2"}\n',
    "table.gz": b"\x1f\x8b\x08\0",
    "table.numbers": b"PK\3\4" + bytes(26) + b"Index/Document.iwa",
    "locked.parquet": b"PARE" + bytes(20) + b"PARE",
    "table.zip": b"PK\3\4" + bytes(26) + b"table.csv",
    "table.hl7": b"MSH|^~\\&|LAB\rPID|1||2\r",
    "table.db": b"SQLite format 3\0" + bytes(84),
    "table.duckdb": bytes(8) + b"DUCK",
    "table.doc": bytes.fromhex("d0cf11e0a1b11ae1") + bytes(99),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_kind_that_is_not_read_is_named(tmp_path: Path, name: str) -> None:
    """Under its own name and as a text, by `describe` and by a contract."""
    text = contract_from(CONTRACT)
    assert [kind_of(one) for one in STARTS.values()].count(kind_of(STARTS[name])) == 1
    for path in (tmp_path / name, tmp_path / "table.csv"):
        path.write_bytes(STARTS[name])
        with pytest.raises(DataError):
            describe(path)
        with pytest.raises(DataError):
            survey_table(path, text)


@pytest.mark.parametrize("start", [b"a,b\n1,2\n", "\ufeff<5;b\n1;2\n".encode(), b'{"a,b"\n'])
def test_ordinary_text_is_no_other_kind(start: bytes) -> None:
    """False alarms would refuse good tables."""
    assert kind_of(start) is None


CONTRACT: Final = """
format: {header: true}
columns:
  - {name: record_id, role: patient}
  - {name: sys, role: feature, type: numeric, missing: median}
  - {name: died, role: target, task: binary, positive: [1], negative: [0]}
"""

DICTIONARY: Final = """\
"Variable / Field Name","Form Name","Field Type","Field Label","Choices, Calculations, OR Slider Labels","Field Note",\
"Text Validation Type OR Show Slider Number","Text Validation Min","Text Validation Max",Identifier?,\
"Branching Logic (Show field only if...)"
record_id,demo,text,Record ID,,,,,,,
mrn,demo,text,Hospital number,,,,,,y,
sex,demo,radio,<b>Sex</b>,"1, Male | 2, Female | 3, Diverse",,,,,,
preg,demo,yesno,Pregnant?,,,,,,,[sex] = '2'
sys,vitals,text,Systolic,,mmHg,integer,40,300,,
k,vitals,text,Potassium,,,number_1dp_comma_decimal,3,6,,
med,vitals,checkbox,Medication,"1, Aspirin | -9, None",,,,,,
died,vitals,yesno,Died,,,,,,,
"""
HEADER: Final = "record_id,mrn,sex,preg,sys,k,med___1,med____9,died,demo_complete,vitals_complete"


def test_a_redcap_dictionary_becomes_the_draft(tmp_path: Path) -> None:
    """Choices, also the one that no patient has, limits, units, missing codes, identifiers and states of forms."""
    rows = [
        f"{row},M{row},{1 + row % 2},{'' if row % 2 == 0 else row % 4 // 2},{'UNK' if row % 9 == 3 else 100.5 + row},"
        f'"{4 if row % 2 else "3,9"}",'
        f"{row % 2},{row % 3 // 2},{row % 3 // 2},2,{row % 2 * 2}"
        for row in range(40)
    ]
    table, dictionary = tmp_path / "table.csv", tmp_path / "dictionary.csv"
    table.write_text("\n".join([HEADER, *rows]))
    dictionary.write_text(DICTIONARY)
    contract = contract_from(describe(table, dictionary=dictionary).text)
    columns = {column.name: column for column in contract.columns}
    assert {name for name, column in columns.items() if column.role == "ignore"} == {
        "mrn", "k", "demo_complete", "vitals_complete",
    }  # fmt: skip
    sex, preg, systolic, aspirin = (columns[name] for name in ("sex", "preg", "sys", "med___1"))
    assert isinstance(sex, CategoricalFeature)
    assert (sex.codes, sex.labels) == (("1", "2", "3"), ("Male", "Female", "Diverse"))
    assert isinstance(preg, CategoricalFeature)
    assert preg.missing == "unknown"
    assert isinstance(systolic, NumericFeature)
    assert (systolic.range, systolic.unit, systolic.missing_markers) == ((40, 300), "mmHg", ("UNK",))
    assert isinstance(aspirin, CategoricalFeature)
    assert aspirin.labels == ("checked", "unchecked")
    assert read_table(table, contract).rows == 40
    assert {one.name: one.role for one in contract_from(describe(table).text).columns}["vitals_complete"] == "ignore"
    table.write_text("\n".join([HEADER.upper(), *rows]))  # as labels
    for other in (table, dictionary):
        with pytest.raises(DataError):
            describe(table, dictionary=other)
