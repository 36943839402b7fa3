"""A contract describes a table completely, or its own mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import ConfigurationError
from protos.plan.documents import parse_document
from site_agent.trainer.data.cell_rules import canonical_code
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import Contract, read_contract

EXAMPLES = Path(__file__).parents[4] / "deploy" / "data"
DAY = "{name: a, role: feature, type: date, since: '2020-01-01'"
TARGET = "{name: y, role: target, task: binary, positive: [1]}"


def _contract(*columns: str, head: str = "format: {header: true}") -> Contract:
    lines = "".join(f"  - {column}\n" for column in columns)
    return parse_document(f"{head}\ncolumns:\n{lines}".encode(), Contract, source="c.yaml", consequence="Nothing left.")


def test_the_examples_have_31_columns_together() -> None:
    """Age at three sites and sex at two coincide, so 13 + 9 + 12 columns are 31."""
    sites = [read_contract(EXAMPLES / f"{name}.yaml") for name in ("cleveland", "south-africa", "faisalabad")]

    columns = [site.encoded_columns for site in sites]

    assert [len(own) for own in columns] == [13, 9, 12]
    assert len({name for own in columns for name in own}) == 31
    assert set(columns[0]) & set(columns[1]) & set(columns[2]) == {"age"}
    assert set(columns[0]) & set(columns[2]) == {"age", "sex"}


@pytest.mark.parametrize(
    ("one", "other"),
    [("3", "3.0"), (" 3", "3"), ("+3", "3"), ("100", "100.0"), (".7", "0.70"), ("-0", "0")],
)
def test_numbers_as_codes_compare_by_value(one: str, other: str) -> None:
    """Two spellings of a number are the same code."""
    assert canonical_code(one) == canonical_code(other)


@pytest.mark.parametrize(
    "text", ["Present", "nan", "inf", "1_000", "0x1", "3 4", "٣", "1e999999999", "1e1", "1E50", "07", "9" * 5000]
)
def test_what_is_no_plain_number_stays_as_it_stands(text: str) -> None:
    """Words, and numbers only a computer would write, are compared letter by letter."""
    assert canonical_code(f" {text} ") == text


def test_a_decimal_comma_is_understood_and_a_thousands_point_is_not() -> None:
    """1,5 is one and a half. 1.500 stays text, because its meaning is ambiguous."""
    assert canonical_code("1,50", ",") == "1.5"
    assert canonical_code("1.500", ",") == "1.500"


def test_codes_may_be_written_without_quotes() -> None:
    """A data manager writes 1 and 1.0 as numbers; both are the code 1."""
    contract = _contract("{name: cp, role: feature, type: categorical, codes: [1.0, 2, three]}", TARGET)

    (feature,) = contract.features

    assert isinstance(feature, CategoricalFeature)
    assert feature.codes == ("1", "2", "three")


def test_encoded_names_follow_from_the_contract_alone() -> None:
    """Names in lower case, one per code, one for unknown, one per missing flag."""
    contract = _contract(
        "{name: Age, role: feature, type: numeric, missing: median-and-flag}",
        "{name: CP, role: feature, type: categorical, codes: [1, Aa], encoding: one-hot}",
        "{name: thal, role: feature, type: categorical, codes: [3, 6]}",
        TARGET,
    )

    assert contract.encoded_columns == ("age", "age is missing", "cp=1", "cp=Aa", "cp=unknown", "thal")


NUMBER = "{name: a, role: feature, type: numeric}"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            ("{name: a, role: feature, type: numeric, rnage: [0, 1]}", TARGET),
            "c.yaml:3:45: columns.0.rnage: unknown key",
        ),
        (("{name: a, role: feature, type: numeric, codes: [1]}", TARGET), "columns.0.codes: unknown key"),
        (("{name: a, role: feature}", TARGET), "columns.0"),
        (("{name: a, role: featur, type: numeric}", TARGET), "did you mean feature?"),
        (("{name: a, role: feature, type: numeric, range: [2, 1]}", TARGET), "lowest first"),
        (("{name: a, role: feature, type: categorical, codes: []}", TARGET), "at least 1 code"),
        (("{name: a, role: feature, type: categorical, codes: [3, 3.0]}", TARGET), "numbers compare by value"),
        (("{name: a, role: feature, type: categorical, codes: [false, true]}", TARGET), "in quotes"),
        (("{name: a, role: feature, type: categorical, codes: [unknown]}", TARGET), "reserved"),
        (("{name: a, role: feature, type: categorical, codes: ['']}", TARGET), "cannot be empty"),
        (
            ("{name: a, role: feature, type: categorical, codes: [9], missing_markers: [9]}", TARGET),
            "both a code and a missing marker",
        ),
        ((NUMBER,), "exactly one column has the role target, not 0"),
        ((NUMBER, TARGET, TARGET.replace("name: y", "name: z")), "not 2"),
        ((TARGET,), "at least one column has the role feature"),
        ((NUMBER, NUMBER, TARGET), "declared more than once"),
        ((NUMBER, NUMBER.replace("a,", "A,"), TARGET), "the same after encoding"),
        ((NUMBER, TARGET, "{name: p, role: patient}", "{name: q, role: patient}"), "at most one column"),
        ((NUMBER, "{name: y, role: target, task: binary, positive: []}"), "at least 1 code"),
        ((NUMBER, "{name: y, role: target, task: binary, positive: [1], negative: [1.0]}"), "codes are the same"),
        ((NUMBER, "{name: y, role: target, task: multi-class, codes: [1]}"), "at least 2 codes are"),
        ((NUMBER, "{name: y, role: target, task: regression, positive: [1]}"), "unknown key"),
        ((NUMBER.replace("a,", "' a',"), TARGET), "without blanks"),
        (("{name: a, role: feature, type: binary, codes: [1]}", TARGET), "exactly two codes"),
        (("{name: a, role: feature, type: ordinal, codes: [1, 2], encoding: one-hot}", TARGET), "keeps its order"),
        (("{name: a, role: feature, type: categorical, codes: [1, 2], labels: [x]}", TARGET), "labels name each code"),
        (("{name: a, role: feature, type: numeric, required: false}", TARGET), "needs missing: median"),
        (("{name: a, role: feature, type: date}", TARGET), "either since or until"),
        (("{name: a, role: feature, type: date, since: b}", TARGET), "name another date column"),
        (("{name: a, role: feature, type: date, since: a}", TARGET), "name another date column"),
        (("{name: a, role: feature, type: date, pattern: '%Y', since: '2020-01-01'}", TARGET), "a pattern has"),
        ((f"{DAY}, pattern: ['%d.%m.%Y', '%m.%d.%Y']}}", TARGET), "two patterns read one text as different days"),
        ((f"{DAY}, pattern: ['%Y%m%d', '%d%m%Y']}}", TARGET), "two patterns read one text as different days"),
        ((f"{DAY}, pattern: ['%d.%m.%Y', '%d.%m.%Y']}}", TARGET), "these patterns are named more than once"),
        ((f"{DAY}, pattern: []}}", TARGET), "at least one date format"),
        ((NUMBER, TARGET.replace("[1]", "[1], missing: median")), "missing"),
        ((NUMBER, TARGET, "{name: g, role: group, codes: []}"), "at least 1 code"),
        ((NUMBER, TARGET.replace("[1]", "[1], positive_name: negative")), "must differ"),
    ],
)
def test_a_wrong_contract_is_refused_with_a_reason(columns: tuple[str, ...], words: str) -> None:
    """Each mistake a data manager can make is named in words."""
    with pytest.raises(ConfigurationError) as error:
        _contract(*columns)

    assert words in error.value.what


def test_delimiter_and_decimal_differ() -> None:
    """A comma cannot both part columns and stand in numbers."""
    with pytest.raises(ConfigurationError, match="cannot be the same"):
        _contract(NUMBER, TARGET, head="format: {header: true, decimal: ','}")
