"""Sums the gains of all sites: the mean metric, its fairness, and the percentage of sites that gained.

A site encodes its metric as three or four integers and sends them masked. The coordinator learns only sums. The metric
is between 0 and 1 (AUROC), so a regression has no gain sums. The rules:

* a site without a defined metric sends zeros and is not counted. So if only one site has a metric, the sums show that
  metric;
* squares are sent only if the quorum less the colluders is three or more, and a variance is computed only for four
  sites or more. With two sums, two unknown values could be computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protos.plan.manifest import GAIN_SCALE

FEWEST_FOR_VARIANCE: Final = 4
_NAMES: Final = ("sites with a metric", "metric", "metric squared", "sites that gained")


@dataclass(frozen=True)
class GainSums:
    """One site's integers, or the sums of the integers of several sites.

    Attributes:
        measured: the number of sites with a metric; 0 or 1 at one site.
        metric: of the federated model, in units of 1 / GAIN_SCALE.
        metric_squared: its square, in the same units; None if the plan does not send squares.
        gained: the number of sites whose federated model has a larger metric than all baselines.
    """

    measured: int
    metric: int
    metric_squared: int | None
    gained: int

    @property
    def by_name(self) -> dict[str, int]:
        """Return the summed integers by the names that they have in the manifest."""
        numbers = (self.measured, self.metric, self.metric_squared, self.gained)
        return {name: number for name, number in zip(_NAMES, numbers, strict=True) if number is not None}

    @classmethod
    def from_names(cls, scalars: Mapping[str, int]) -> GainSums:
        """Build the record from the integers by name, as `by_name` returns them."""
        measured, metric, squared, gained = _NAMES
        return cls(scalars[measured], scalars[metric], scalars.get(squared), scalars[gained])


@dataclass(frozen=True, kw_only=True)
class GainOverSites:
    """The mean metric over all sites, its fairness, and the fraction of sites that gained. Sites have equal weights.

    Attributes:
        sites: the number of sites with a metric.
        mean: of the federated model's metric; None if no site has one.
        fairness: the variance of the metric over the sites, divided by their number; smaller is fairer. None for fewer
            than FEWEST_FOR_VARIANCE sites.
        incentive: the share of these sites whose federated model was better than all baselines. A site without a
            baseline does not count as better.
    """

    sites: int
    mean: float | None
    fairness: float | None
    incentive: float | None


def gain_sums(federated: float | None, baselines: Sequence[float | None]) -> GainSums:
    """Return the integers that one site adds to the sums that measure the gain from federated training.

    Args:
        federated: the federated model's metric on the site's own test rows, from 0 to 1; None if it is undefined or the
            task has no such metric.
        baselines: the same metric of the baselines on the same rows: the network trained alone, and FedAvg if it was
            run. The site gained if the federated metric is larger than each of them. It cannot be larger than None.
    """
    if federated is None:
        return GainSums(0, 0, 0, 0)
    for metric in (federated, *baselines):
        if metric is not None and not 0.0 <= metric <= 1.0:
            raise ValueError("a metric that is summed lies between 0 and 1")
    has_won = bool(baselines) and all(metric is not None and federated > metric for metric in baselines)
    return GainSums(1, round(federated * GAIN_SCALE), round(federated * federated * GAIN_SCALE), int(has_won))


def gain_over_sites(sums: GainSums) -> GainOverSites:
    """Compute mean, fairness and incentive from the summed integers, exact to within 1e-9.

    Raises:
        ValueError: honest sites cannot have sent numbers with these sums.
    """
    sites = sums.measured
    largest = sites * GAIN_SCALE
    squared = 0 if sums.metric_squared is None else sums.metric_squared
    if not (0 <= sums.metric <= largest and 0 <= squared <= largest and 0 <= sums.gained <= sites):
        raise ValueError("sums beyond what so many sites can send")
    if not sites:
        return GainOverSites(sites=0, mean=None, fairness=None, incentive=None)
    mean = sums.metric / largest
    # Integers keep digits that a difference of two nearly equal floats would lose. Rounding may still give a negative
    # result.
    spread = sites * squared * GAIN_SCALE - sums.metric**2
    has_spread = sites >= FEWEST_FOR_VARIANCE and sums.metric_squared is not None
    fairness = max(0.0, spread / (largest * largest)) if has_spread else None
    return GainOverSites(sites=sites, mean=mean, fairness=fairness, incentive=sums.gained / sites)
