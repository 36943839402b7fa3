"""A site's report and card about a sweep, after the coordinator has announced the choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_agent.desk.findings.kept_findings import choice_in_words
from site_agent.trainer.trainer_files import keep_choice
from tests.rehearsal.study import made_up_identities, plan_with


@pytest.mark.parametrize("chosen", range(3))
@pytest.mark.parametrize("at", range(3))
def test_every_alternative_names_the_chosen_run_and_its_values(tmp_path: Path, at: int, chosen: int) -> None:
    """The choice stands once for all runs of the sweep; before it, and for a damaged file, none is named."""
    sweep = {"keys": ["optimiser.learning_rate"], "alternatives": [[1.0], [0.5], [0.25]]}
    plans = plan_with(made_up_identities(), changes={"checkpoint": "global", "sweep": sweep}).alternatives
    plan, opening = plans[at], f"The plan compares 3 alternative settings, and this run is alternative {at + 1}."

    assert choice_in_words(tmp_path, plan_with(made_up_identities())) is None
    assert choice_in_words(tmp_path, plan) == f"{opening} The best alternative has not been chosen yet."
    keep_choice(tmp_path, plans[2], chosen)
    which = "This run" if at == chosen else f"The run {plans[chosen].run_name}"
    values = f"optimiser.learning_rate {(1.0, 0.5, 0.25)[chosen]:g}"
    said = f"{opening} {which} has the lowest validation loss over all sites ({values}), according to the coordinator."
    assert choice_in_words(tmp_path, plan) == said
    keep_choice(tmp_path, plans[2], 7)
    assert choice_in_words(tmp_path, plan) == f"{opening} The best alternative has not been chosen yet."
