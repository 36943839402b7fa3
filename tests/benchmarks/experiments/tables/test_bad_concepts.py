"""Cases in which an ordinary regression fails: collinear or constant concepts, separated classes, too few sites."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from benchmarks.experiments.data.natural_sites import NaturalSites
from benchmarks.experiments.tables.join import ALL, Member
from global_layers.frames import tables_of
from global_layers.one_process import run_rounds
from protos.plan.contributors import kinds_of
from site_agent.desk.results.joining_models import FittedJoin, fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.trainer.prior.prior_study import KnownByOthers
from tests.for_each import some
from tests.site_agent.trainer.prior.prior_federation import concepts_of, prior_plan

SITES = ("ahus", "berlin", "cluj", "delft")


def frames(seed: int, rows: int = 90) -> dict[str, pd.DataFrame]:
    """Four hospitals with two columns of one meaning; the first one has an effect."""
    generator, found = np.random.default_rng(seed), {}
    for site in SITES:
        x, y = generator.normal(size=(2, rows))
        happened = generator.random(rows) < 1 / (1 + np.exp(-1.5 * x))
        found[site] = pd.DataFrame({"x": x, "y": y, "outcome": happened.astype(int)})
    return found


def joined(hospitals: Mapping[str, pd.DataFrame], site: str = "ahus") -> tuple[KnownByOthers, FittedJoin]:
    """Run all rounds. Return what one hospital then has: the others' score, and its join."""
    tables, concepts = tables_of(hospitals, "outcome")
    plan = NaturalSites(tables=tables, concepts=concepts).plan(tables, 0)
    members = {name: Member.of(table, ALL, 0) for name, table in tables.items()}
    studies = {name: member.study(plan, name) for name, member in members.items()}
    run_rounds(plan, studies)
    known = studies[site].known_by_others()
    own = members[site]
    return known, joined_with(studies[site], known, own.preprocessing, fit_own_models(own.dataset, 0))


def test_two_concepts_that_are_the_same_share_the_effect() -> None:
    """A copy of a concept gets the same coefficient, and the sum of both predicts as one concept did."""
    known, join = joined({name: frame.assign(w=frame["x"]) for name, frame in frames(0).items()})

    first, second = (known.joint[0, place] for place in (0, 2))
    assert first == pytest.approx(second, abs=1e-6)
    assert first > 0.2
    assert join.model.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_a_concept_that_is_constant_has_no_effect(seed: int) -> None:
    """If all patients but one have the same value of a concept, its coefficient is 0, and no other one changes."""
    plain = frames(seed)
    constant = {name: frame.assign(z=7.0) for name, frame in plain.items()}
    constant["delft"].loc[0, "z"] = 8.0

    without, _ = joined(plain)
    known, join = joined(constant)

    assert known.standard.is_used.tolist() == [True, True, False]
    assert known.joint[0, 2] == 0.0
    np.testing.assert_allclose(known.joint[0, :2], without.joint[0, :2], rtol=0, atol=1e-8)
    assert join.model.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_an_outcome_that_one_concept_decides_has_a_finite_coefficient(seed: int) -> None:
    """If all patients above 0 have the outcome, the penalty keeps the coefficient small, and the rounds end."""
    hospitals = {name: frame.assign(outcome=(frame["x"] > 0).astype(int)) for name, frame in frames(seed).items()}

    known, join = joined(hospitals)

    assert 1.0 < known.joint[0, 0] < 10.0
    assert known.rounds < 15
    assert known.guard is not None
    assert known.guard > 0
    assert join.model.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("recorded", "counted"),
    [((SITES[:2], SITES), "mean-radius"), ((SITES[:3], SITES[1:]), "mean-radius and mean-texture")],
    ids=["a concept", "a pair"],
)
def test_a_concept_that_two_of_four_sites_share_is_refused(recorded: tuple[tuple[str, ...], ...], counted: str) -> None:
    """Sites are counted for each concept and each pair: three record one, three another, and two of them both."""
    concepts = concepts_of("breast-cancer")
    few = [concept | {"recorded_by": sites} for concept, sites in zip(concepts, recorded, strict=False)]

    with pytest.raises(ValidationError, match=f"record {counted}, but fewest_sites is 3"):
        prior_plan("breast-cancer", concepts=[*few, *concepts[2:]], fewest_sites=3)

    plan = prior_plan("breast-cancer", concepts=[few[0] | {"recorded_by": SITES[:3]}, *concepts[1:]], fewest_sites=3)
    assert kinds_of(plan)["concepts mean-radius"] == set(SITES[:3])
