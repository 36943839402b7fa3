"""The console over a hospital with a table and a run: accepted warnings were seen, and chosen models exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_agent.console import console_server
from site_agent.desk.examination.finding import find_acceptance
from site_agent.desk.results import simple_models
from site_agent.desk.use.adoption import find_adoption
from tests.site_agent.console.running_console import Running, running_console
from tests.site_agent.trainer.after_a_run import RUN, site_after_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital whose table has warnings, after a run with all its models."""
    folder = tmp_path_factory.mktemp("hospital")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simple_models, "_TREES", 10)
        site_after_run(folder, simple_models=True)
    return folder


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    """A console for everybody."""
    with running_console(folder) as running:
        yield running


def warnings_stop(folder: Path, *, do_stop: bool) -> None:
    """Set in hospital.yaml whether warnings that nobody accepted stop the training."""
    config = folder / "hospital.yaml"
    now = "stop" if do_stop else "tell"
    config.write_text(re.sub("unaccepted_warnings: (stop|tell)", f"unaccepted_warnings: {now}", config.read_text()))


def test_what_is_accepted_is_what_was_seen(folder: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program examines the table meanwhile, the form still has the digest of the page that was read."""
    warnings_stop(folder, do_stop=True)
    run_command, kept = console_server.run_command, folder / "state" / "data" / "check.json"

    async def overtaken(words: Any, place: Path, patience: float) -> Any:
        done = await run_command(words, place, patience)
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"digest": "0" * 64}))
        return done

    monkeypatch.setattr(console_server, "run_command", overtaken)
    page = running.enter().act("examine").body

    (digest,) = re.findall('name="digest" value="([0-9a-f]+)"', page)
    assert "The table cannot be used yet" in page
    assert re.search(f"digest of this examination is {digest[:16]}", page) is None
    assert digest != "0" * 64
    assert len(digest) == 64


def test_warnings_that_do_not_stop_can_still_be_accepted(folder: Path, running: Running) -> None:
    """Title and text agree, the form is there, and after the acceptance the page names the person."""
    warnings_stop(folder, do_stop=False)
    manager = running.enter()
    page = manager.act("examine").body
    (digest,) = re.findall('name="digest" value="([0-9a-f]+)"', page)

    assert "The table can be used. It has warnings that nobody has accepted" in page
    assert "hospital.yaml allows training anyway" in page
    assert "Before training, a person must accept the warnings" not in page
    assert "table_has_warnings" not in page
    accepted = manager.act("accept", digest=digest, by="D. Okoro").body
    after = manager.act("examine").body
    assert "D. Okoro accepted 4 warnings" in accepted
    assert find_acceptance(folder / "state", digest) is not None
    assert "accepted by D. Okoro" in after
    assert 'value="accept"' not in after


def test_a_run_and_a_model_are_chosen_from_lists(
    folder: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody types a name of a run or a model, and what a command prints as warnings is no part of its result."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Python then prints hundreds of lines to standard error
    clinician = running.enter()
    home = clinician.get().body
    models = clinician.act("compare", run=RUN).body
    adopted = clinician.act("adopt", run=RUN, model="logistic_regression", by="Dr Lee").body

    assert re.findall('<select name="run"><option value="([^"]+)">', home) == [RUN]
    assert f"Models of the run {RUN}" in models
    assert '<option value="logistic_regression">' in models
    assert "site-agent" not in models
    assert "Dr Lee adopted logistic regression" in adopted
    adoption = find_adoption(folder / "state")
    assert adoption is not None
    assert adoption.model == "logistic_regression"
