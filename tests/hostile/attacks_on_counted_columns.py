"""A coordinator that subtracts two sums of one hospital, before and after patients arrived. All other hospitals send
the same numbers twice, so the difference of two sums is that of this hospital's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from protos.plan.analyses import Frame, complete_rows
from protos.wire.messages import Stage
from site_agent.hospital import read_hospital
from site_agent.trainer import answered_values
from site_agent.trainer.answered_values import ReleasedBefore
from site_agent.trainer.before_rounds import begin_statistics
from site_agent.trainer.prior.concept_columns import MappedNumber
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics import concept_frame, statistics_study
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.hostile.attacks_on_models import exact_moments
from tests.site_agent.trainer.sites import make_plan
from tests.site_agent.trainer.test_statistics import site

AGE, UNIT, FACTOR = 71, "mmol/l", 38.66976
NUMBERS: Final = {"age": (0, 120), "pressure": (0, 300), "lipids": (0, 800)}
CODES: Final = {"sex": ["m", "f"], "smoker": ["no", "yes"]}
TABLE: Final = {"table_one": {"columns": ["age"]}}
MODEL: Final = {"family": "gaussian", "intercept": "common", "outcome": "pressure"}
_TERMS = ["age", "sex", "smoker", "age:sex", "age:smoker", "sex:smoker", "age:sex:smoker"]
PRODUCT: Final = {"regression": MODEL | {"terms": _TERMS}}
SMOKING: Final = {"regression": MODEL | {"terms": ["age", "smoker"]}}
Row = tuple[object, ...]


def plan(*analyses: dict[str, Any], version: int = 1) -> Any:  # a statistics plan
    """A plan of one analysis or two."""
    more = {"unit": "mg/dl", "conversions": [{"unit": UNIT, "factor": FACTOR}]}
    numbers: list[dict[str, Any]] = [
        {"kind": "number", "name": name, "low": low, "high": high} | (more if name == "lipids" else {})
        for name, (low, high) in NUMBERS.items()
    ]
    concepts = numbers + [{"kind": "codes", "name": name, "codes": codes} for name, codes in CODES.items()]
    used = [one for one in concepts if one["name"] in str(analyses)]
    named = [{"name": f"a{place}"} | analysis for place, analysis in enumerate(analyses)]
    content = {"kind": "statistics", "fewest_sites": 3, "smallest_cell": 10, "analyses": named}
    return make_plan(**content, concepts=[one | {"definition": "It."} for one in used], version=version)


def sums(folder: Path, asked: Any, rows: Sequence[Row], age: str = "age") -> dict[str, float]:
    """What the hospital's trainer sends in the first round, by name."""
    site(folder)
    names = [age, *[*NUMBERS][1:], *CODES]
    columns: list[dict[str, Any]] = [
        {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "missing": "drop"}
    ]
    for name, concept in zip(names, [*NUMBERS, *CODES], strict=True):
        kind = (
            {"type": "categorical", "codes": CODES[name]} if name in CODES else {"type": "numeric", "missing": "median"}
        )
        columns.append({"name": name, "role": "feature", "concept": concept, **kind})
    columns[3]["unit"] = UNIT
    (folder / "contract.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
    (folder / "table.csv").write_text("\n".join(",".join(map(str, one)) for one in [("ill", *names), *rows]) + "\n")
    study = begin_statistics(read_hospital(folder / "hospital.yaml"), asked, folder)
    found = study.train(Asked(round=0, stage=Stage.STATISTICS), np.zeros(asked.tensor.number_count, "<f4"))
    return {one.name: sent / one.scale for one, sent in zip(asked.numbers_by_round[0], found.scalars, strict=True)}


def table(*more: Row) -> list[Row]:
    """120 rows, and others."""
    draw = np.random.default_rng(0)
    each = [(k % 2, draw.integers(20, 90), draw.integers(90, 200), draw.integers(30, 99) / 10) for k in range(120)]
    return [*((*row, "mf"[k % 3 % 2], ["no", "yes"][k % 5 % 2]) for k, row in enumerate(each)), *more]


def later(
    weakened: bool, without: Any, name: str, analysis: dict[str, Any], rows: Sequence[Row], age: str = "age"
) -> bool:
    """Subtract the sums before some rows arrived from those after: the number of this name is that of one of them."""
    with scratch() as folder, in_copy(weakened, exact_moments), in_copy(weakened, without):
        before = sums(folder, plan(analysis), table())
        try:
            after = sums(folder, plan(analysis, version=2), table(*rows), age)
        except ReleasedBefore:
            return False
    difference = after[f"{name}, a0"] - before[f"{name}, a0"]
    return abs(difference - (AGE / 120 if name.startswith("sum") else 1)) < 1e-8


class Apart(StatisticsStudy):
    """A study whose analyses have complete rows of their own."""

    def __init__(self, plan: Any, frame: Frame, **of: Any) -> None:
        """Keep all rows."""
        super().__init__(plan, frame, **of)
        self.everybody = frame

    def _integers(self, place: int, *asked: Any) -> list[int]:
        self._frame = self.everybody.only(complete_rows(self.plan.analyses[place : place + 1], self.everybody))
        return super()._integers(place, *asked)


def incomplete(weakened: bool, without: Any, plans: Sequence[Sequence[dict[str, Any]]]) -> bool:
    """Subtract a model's ages from those of a Table 1, where one patient lacks another column of the model."""
    rows, found = table((1, AGE, 120, "", "f", "")), dict[str, float]()
    with scratch() as folder, in_copy(weakened, exact_moments), in_copy(weakened, without):
        try:
            for version, analyses in enumerate(plans, 1):
                found |= sums(folder, plan(*analyses, version=version), rows)
        except ReleasedBefore:
            return False
    described, fitted = (
        sum(found[name] for name in found if name.startswith(one)) for one in ("sum age of", "sum age,")
    )
    return abs(described - fitted - AGE / 120) < 1e-8


def digits(weakened: bool) -> bool:
    """Find the one sum of tenths of mmol/l that fits the digits of the sum with hospitals that count whole mg/dl."""
    raw = partial(patched, MappedNumber, converted=lambda self, own: self.factor * own + self.offset)
    with scratch() as folder, in_copy(weakened, raw):
        found = sums(folder, plan({"table_one": {"columns": ["lipids"]}}), table())
    total = found["sum lipids of all, a0"] * 800 + 123_456
    tenths = np.arange(10_000)
    fitting = tenths[np.abs((total - FACTOR * tenths / 10 + 0.5) % 1 - 0.5) < 1e-5]
    return fitting.tolist() == [round(sum(10 * float(str(row[3])) for row in table()))]


def _without_rows(*given: Any) -> dict[str, Any]:
    return {name: values for name, values in USED_VALUES(*given).items() if not name.startswith("row=")}


_forgetful = partial(patched, answered_values, remember=lambda *_: None)
_apart = partial(patched, statistics_study, StatisticsStudy=Apart)
USED_VALUES, NUMBERS_OF = concept_frame.used_values, concept_frame.numbers_of
PAIRS: Final = (((0, 30 + k, 90 + k, "", "f", "no"), (1, 50 + k, 121 + k, "", "m", "yes")) for k in range(10))
NEW: Final = ((1, AGE, 120, "", "f", "yes"), *(row for pair in PAIRS for row in pair))
CASES: Final[dict[str, tuple[str, str, Any, dict[str, Any]]]] = {
    "one-added-patient": (
        "a column is counted before and after a patient came",
        "the memory of each column's rows",
        _forgetful,
        {"name": "sum age of all", "analysis": TABLE, "rows": NEW[:1]},
    ),
    "a-renamed-column": (
        "a column is counted before and after a patient came and the column got another name",
        "the names of concepts in the memory",
        partial(patched, concept_frame, numbers_of=lambda *own: NUMBERS_OF(*own[:5]), used_values=_without_rows),
        {"name": "sum age of all", "analysis": TABLE, "rows": NEW[:1], "age": "years"},
    ),
    "one-pending-patient": (
        "a column is counted before and after a patient came whose outcome is not known yet",
        "the rows without an outcome in the memory",
        partial(patched, concept_frame, used_values=_without_rows),
        {"name": "rows that take no part", "analysis": TABLE, "rows": [("", *NEW[0][1:])]},
    ),
    "one-cell-of-a-product": (
        "a product of three columns is summed before and after 21 patients came, one of them in its cell",
        "the products of columns in the memory",
        partial(patched, concept_frame, cells_of=lambda *_: {}),
        {"name": "sum age:sex=f:smoker=yes", "analysis": PRODUCT, "rows": NEW},
    ),
}
ATTACKS = (
    *(
        Attack(name=f"statistics-of-{name}", tries=tries, without=lack, run=partial(later, without=without, **given))
        for name, (tries, lack, without, given) in CASES.items()
    ),
    Attack(name="statistics-in-another-unit", without="the rounding of converted numbers", run=digits),
    Attack(
        name="statistics-of-one-incomplete-row",
        tries="a Table 1 and a model of one plan differ by a patient who lacks a column of the model",
        without="the rows that all analyses of a plan share",
        run=partial(incomplete, without=_apart, plans=[[TABLE, SMOKING]]),
    ),
    Attack(
        name="statistics-of-one-incomplete-row-in-two-plans",
        tries="the Table 1 and the model are two plans",
        without="the memory of each column's rows",
        run=partial(incomplete, without=_forgetful, plans=[[TABLE], [SMOKING]]),
    ),
)
