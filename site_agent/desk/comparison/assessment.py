"""Compares all models of this site on its own test rows, for the site's report.

Nothing leaves the site except the result of `sums`, and only if the plan requires sums over the sites and every
hospital has approved that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protos.plan.gain_sums import GainSums, gain_sums
from site_agent.desk.comparison.bootstrap_intervals import Compared, compare
from site_agent.desk.comparison.calibration import Calibration, calibrations
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.gain import FEDERATED, SILOED, Baselines, Gain, gain_of
from site_agent.desk.comparison.resampling import RESAMPLES
from site_agent.trainer.checkpoints import Json


@dataclass(frozen=True, kw_only=True, eq=False)
class Assessment:
    """The results of all models, by name, on the same test rows and the same bootstrap resamples."""

    compared: Compared
    calibrations: Mapping[str, Mapping[str, Calibration]]
    gain: Gain

    @property
    def sums(self) -> GainSums:
        """Return the numbers that this site adds to sums over all sites.

        If the outcome has no AUROC, they are zeros.
        """
        if self.gain.metric != "auroc":
            return gain_sums(None, ())
        return gain_sums(self.gain.federated, (self.gain.siloed,))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models."""
        return tuple(self.compared.evaluations)

    def model(self, name: str) -> dict[str, Json]:
        """Return one model's metrics with intervals, and its calibration, as plain values."""
        return {
            "metrics": dict(self.compared.evaluations[name].metrics),
            "intervals": self.compared.intervals(name),
            "calibration": {of: found.to_json() for of, found in self.calibrations[name].items()},
        }

    def differences(self) -> dict[str, Json]:
        """Return the federated model's metrics minus those of each other model, by the name of the other model."""
        return {name: self.compared.differences(FEDERATED, name) for name in self.names if name != FEDERATED}


def assess(
    rows: HeldOutRows,
    models: Mapping[str, Scores],
    seed: int,
    *,
    baselines: Baselines | None = None,
    resamples: int = RESAMPLES,
) -> Assessment:
    """Test all models on the test rows, compare the models, and report whether the site gained by joining.

    Args:
        models: scores by name, FEDERATED among them.
        seed: of the resamples; from the plan's seed and the site's name, so that a report can be repeated.
        baselines: the best local model and the placebo; None takes SILOED and PLACEBO if they exist.
    """
    if FEDERATED not in models:
        raise ValueError(f"a model named {FEDERATED} is needed; {SILOED} and others are compared with it")
    compared = compare(rows, models, seed, resamples)
    return Assessment(
        compared=compared,
        calibrations={name: calibrations(rows, scores) for name, scores in models.items()},
        gain=gain_of(rows, compared, baselines or Baselines()),
    )
