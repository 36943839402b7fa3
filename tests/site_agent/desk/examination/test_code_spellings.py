"""Two spellings of one code are found, and codes with different meanings are not reported."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from site_agent.desk.examination.code_spellings import TwoSpellings, two_spellings
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import read_contract

CONTRACTS = sorted((Path(__file__).parents[4] / "deploy" / "data").glob("*.yaml"))


@pytest.mark.parametrize(
    ("codes", "one", "other"),
    [
        (["0", "1", "F", "M"], ("0", "1"), ("F", "M")),
        (["0", "1", "M"], ("0", "1"), ("M",)),
        (["f", "m", "F", "M"], ("f", "m"), ("F", "M")),
        (["male", "female", "M"], ("male",), ("M",)),
        (["Yes", "yes", "no"], ("Yes",), ("yes",)),
        (["ja", "nein", "n"], ("nein",), ("n",)),
        (["1", "2", "3", "I", "II", "III"], ("1", "2", "3"), ("I", "II", "III")),
        (["non smoker", "non-smoker", "non_smoker", "smoker"], ("non smoker",), ("non_smoker",)),
    ],
)
def test_two_spellings_are_found(codes: list[str], one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """The two ways are named beside each other."""
    assert two_spellings(codes) == TwoSpellings(one=one, other=other)


@pytest.mark.parametrize(
    "codes",
    [
        ["0", "1"],
        ["f", "m", "x"],
        ["0", "1", "2", "other"],
        ["1", "2", "3a", "3b"],
        ["-1", "1"],
        ["<5", ">5"],
        ["A+", "A-", "B+", "B-"],
        ["0", "1", "2", "many"],
        ["Present", "Absent"],
        ["rawah", "neota", "comanche", "poudre"],
        [],
    ],
)
def test_codes_that_each_mean_something_are_left_alone(codes: list[str]) -> None:
    """No finding, in whatever order they stand."""
    for seed in range(10):
        random.Random(seed).shuffle(codes)

        assert two_spellings(codes) is None


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_no_public_contract_raises_an_alarm(path: Path) -> None:
    """Every coded column of the contracts of public studies passes."""
    features = read_contract(path).features
    columns = {column.name: column.codes for column in features if isinstance(column, CategoricalFeature)}

    assert {name: two_spellings(codes) for name, codes in columns.items()} == dict.fromkeys(columns)
