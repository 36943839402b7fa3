"""A contract describes a table completely, or its own mistakes are reported."""

from __future__ import annotations

import pytest

from protos.errors import ConfigurationError
from protos.plan.documents import parse_document
from site_agent.trainer.data.contract import Contract

DAY = "{name: a, role: feature, type: date, since: '2020-01-01'"
TARGET = "{name: y, role: target, task: binary, positive: [1]}"


def _contract(*columns: str, head: str = "format: {header: true}") -> Contract:
    lines = "".join(f"  - {column}\n" for column in columns)
    return parse_document(f"{head}\ncolumns:\n{lines}".encode(), Contract, source="c.yaml", consequence="Nothing left.")


NUMBER = "{name: a, role: feature, type: numeric}"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((NUMBER.replace("}", ", rnage: [0, 1]}"), TARGET), "c.yaml:3:45: columns.a.rnage: unknown key"),
        (("{name: a, role: feature, type: numeric, codes: [1]}", TARGET), "columns.a.codes: unknown key"),
        ((NUMBER, TARGET.replace("}", ", competing: [2]}")), "columns.y.competing: a contract has it at"),
        (("{name: a, role: feature}", TARGET), "columns.a"),
        (("{name: a, role: featur, type: numeric}", TARGET), "did you mean feature?"),
        (("{name: a, role: feature, type: numeric, range: [2, 1]}", TARGET), "lowest first"),
        (("{name: a, role: feature, type: categorical, codes: []}", TARGET), "at least 1 code"),
        ((NUMBER, "{name: y, role: target, task: binary, positive: [], negative: [1]}"), "columns.y: positive needs"),
        (
            ('{name: a, role: feature, type: ordinal, codes: ["3", "3.000000000000"]}', TARGET),
            "numbers compare by value",
        ),
        (("{name: a, role: feature, type: categorical, codes: [\u00e4, a\u0308]}", TARGET), "numbers compare by value"),
        (("{name: a, role: feature, type: categorical, codes: [false, true]}", TARGET), "in quotes"),
        (("{name: a, role: feature, type: categorical, codes: [unknown]}", TARGET), "reserved"),
        (("{name: a, role: feature, type: categorical, codes: ['']}", TARGET), "cannot be empty"),
        (("{name: a, role: feature, type: binary, codes: [8, 9], missing_markers: [9]}", TARGET), "a missing marker"),
        ((NUMBER,), "exactly one column has the role target, not 0"),
        ((NUMBER, TARGET, TARGET.replace("name: y", "name: z")), "not 2"),
        ((TARGET,), "at least one column has the role feature"),
        ((NUMBER, NUMBER, TARGET), "declared more than once"),
        ((NUMBER, NUMBER.replace("a,", "A,"), TARGET), "the same after encoding"),
        ((NUMBER, TARGET, "{name: p, role: patient}", "{name: q, role: patient}"), "at most one column"),
        ((NUMBER, "{name: y, role: target, task: binary, positive: [1], negative: [1.0]}"), "codes are the same"),
        ((NUMBER, "{name: y, role: target, task: multi-class, codes: [1]}"), "at least 2 codes are"),
        ((NUMBER, "{name: y, role: target, task: regression, positive: [1]}"), "unknown key"),
        (("{name: a, role: feature, type: binary, codes: [1]}", TARGET), "exactly two codes"),
        (("{name: a, role: feature, type: ordinal, codes: [1, 2], encoding: one-hot}", TARGET), "keeps its order"),
        (
            ("{name: a, role: feature, type: categorical, codes: [1, 2], labels: [x]}", TARGET),
            "labels and concept_codes have one entry",
        ),
        (("{name: a, role: feature, type: date}", TARGET), "either since or until"),
        (("{name: a, role: feature, type: date, since: a}", TARGET), "name another date column"),
        (("{name: a, role: feature, type: date, pattern: '%Y', since: '2020-01-01'}", TARGET), "a pattern has"),
        ((f"{DAY}, pattern: ['%d.%m.%Y', '%m.%d.%Y']}}", TARGET), "two patterns read one text as different days"),
        ((f"{DAY}, pattern: ['%Y%m%d', '%d%m%Y']}}", TARGET), "two patterns read one text as different days"),
        ((f"{DAY}, pattern: ['%d.%m.%Y', '%d.%m.%Y']}}", TARGET), "these patterns are named more than once"),
        ((f"{DAY}, pattern: []}}", TARGET), "at least one date format"),
        ((NUMBER, TARGET.replace("[1]", "[1], missing: median")), "missing"),
        ((NUMBER, TARGET.replace("[1]", "[1], positive_name: negative")), "must differ"),
    ],
)
def test_a_wrong_contract_is_refused_with_a_reason(columns: tuple[str, ...], words: str) -> None:
    """Each mistake a data manager can make is named in words."""
    with pytest.raises(ConfigurationError) as error:
        _contract(*columns)

    assert words in error.value.what
