"""Mean, fairness and incentive are computed from sums only."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.plan.gain_sums import FEWEST_FOR_VARIANCE, GainSums, gain_over_sites, gain_sums
from protos.plan.manifest import GAIN_SCALE
from protos.plan.plan import MOST_SITES
from tests.for_each import for_each

METRICS = st.one_of(st.none(), st.floats(0, 1))
SITES = st.lists(st.tuples(METRICS, METRICS), min_size=1, max_size=MOST_SITES)


def added(sums: list[GainSums]) -> GainSums:
    """The values that the coordinator holds: the sums of each integer."""
    return GainSums.from_names({name: sum(one.by_name[name] for one in sums) for name in sums[0].by_name})


@given(SITES)
def test_sums_give_what_the_single_figures_would(sites: list[tuple[float | None, float | None]]) -> None:
    """Mean, variance over the sites and share of winners, to 1e-9, over the sites that have a metric."""
    figures = [federated for federated, _ in sites if federated is not None]
    wins = sum(one is not None and other is not None and one > other for one, other in sites)

    found = gain_over_sites(added([gain_sums(federated, (siloed,)) for federated, siloed in sites]))

    assert found.sites == len(figures)
    if not figures:
        assert (found.mean, found.fairness, found.incentive) == (None, None, None)
        return
    assert found.mean == pytest.approx(statistics.fmean(figures), abs=1e-9)
    assert found.incentive == wins / len(figures)
    if len(figures) >= FEWEST_FOR_VARIANCE:
        assert found.fairness == pytest.approx(statistics.pvariance(figures), abs=1e-9)
        assert found.fairness >= 0


@given(METRICS, st.lists(METRICS, max_size=2))
def test_every_integer_lies_within_what_the_manifest_announces(
    federated: float | None, baselines: list[float | None]
) -> None:
    """One site and one win at most, a metric and its square of at most one; so many sites never wrap 64 bits."""
    sums = gain_sums(federated, baselines)

    assert 0 <= sums.gained <= sums.measured <= 1
    assert sums.metric_squared is not None
    assert 0 <= sums.metric_squared <= sums.metric <= GAIN_SCALE
    assert MOST_SITES * GAIN_SCALE < 1 << 63


def test_a_site_without_a_metric_sends_zeros() -> None:
    """For any results of the baselines."""
    assert set(gain_sums(None, (0.9,)).by_name.values()) == {0}


@pytest.mark.parametrize(
    ("baselines", "gained"),
    [((0.7,), 1), ((0.8,), 0), ((0.9,), 0), ((), 0), ((None,), 0), ((0.7, 0.9), 0), ((0.7, None), 0), ((0.7, 0.1), 1)],
)
def test_a_win_beats_every_baseline(baselines: tuple[float | None, ...], gained: int) -> None:
    """A tie is no win, and neither is a missing comparison."""
    assert gain_sums(0.8, baselines).gained == gained


@for_each("sites", range(1, FEWEST_FOR_VARIANCE))
def test_few_sites_have_no_variance(sites: int) -> None:
    """It would tell each of them what the others reached."""
    found = gain_over_sites(added([gain_sums(0.1 * number, ()) for number in range(sites)]))

    assert found.fairness is None
    assert found.mean is not None


@pytest.mark.parametrize("metric", [-0.1, 1.1, float("nan"), float("inf")])
def test_what_is_no_share_is_not_summed(metric: float) -> None:
    """An error in another unit is a programmer's mistake here."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        gain_sums(metric, ())
    with pytest.raises(ValueError, match="between 0 and 1"):
        gain_sums(0.5, (metric,))


@pytest.mark.parametrize(
    "sums",
    [
        GainSums(2, 2 * GAIN_SCALE + 1, 0, 0),
        GainSums(2, 0, 2 * GAIN_SCALE + 1, 0),
        GainSums(2, 0, 0, 3),
        GainSums(0, 1, 0, 0),
        GainSums(2, -1, 0, 0),
    ],
)
def test_impossible_sums_are_refused(sums: GainSums) -> None:
    """They are no sums of what honest sites send."""
    with pytest.raises(ValueError, match="beyond what"):
        gain_over_sites(sums)


def test_without_squares_there_is_a_mean_and_no_variance() -> None:
    """With a plan whose colluders would leave two sites, no squares are sent, however many have a metric."""
    found = gain_over_sites(GainSums(5, 4 * GAIN_SCALE, None, 2))

    assert (found.mean, found.fairness, found.incentive) == (0.8, None, 0.4)
