"""The federation of a site with copies of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from site_agent.desk.results.network_baselines import train_alone, train_placebo
from site_agent.desk.results.run_report import make_report
from site_agent.trainer.before_rounds import begin_study
from tests.site_agent.trainer.sites import NAMES, make_plan, make_site


@pytest.mark.parametrize("method", ["scaffold", "fedadam", "ditto"])
def test_the_placebo_repeats_itself_and_is_not_training_alone(tmp_path: Path, method: str) -> None:
    """Copies draw batches of their own, so their average is another model; drawn again it has the same bits."""
    from site_agent.hospital import read_hospital

    hospital = read_hospital(make_site(tmp_path))
    columns = begin_study(hospital, make_plan(), tmp_path)[0].own.columns
    optimiser = {"name": "sgd", "learning_rate": 0.01}
    plan = make_plan(method={"name": method}, columns=list(columns), outputs=1, optimiser=optimiser)
    study, _ = begin_study(hospital, plan, tmp_path)

    once, again, alone = train_placebo(study), train_placebo(study), train_alone(study)

    assert once is not None
    assert again is not None
    assert alone is not None
    np.testing.assert_array_equal(once.test_outputs, again.test_outputs)
    assert not np.array_equal(once.test_outputs, alone.test_outputs)


def test_a_placebo_that_diverges_is_none_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a copy's update is not finite there is no placebo, and the site's report continues without it."""
    from site_agent.hospital import read_hospital
    from site_agent.trainer.requests import Answer, Asked
    from site_agent.trainer.study import Study

    study, _ = begin_study(read_hospital(make_site(tmp_path)), make_plan(), tmp_path)
    train = Study.train

    def diverging(member: Study, asked: Asked, received: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Answer:
        answer = train(member, asked, received)
        answer.updates[-1] = np.nan
        return answer

    monkeypatch.setattr(Study, "train", diverging)

    assert train_placebo(study) is None


def test_the_report_says_what_others_brought_where_the_site_asks(tmp_path: Path) -> None:
    """The report has the placebo's metrics and the federated model's difference to it."""
    from site_agent.hospital import read_hospital

    hospital, plan = read_hospital(make_site(tmp_path, placebo_baseline=True, simple_models=False)), make_plan()
    study, preprocessing = begin_study(hospital, plan, tmp_path)
    from site_agent.trainer.requests import Asked

    study.close(Asked(round=plan.rounds), study.manifest.initial_parameters(plan.seed))
    report = make_report(hospital, study, preprocessing, "law-1")

    assert "placebo" in report
    assert report["gain"]["placebo"] is not None  # type: ignore[index,call-overload]  # JSON


def test_copies_record_what_the_site_records(tmp_path: Path) -> None:
    """A masked plan names the sites that record a column; the copies are none of them and train all the same."""
    from site_agent.hospital import read_hospital

    hospital = read_hospital(make_site(tmp_path))
    columns = list(begin_study(hospital, make_plan(), tmp_path)[0].own.columns)
    partly = {"name": columns[0], "recorded_by": ["ahus", "berlin", "cluj"]}
    others = {"name": "elsewhere", "recorded_by": ["berlin", "cluj", "delft"]}
    plan = make_plan(
        method={"name": "fedavg"},
        sites=[
            {"name": name, "identity": "-".join(["aaa" + letter] * 8)}
            for name, letter in zip((*NAMES, "delft"), "abcd", strict=True)
        ],
        columns=[partly, *columns[1:], others],
        outputs=1,
        masking={"required": True},
    )
    study, _ = begin_study(hospital, plan, tmp_path)

    assert train_placebo(study) is not None
