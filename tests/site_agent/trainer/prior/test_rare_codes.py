"""No patient with a rare code can be identified from the sums of federated-prior, whatever is announced."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from protos.plan.concepts import CodedConcept, columns_of
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import FEWEST_ROWS, place_sums
from protos.wire.messages import Stage
from site_agent.trainer.failures import MayNotSend
from site_agent.trainer.prior.concept_columns import Mapped, MappedCode, values_of, without_rare
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.requests import Asked
from tests.for_each import for_each
from tests.site_agent.trainer.prior.prior_federation import heart_members

Float64 = npt.NDArray[np.float64]


def _columns(codes: int) -> tuple[MappedCode, ...]:
    """The columns of a concept whose codes a site records in the concept's own order."""
    concept = CodedConcept(kind="codes", name="pain", definition="Pain.", codes=tuple("abcdefgh"[:codes]))
    places = {code: place for place, code in enumerate(concept.codes)}
    known = tuple(range(codes))
    return tuple(
        MappedCode(feature="pain", ones=tuple(places[code] for code in column.ones), known=known)
        for column in columns_of((concept,))
    )


def _standardised(mapped: tuple[Mapped, ...], own: Float64, generator: np.random.Generator) -> Float64:
    """Columns as they enter H: moved and scaled by what the others have too, a missing value is 0."""
    values = values_of(mapped, {"pain": own}, len(own))
    means, deviations = generator.uniform(0.1, 0.9, size=len(mapped)), generator.uniform(0.2, 0.5, size=len(mapped))
    return np.where(np.isnan(values), 0.0, (values - means) / deviations)


@for_each("seed", range(100))
def test_no_combination_of_columns_tells_few_rows_apart(seed: int) -> None:
    """Sets of rows whose indicator is a linear combination of a concept's columns have at least ten rows."""
    generator = np.random.default_rng(seed)
    codes = int(generator.integers(2, 7))
    own = generator.choice(codes, size=80, p=generator.dirichlet(np.full(codes, 0.7))).astype(float)
    own[generator.random(80) < generator.choice([0.0, 0.05])] = np.nan
    kept = without_rare(_columns(codes), {"pain": own})
    design = np.column_stack([np.ones(80), _standardised(kept, own, generator)])

    groups = np.unique(np.nan_to_num(own, nan=-1.0), return_inverse=True)[1]
    for size in range(1, groups.max() + 1):
        for chosen in combinations(range(groups.max() + 1), size):
            indicator = np.isin(groups, chosen).astype(float)
            gap = indicator - design @ np.linalg.lstsq(design, indicator, rcond=None)[0]
            assert np.abs(gap).max() > 1e-6 or min(indicator.sum(), 80 - indicator.sum()) >= FEWEST_ROWS


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ((60, 10, 10), (True, True)),
        ((60, 9, 11), (True, False)),  # each column has ten rows, and their difference nine
        ((60, 11, 9), (True, False)),
        ((60, 0, 20), (True, False)),  # a missing value would stand out beside a column that is constant
        ((60, 5, 5), (True, False)),
        ((60, 5, 4), (False, False)),
        ((9, 30, 30), (False, False)),
        ((40, 10, 12, 11), (True, True, True)),
        ((40, 1, 12, 11), (True, True, False)),
    ],
)
def test_rare_codes_count_together(counts: tuple[int, ...], kept: tuple[bool, ...]) -> None:
    """A code with fewer than ten rows counts as one of the others, and these take part if they are ten together."""
    own = np.repeat(np.arange(len(counts)), counts).astype(float)

    found = without_rare(_columns(len(counts)), {"pain": own})

    assert tuple(one is not None for one in found) == kept


def _after_statistics(prior: PriorPlan, studies: list[PriorStudy], claims: dict[str, int]) -> npt.NDArray[np.float32]:
    """Return the values sent before the first Newton round, with some sums replaced by claims."""
    empty = np.zeros(prior.tensor.number_count, np.float32)
    scalars = [study.train(Asked(round=0, stage=Stage.STATISTICS), empty).scalars for study in studies]
    sums = np.sum(np.array(scalars, np.int64), axis=0).tolist()
    place_sums(empty, prior.place(0, 1), [claims.get(n, s) for n, s in zip(prior.statistics_names, sums, strict=True)])
    return empty


def test_a_claimed_count_opens_no_column() -> None:
    """Whatever count of a column the coordinator announces, a site where few patients have it sends a void."""
    plan, members = heart_members(rows=30)
    name, study = "sex=male", members["va"].study
    claims = {f"voids {name}": 0, f"count {name}": 120, f"sum {name}": 60 << 30, f"squares {name}": 60 << 30}
    announced = _after_statistics(plan, [member.study for member in members.values()], claims)

    with pytest.raises(MayNotSend):
        study.train(Asked(round=1, stage=Stage.NEWTON), announced)
