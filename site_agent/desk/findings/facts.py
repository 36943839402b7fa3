"""Collects all facts for a site's report. `site-agent report` shows them as a page, as lines or as JSON.

The metrics of a run and their intervals were computed at its end. This file adds curves, from the stored scores, and
subgroups, which need the patients' columns again. Subgroups are computed only if the hospital's table equals, to the
bit, the table of the run's test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, assert_never, cast

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError, DataError, OperatorError, UnavailableError
from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.comparison.scored_rows import ScoredRows, runs_on_the_same_rows, scored_rows
from site_agent.desk.findings.curves import (
    benefit_of_treating_all,
    calibration_curve,
    decision_curve,
    receiver_operating_characteristic,
)
from site_agent.desk.findings.subgroups import Subgroup, subgroups
from site_agent.desk.findings.thresholds import USUAL_THRESHOLDS, at_thresholds, prevalence_of
from site_agent.desk.results.saved_model import SavedModel, latest_run, load_model
from site_agent.hospital import Hospital
from site_agent.state_folders import require_run_name
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.columns import UNKNOWN
from site_agent.trainer.data.contract import BinaryTarget, Contract, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import Json

RECEIVING: Final = "receiving"  # the key that a report has only at a site that received a model
FEWEST_FOR_CALIBRATION: Final = 100
FEWEST_TO_CHOOSE: Final = 30
_SEED: Final = 20_261_122
_MOST_POINTS: Final = 300
_LEFT_OUT: Final = "so subgroups were not computed."
_CHANGED: Final = f"The hospital's table or contract is not the one that this run was tested on, {_LEFT_OUT}"
_REFUSED: Final = (
    "The hospital's table may not be used as it is now (`site-agent data check` shows why, and who has to agree),"
    f" {_LEFT_OUT}"
)
_UNREAD: Final = f"The hospital's table could not be read now, {_LEFT_OUT}"
_UNACCEPTED: Final = "Nobody has checked this table with `site-agent data check`, or accepted its warnings."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TestPart:
    """The value of each test row in each group column.

    `is_accepted` shows whether a person has checked the table, and accepted its warnings.
    """

    groups: Mapping[str, Sequence[str]]
    is_accepted: bool


def site_facts(
    hospital: Hospital,
    run: str | None,
    thresholds: Sequence[float] = USUAL_THRESHOLDS,
) -> dict[str, Json]:
    """Return all facts about a run at this site for the report.

    Args:
        run: the run's name; None means the run whose model was saved last.
        thresholds: probabilities between 0 and 1 from which a clinician would treat.

    Raises:
        OperatorError: there is no such run or it ended without a report.
    """
    name = latest_run(hospital.state_path) if run is None else run
    model = load_model(hospital.state_path, name)
    kept, facts = scored_rows(hospital.state_path, name), saved_facts(hospital.state_path, name)
    prepare_arithmetic(hospital.training.threads)
    found_part = _test_part(hospital, model, kept)
    part = None if isinstance(found_part, str) else found_part
    found = () if part is None else subgroups(kept.test, kept.scores[FEDERATED], part.groups, _SEED)
    facts |= {
        "date": None,
        "rows_without_outcome": None,
        "rows_put_aside": None,
        "sites": list(model.plan.site_names),
    } | facts
    facts |= _curves(kept) | _at_thresholds(kept, thresholds)
    facts["outcome"] = _outcome(model.preprocessing.contract)
    facts["subgroups"] = [one.to_json() for one in found]
    facts["class_names"] = list(kept.test.classes)
    facts["unit"] = kept.test.unit
    facts["runs_tested_on_these_rows"] = runs_on_the_same_rows(hospital.state_path, kept.dataset)
    facts["shown_models"] = _shown_models(facts)
    prior = cast(Mapping[str, Json], facts.get("prior") or {})  # columns with a suspected unit, or swapped codes
    facts["warnings"] = [
        *(f"Look at {one}" for one in cast(Sequence[str], prior.get("suspicions") or ())),
        *_warnings(facts, kept, found),
        *([found_part] if isinstance(found_part, str) else [] if found_part.is_accepted else [_UNACCEPTED]),
    ]
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
            remedy="Name a run that has finished at this site, or take part in a new run.",
        ) from cause


def prior_rounds(newton_rounds: int) -> int:
    """Return how many rounds a run of federated-prior made. A private run has one round and no Newton rounds."""
    return newton_rounds + 2 if newton_rounds else 1  # the others are for the statistics and for the guard


def _test_part(hospital: Hospital, model: SavedModel, kept: ScoredRows) -> TestPart | str:
    """Return the test rows, or a sentence that explains why the table cannot be used for the report."""
    from site_agent.trainer.data.dataset import prepare_rows, steady_split
    from site_agent.trainer.data.image_folder import temporary_folder
    from site_agent.trainer.data.run_table import check_digest, find_check, table_for_run

    try:
        table, rows = table_for_run(hospital, temporary_folder())
        if model.plan.privacy is not None:  # the same division as in before_rounds.py
            rows = steady_split(table, hospital.data.split)
        dataset, _ = prepare_rows(table, rows)
    except DataError:
        return _REFUSED
    except UnavailableError as error:
        return f"{_UNREAD} {error.what}"
    except OperatorError:
        return _CHANGED
    if dataset.digest != kept.dataset:
        return _CHANGED
    chosen = {name: [labels[row] for row in rows.test] for name, labels in group_labels(table).items()}
    accepted = find_check(hospital.state_path, check_digest(table, hospital.data.split)) is not None
    return TestPart(groups=chosen, is_accepted=accepted)


def _curves(kept: ScoredRows) -> dict[str, Json]:
    if kept.test.task == "regression":
        few = np.unique(np.linspace(0, len(kept.test) - 1, min(len(kept.test), _MOST_POINTS)).round().astype(np.int64))
        said = kept.scores[FEDERATED][few]
        points: Json = {"xs": [float(x) for x in said], "ys": [float(y) for y in kept.test.targets[few].astype(float)]}
        return {"curves": {}, "treat_all": {}, "predicted_and_observed": points}
    outcomes = kept.test.outcomes(kept.scores[FEDERATED])
    curves: dict[str, Json] = {
        name: {outcome: _of_outcome(happened, said) for outcome, happened, said in kept.test.outcomes(scores)}
        for name, scores in kept.scores.items()
    }
    return {
        "curves": curves,
        "treat_all": {outcome: asdict(benefit_of_treating_all(happened)) for outcome, happened, _ in outcomes},
    }


def _at_thresholds(kept: ScoredRows, thresholds: Sequence[float]) -> dict[str, Json]:
    """Return each model's results at each threshold, and the share of each outcome."""
    rows, chosen = kept.test, sorted(set(thresholds))
    found: dict[str, Json] = {
        name: {
            outcome: [one.to_json() for one in at_thresholds(happened, said, chosen, rows.patients)]
            for outcome, happened, said in rows.outcomes(scores)
        }
        for name, scores in kept.scores.items()
    }
    outcomes = rows.outcomes(kept.scores[FEDERATED])
    prevalences: dict[str, Json] = {of: prevalence_of(is_so, rows.patients).to_json() for of, is_so, _ in outcomes}
    return {
        "thresholds": [float(threshold) for threshold in chosen],
        "at_thresholds": found,
        "prevalences": prevalences,
    }


def _shown_models(facts: Mapping[str, Json]) -> list[Json]:
    """Return which models are shown at a threshold: the federated and the best local model."""
    best = cast(Mapping[str, str | None], facts["gain"])["best_local"]
    wanted = dict.fromkeys([FEDERATED, best])
    known = cast(Mapping[str, Json], facts["at_thresholds"])
    return [name for name in wanted if name in known]


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
            unit = f" in {target.unit}" if target.unit else ""
            return f"The number {target.name}{unit}.{note}"
        case _:
            assert_never(target)


def _of_outcome(happened: npt.NDArray[np.bool_], scores: Scores) -> dict[str, Json]:
    roc, calibrated = receiver_operating_characteristic(happened, scores), calibration_curve(happened, scores)
    return {
        "roc": asdict(roc) if roc else None,
        "calibration": asdict(calibrated) if calibrated else None,
        "decision": asdict(decision_curve(happened, scores)),
    }


def _warnings(facts: Mapping[str, Json], kept: ScoredRows, found: Sequence[Subgroup]) -> list[str]:
    """Return the reasons not to rely on the report. The reasons about the gain come first."""
    gain = cast(Mapping[str, Json], facts["gain"])
    warnings = [str(text) for text in cast(Sequence[Json], gain["warnings"])]
    if kept.test.task == "binary":
        positive = int(kept.test.labels.sum())
        fewer = min(positive, len(kept.test) - positive)
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
    if (looks := cast(int, facts["runs_tested_on_these_rows"])) > 1:
        warnings.append(
            f"The same test rows have tested {looks} runs. The best figure of several looks is too good: test the model"
            " on new patients."
        )
    small = [f"{one.group} {one.value}" for one in found if one.is_small]
    if small:
        warnings.append(f"Too few test rows to conclude about these subgroups: {', '.join(small)}.")
    return warnings


def group_labels(table: Table) -> dict[str, tuple[str, ...]]:
    """Return for each group column the group of every row, as text. A row without a value has the group "unknown"."""
    found = {}
    for column in table.contract.groups:
        positions = table.features.get(column.name, table.group_positions.get(column.name))
        if positions is not None:
            names = np.array((*(column.labels or column.codes), UNKNOWN), dtype=object)
            found[column.name] = tuple(names[np.nan_to_num(positions, nan=-1.0).astype(np.int64)])
    return found
