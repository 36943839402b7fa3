"""A made-up table satisfies its contract, whatever the contract requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import UsageError
from protos.plan.documents import parse_document
from site_agent.desk.drafting.invent import invent, write_table
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.dataset import prepare
from site_agent.trainer.data.formats import TableFormat

REPOSITORY = Path(__file__).parents[4]
CONTRACTS = [*sorted((REPOSITORY / "deploy" / "data").glob("*.yaml")), REPOSITORY / "deploy/examples/contract.yaml"]
FORMATS = {
    "comma": TableFormat(header=True),
    "german": TableFormat(header=True, delimiter=";", decimal=",", encoding="windows-1252"),
    "headless": TableFormat(header=False, delimiter="\t"),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_an_invented_table_trains(tmp_path: Path, path: Path, form: str) -> None:
    """Every contract of this repository, in three spellings: read, split, fitted and encoded without a mistake."""
    contract = read_contract(path).model_copy(update={"format": FORMATS[form]})
    table = tmp_path / "invented.csv"
    table.write_bytes(write_table(invent(contract, rows=150, seed=len(form)), contract))

    dataset, _ = prepare(table, contract, Split(seed=1))

    assert len(dataset.training) + len(dataset.validation) + len(dataset.test) == 150


@pytest.mark.parametrize("kind", ["excel", "parquet"])
def test_an_invented_file_is_of_the_declared_kind(tmp_path: Path, kind: str) -> None:
    """A workbook or a Parquet file, where the contract reads one."""
    text = f"""
format: {{kind: {kind}}}
columns:
  - {{name: age, role: feature, type: numeric, range: [18, 90]}}
  - {{name: y, role: target, task: multi-class, codes: [a, b, c]}}
"""
    contract = parse_document(text.encode(), Contract, source="contract.yaml", consequence="")
    table = tmp_path / "invented"
    table.write_bytes(write_table(invent(contract, rows=100, seed=0), contract))

    dataset, _ = prepare(table, contract, Split(seed=0))

    assert dataset.classes == ("a", "b", "c")


def test_the_same_seed_is_the_same_table() -> None:
    """And another seed another one."""
    contract = read_contract(CONTRACTS[0])

    assert invent(contract, rows=50, seed=3) == invent(contract, rows=50, seed=3)
    assert invent(contract, rows=50, seed=3) != invent(contract, rows=50, seed=4)


@pytest.mark.parametrize("code", ["=HYPERLINK(1)", "@SUM(1)", "+cmd|x"])
def test_no_formula_is_written(code: str) -> None:
    """A code that a spreadsheet would compute is refused, not written."""
    text = f"""
format: {{header: true}}
columns:
  - {{name: ward, role: feature, type: categorical, codes: ["{code}", b]}}
  - {{name: y, role: target, task: binary, positive: [1]}}
"""
    contract = parse_document(text.encode(), Contract, source="contract.yaml", consequence="")

    with pytest.raises(UsageError, match="begins as a formula"):
        invent(contract, rows=50, seed=0)
