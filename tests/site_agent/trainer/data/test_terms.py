"""Lists of codes and notes: the encoding of their cells, the refusals, and no message with a part of a cell."""

from __future__ import annotations

import json
import time
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import MaxAbsScaler

from protos.errors import DataError
from site_agent.desk.examination.examine import examine
from site_agent.desk.new_rows import read_new_rows
from site_agent.hospital import Split
from site_agent.trainer.data import cells
from site_agent.trainer.data.cell_rules import LONGEST_CELL, MISSING, MOST_ACCENTS, TOO_LONG, TOO_MANY_ACCENTS, Flaw
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import steady_split
from site_agent.trainer.data.preprocessing import fit, fit_terms, weighted
from site_agent.trainer.data.run_table import table_digest
from site_agent.trainer.data.tables import Table, read_table, survey_table
from tests.for_each import for_each

SECRET = "Mrs Smith of Baker Street"


def contract(form: dict[str, Any] | None = None, **listed: Any) -> Contract:
    """A contract with the column of terms `drugs`, by default a list in eight buckets."""
    column = {"name": "drugs", "role": "feature", "type": "codes"} | ({} if "codes" in listed else {"buckets": 8})
    target = {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
    columns = [column | listed, target]
    return Contract.model_validate_json(json.dumps({"format": form or {"header": True}, "columns": columns}))


def written(folder: Path, cells: list[str], others: list[str] | None = None) -> Path:
    """A Parquet file with these cells; every second patient is ill."""
    outcome = others or [str(number % 2) for number in range(len(cells))]
    parquet.write_table(arrow.table({"drugs": cells, "ill": outcome}), folder / "table.parquet")
    return folder / "table.parquet"


PARQUET = {"kind": "parquet"}


def read(folder: Path, cells: list[str], **listed: Any) -> Table:
    """The table of these cells, repeated until there are enough rows."""
    return read_table(written(folder, cells * -(-20 // len(cells))), contract(PARQUET, **listed))


def counted(cell: str, **listed: Any) -> dict[int, int]:
    """The counts of one cell."""
    (column,) = contract(**listed).terms
    found = column.rule(("",)).read(cell)
    assert not isinstance(found, Flaw)
    return dict(found)


@for_each("seed", range(10))
def test_the_weights_are_those_of_scikit_learn(seed: int) -> None:
    """TF-IDF and MaxAbs fitted to some rows and applied to all agree with scikit-learn to float32."""
    generator = np.random.default_rng(seed)
    counts = generator.poisson(generator.uniform(0, 1, 30), (50, 30)).astype(np.uint16)
    counts[:40, 3] = 0  # in no training row
    counts[:2], counts[41] = 0, 0  # empty lists

    found = weighted(counts, fit_terms(counts[:40]))

    rarity = TfidfTransformer().fit(counts[:40])
    scale = MaxAbsScaler().fit(rarity.transform(counts[:40]))
    np.testing.assert_allclose(found, scale.transform(rarity.transform(counts)).toarray(), atol=1e-6)
    assert found[41].max() == 0


@for_each("seed", range(5))
def test_a_cell_becomes_the_same_numbers_whatever_other_rows_and_sites_have(tmp_path: Path, seed: int) -> None:
    """The counts of a row do not depend on other rows, nor the names of columns on any code in the table."""
    generator = np.random.default_rng(seed)
    cells = [";".join(f"drug {code}" for code in generator.integers(0, 500, 6)) for _ in range(40)]
    order = generator.permutation(40)
    foreign = [f"foreign {number}" for number in range(9)]

    one = read(tmp_path, cells, buckets=64)
    other = read(tmp_path, [*(cells[place] for place in order), *foreign], buckets=64)

    np.testing.assert_array_equal(other.terms["drugs"][:40], one.terms["drugs"][order])
    assert one.terms["drugs"].sum() == 40 * 6
    assert one.contract.encoded_columns == other.contract.encoded_columns
    assert one.contract.encoded_columns[9] == "drugs in bucket 10 of 64"
    assert steady_split(one, Split(seed=1)).training.size


def test_declared_codes_have_their_own_columns_and_all_others_share_one() -> None:
    """Spelling has no effect: capitals, blanks, order and the form of accents. Numbers keep their digits."""
    codes = ["I10", "250.0", "250.00", "Bär"]

    assert counted("i10; 250.00 ;BÄR;i10", codes=codes) == {0: 2, 2: 1, 3: 1}
    assert counted(unicodedata.normalize("NFD", "bär"), codes=codes) == {3: 1}
    assert counted("250;x;y;;", codes=codes) == {4: 3}
    assert contract(codes=codes).encoded_columns[-2:] == ("drugs=Bär", "drugs=unknown")


def test_a_note_is_read_as_words() -> None:
    """Words of two letters and more count, whatever stands between them and however they are written."""
    one = counted("Chest pain, since 3 days.\nCHEST PAIN!", type="text", buckets=2048)

    assert sorted(one.values()) == [1, 1, 2, 2]
    assert one == counted("pain-pain days (chest) chest SINCE a", type="text", buckets=2048)


def test_a_cell_that_is_too_long_is_refused_without_a_part_of_it(tmp_path: Path) -> None:
    """A megabyte in one cell costs no other memory, in Parquet and in text; the longest allowed cell is read."""
    longest = ("x;" * LONGEST_CELL)[:LONGEST_CELL]

    assert read(tmp_path, [longest, "y"], codes=["x"]).terms["drugs"][0].tolist() == [LONGEST_CELL // 2, 0]
    with pytest.raises(DataError) as refused:
        read(tmp_path, [SECRET + "z" * (1 << 20), "y"])
    (tmp_path / "table.csv").write_text("drugs,ill\n" + "y,1\n" * 12 + f'"{SECRET}\n{"z" * (1 << 20)}",0\n')
    with pytest.raises(DataError) as refused_text:
        read_table(tmp_path / "table.csv", contract())

    assert f"column drugs: {TOO_LONG.words} in rows 2, 4" in str(refused.value)
    assert "far too long" in str(refused_text.value)
    assert not any(part in f"{refused.value}{refused_text.value}" for part in SECRET.split())


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("\u1fb7" * LONGEST_CELL, TOO_LONG.words),  # in small letters three characters, and a word of two letters
        (SECRET + "\u0301" * 49_000 + "\u0316" * 49_000, TOO_MANY_ACCENTS.words),
        ("e\u0301" * (LONGEST_CELL // 2), None),
        ("e" + "\u0316\u0301" * (MOST_ACCENTS // 2), None),
    ],
    ids=["longer in small letters", "accents out of order", "accents", "many accents"],
)
def test_a_cell_of_accents_is_read_at_once_or_refused_at_once(tmp_path: Path, cell: str, words: str | None) -> None:
    """To sort the accents of one letter takes time with their square, so a single cell could take a minute."""
    began = time.process_time()

    with pytest.raises(DataError) if words else nullcontext() as refused:
        read(tmp_path, [cell, "ab"], type="text")
    if refused is not None:
        assert f"column drugs: {words} in rows" in refused.value.what
        assert not any(part in str(refused.value) for part in SECRET.split())
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("content", "words"),
    [(f"{SECRET}\0;b", "a NUL byte"), (f"{SECRET} M\xfcller;b".encode("latin-1"), "not text in the declared encoding")],
)
def test_a_damaged_text_is_refused_without_a_part_of_it(tmp_path: Path, content: str | bytes, words: str) -> None:
    """A NUL and a wrong encoding are named by their line."""
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "table.csv").write_bytes(b"drugs,ill\n" + b"a;b,1\n" * 12 + raw + b",0\n")

    with pytest.raises(DataError, match=words) as refused:
        read_table(tmp_path / "table.csv", contract())

    assert "line 14" in str(refused.value)
    assert not any(part in str(refused.value) for part in SECRET.split())


def test_a_table_too_large_for_memory_is_refused_before_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both figures of the limit are named."""
    monkeypatch.setattr(cells, "LARGEST_TABLE_COUNTS", 8 * 20)

    read(tmp_path, ["a"] * 20)
    with pytest.raises(DataError, match=r"8 columns, and the table has at least 33 rows.*at most 20 rows"):
        read(tmp_path, ["a"] * 33)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ({"buckets": None}, "either codes or buckets"),
        ({"codes": ["a"], "buckets": 8}, "either codes or buckets"),
        ({"codes": ["a"], "type": "text"}, "a note has words"),
        ({"codes": ["a", "A"]}, "differ only in capital letters"),
        ({"codes": ["a;b"]}, "contains the separator"),
        ({"codes": ["Unknown"]}, "reserved"),
        ({"codes": [250.0]}, "put this code in quotes"),
        ({"codes": [str(number) for number in range(2048)]}, "at most 2,047"),
        ({"buckets": 4096}, "2048"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(listed: dict[str, Any], words: str) -> None:
    """Each mistake has its words."""
    with pytest.raises(ValueError, match=words):
        contract(**listed)


def test_a_term_that_reveals_the_outcome_is_found(tmp_path: Path) -> None:
    """One code that only ill patients have is a warning; codes that say nothing are none."""
    generator = np.random.default_rng(1)
    cells = [";".join(map(str, generator.integers(0, 50, 8))) for _ in range(200)]
    leaking = [f"{cell};Z51.5" if number % 2 else cell for number, cell in enumerate(cells)]

    found, sound = (
        examine(survey_table(written(tmp_path, some), contract(PARQUET, buckets=256)), Split(seed=1))
        for some in (leaking, cells)
    )

    assert [finding.words for finding in found.warnings] == [
        "column drugs: this column alone predicts the outcome with an area under the ROC curve of 1.00 (limit 0.8); "
        "is its value known before the outcome?"
    ]
    assert not sound.warnings
    assert 0.5 < sound.alone["drugs"] < 0.7


def test_empty_lists_are_counted_and_shown(tmp_path: Path) -> None:
    """A column without any term is an error, one with few a warning."""
    few = written(tmp_path, ["", "", "", "a;b"] * 10)
    found = examine(survey_table(few, contract(PARQUET, missing="empty", codes=["b"])), Split(seed=1))
    none = written(tmp_path, ["", ""] * 20)
    empty = examine(survey_table(none, contract(PARQUET, missing="empty")), Split(seed=1))

    assert "column drugs: 75% of the rows have no code or word" in [finding.words for finding in found.warnings]
    assert found.missing["drugs"] == 0.75
    assert [finding.key for finding in empty.errors] == ["error:drugs"]


def test_a_new_row_that_cannot_be_read_is_left_out_without_its_text(tmp_path: Path) -> None:
    """The reason names the column and the flaw. A column that is not there is named."""
    note = contract(PARQUET, type="text")
    new = read_new_rows(written(tmp_path, [SECRET * 5000, "chest pain", ""]), note, None)
    parquet.write_table(arrow.table({"ill": ["1"]}), tmp_path / "other.parquet")
    absent = read_new_rows(tmp_path / "other.parquet", note, None)

    assert new.usable.tolist() == [1]
    assert new.reasons == (f"column drugs: {TOO_LONG.words}", "", f"column drugs: {MISSING.words}")
    assert [one.flaw.words for one in absent.left_out] == ["it is missing"]


@for_each("seed", range(5))
def test_only_training_rows_decide_the_weights_and_every_row_the_digest(tmp_path: Path, seed: int) -> None:
    """Another list in a test row changes the digest of the table, and no weight."""
    generator = np.random.default_rng(seed)
    cells = [";".join(map(str, generator.integers(0, 9, 3))) for _ in range(30)]

    one, other = read(tmp_path, cells), read(tmp_path, [*cells[:29], "another;list;of;codes"])

    assert fit(one.contract, one, np.arange(20)) == fit(other.contract, other, np.arange(20))
    assert fit(one.contract, one, np.arange(30)) != fit(other.contract, other, np.arange(30))
    assert table_digest(one) != table_digest(other)
    assert table_digest(one) == table_digest(read(tmp_path, cells))


def test_rows_without_an_outcome_are_left_out_before_their_lists_are_read(tmp_path: Path) -> None:
    """Numbers of rows and counts belong to the rows that stay."""
    target = {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "missing": "drop"}
    columns = [{"name": "drugs", "role": "feature", "type": "codes", "codes": ["a"]}, target]
    declared = Contract.model_validate_json(json.dumps({"format": PARQUET, "columns": columns}))
    outcomes = ["", "1", "0"] * 10

    found = read_table(written(tmp_path, ["", "a", "b"] * 10, outcomes), declared)
    with pytest.raises(DataError, match=r"refuses it\) in rows 4, 7, 10, 13, 16 and 5 more"):
        read_table(written(tmp_path, ["", "a", ""] * 10, outcomes), declared)

    assert found.rows == 20
    assert found.terms["drugs"].tolist() == [[1, 0], [0, 1]] * 10
