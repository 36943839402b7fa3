"""Collects the facts of a site's report beyond metrics: curves, groups of patients and warnings.

They are computed at the end of a run, from the rows of its test, and stored with the metrics. `site-agent report` shows
them as a page or as lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, assert_never, cast

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError
from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, calibration_curve, headline_metric
from site_agent.desk.comparison.gain import FEDERATED, FEWEST_NUMBERS, FEWEST_OF_A_CLASS
from site_agent.desk.results.saved_model import latest_run
from site_agent.state_folders import require_run_name
from site_agent.trainer.data.contract import BinaryTarget, Contract, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.disk import Json

RECEIVING: Final = "receiving"  # the key that a report has only at a site that received a model
FEWEST_FOR_CALIBRATION: Final = 100
FEWEST_TO_CHOOSE: Final = 30
_SEED: Final = 20_261_122


def drawn_facts(
    test: HeldOutRows, models: Mapping[str, Scores], dataset: Dataset, contract: Contract, facts: Mapping[str, Json]
) -> dict[str, Json]:
    """Return what the report of a run has beside the comparison of its models, which `facts` contain."""
    groups = subgroups(test, models[FEDERATED], dataset.test_groups, _SEED)
    prior = cast(Mapping[str, Json], facts.get("prior") or {})  # columns with a suspected unit, or swapped codes
    return {
        "outcome": _outcome(contract),
        "unit": test.unit,
        "dataset": dataset.digest,
        "subgroups": [*groups],
        "warnings": [
            *(f"Look at {one}" for one in cast(Sequence[str], prior.get("suspicions") or ())),
            *_warnings(facts, test, groups),
        ],
        **(_of_outcome(test, models) if test.task == "binary" else {}),
    }


def site_facts(state: Path, run: str | None) -> dict[str, Json]:
    """Return all facts about a run, by default the last saved one. Raise OperatorError if it has no report."""
    facts = saved_facts(state, latest_run(state) if run is None else run)
    reports = [json.loads(path.read_bytes()) for path in (state / "reports").glob("*.json")]
    looks = sum(one.get("dataset") == facts.get("dataset") for one in reports)
    if RECEIVING not in facts and looks > 1:
        more = (
            f"The same test rows have tested {looks} runs. The best figure of several looks is too good: test the model"
            " on new patients."
        )
        facts["warnings"] = [*cast(Sequence[Json], facts["warnings"]), more]
    return facts


def saved_facts(state: Path, run: str) -> dict[str, Json]:
    """Return a run's stored report. Raises UsageError for an invalid name, ConfigurationError without a report."""
    require_run_name(run)
    try:
        return cast(dict[str, Json], json.loads((state / "reports" / f"{run}.json").read_bytes()))
    except (OSError, ValueError) as cause:
        raise ConfigurationError(
            what=f"The run {run} has no report that can be read.",
            consequence="No report was made, and nothing was sent.",
            remedy="Name a run that has finished at this site. `site-agent results` shows those of statistics plans.",
        ) from cause


def _of_outcome(test: HeldOutRows, models: Mapping[str, Scores]) -> dict[str, Json]:
    """Return each model's calibration curve, and the share of the test rows that have the outcome.

    The share has the 95% interval of Wilson 1927. Rows of one patient count as one, because they are not independent.
    """
    from scipy.stats import binomtest

    happened, patients = test.labels == 1, len(np.unique(test.owners))
    share = float(happened.mean())
    interval = binomtest(round(share * patients), patients).proportion_ci(method="wilson")
    return {
        "calibration_curves": {name: calibration_curve(happened, scores) for name, scores in models.items()},
        "prevalence": {"value": share, "interval": [float(interval.low), float(interval.high)]},
    }


def _outcome(contract: Contract) -> str:
    target = contract.target
    note = f" {target.note}" if target.note else ""
    match target:
        case BinaryTarget():
            others = "any other code" if target.negative is None else " or ".join(map(str, target.negative))
            codes = " or ".join(map(str, target.positive))
            return f"{target.positive_name}: {target.name} is {codes}. {target.negative_name}: it is {others}.{note}"
        case MultiClassTarget():
            return f"{target.name} is one of {', '.join(map(str, target.codes))}.{note}"
        case RegressionTarget():
            return f"The number {target.name}{f' in {target.unit}' if target.unit else ''}.{note}"
        case _:
            assert_never(target)


def _warnings(facts: Mapping[str, Json], test: HeldOutRows, found: Sequence[Mapping[str, Json]]) -> list[str]:
    """Return the reasons not to rely on the report. The reasons about the gain come first."""
    warnings = [str(text) for text in cast(Sequence[Json], cast(Mapping[str, Json], facts["gain"])["warnings"])]
    if test.task == "binary":
        positive = int(test.labels.sum())
        fewer = min(positive, len(test) - positive)
        if fewer < FEWEST_FOR_CALIBRATION:
            warnings.append(
                f"The calibration curve rests on {fewer} test rows of the rarer class: a rough idea only"
                f" (fewer than {FEWEST_FOR_CALIBRATION})."
            )
    checkpoint = cast(Mapping[str, Mapping[str, Json]], facts[FEDERATED])["checkpoint"]
    chosen_on = cast(Mapping[str, int], facts["rows"])["validation"]
    if checkpoint["rule"] != "latest" and chosen_on < FEWEST_TO_CHOOSE:
        warnings.append(
            f"The checkpoint was chosen with only {chosen_on} validation rows (fewer than {FEWEST_TO_CHOOSE})."
            " With other validation rows the choice could be different."
        )
    if small := [f"{one['group']} {one['value']}" for one in found if one["is_small"]]:
        warnings.append(f"Too few test rows to conclude about these subgroups: {', '.join(small)}.")
    return warnings


FEWEST_ROWS = 10
MOST_VALUES = 20
_RESAMPLES = 500
_MODEL = "model"


def subgroups(
    rows: HeldOutRows, scores: Scores, groups: Mapping[str, Sequence[str]], seed: int
) -> list[dict[str, Json]]:
    """Return the facts about a model's result in each group of patients. Each column has up to MOST_VALUES groups.

    A model that is good on average can be bad for some patients. A group of fewer than FEWEST_ROWS rows has no result.

    `positive` is the number of rows with the outcome, and `predicted` the mean probability, both None unless the
    outcome is yes or no. The headline metric is under its own name, None if it is undefined or the rows are too few.
    `groups` have the value of each row.
    """
    found: list[dict[str, Json]] = []
    for group, values in groups.items():
        cells = np.array(values, dtype=np.str_)
        names, counts = np.unique(cells, return_counts=True)
        for value in sorted(names[np.argsort(-counts, kind="stable")][:MOST_VALUES]):
            facts = _subgroup(rows, scores, np.flatnonzero(cells == value), seed)
            found.append({"group": group, "value": str(value), **facts})
    return found


def _subgroup(rows: HeldOutRows, scores: Scores, members: npt.NDArray[np.int64], seed: int) -> dict[str, Json]:
    metric, is_binary, part = headline_metric(rows.task), rows.task == "binary", rows.part(members)
    # Patients of the rarest class in it, or all its patients if there are no classes.
    fewest = min(part.class_counts, default=len(np.unique(part.owners)))
    found: dict[str, Json] = {
        "rows": len(members),
        "positive": int(part.labels.sum()) if is_binary else None,
        "fewest": fewest,
        "is_small": fewest < (FEWEST_OF_A_CLASS if metric == "auroc" else FEWEST_NUMBERS),
    }
    if len(members) < FEWEST_ROWS:
        return found | dict.fromkeys((metric, "interval", "predicted"))
    compared = compare(part, {_MODEL: scores[members]}, seed, _RESAMPLES)
    return found | {
        metric: compared.metrics[_MODEL][metric],
        "interval": compared.interval(_MODEL, metric),
        "predicted": float(scores[members].mean()) if is_binary else None,
    }
