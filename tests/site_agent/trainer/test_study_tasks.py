"""Every task and method end to end, on real tables: regression, several classes, aligned columns, the heart studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.hospital import read_hospital
from site_agent.trainer.data.contract import read_contract
from tests.site_agent.trainer.sites import (
    NAMES,
    conclude,
    make_plan,
    make_site,
    make_study,
    metrics_of,
    prepare,
    run_rounds,
)

OWN_FAMILIES = (slice(0, 5), slice(5, 12), slice(12, 16))


def test_regression_is_measured_in_the_targets_own_unit(tmp_path: Path) -> None:
    """Diabetes progression (25 to 346 points): errors in points, better than always predicting the mean."""
    schedule = {"aggregate": "every-epoch", "epochs": 30, "batches_per_epoch": 4}
    plan = make_plan(schedule=schedule, optimiser={"name": "adamw", "learning_rate": 0.005})
    configs = [make_site(tmp_path / name, name, table="diabetes", columns=slice(0, 10)) for name in NAMES]
    prepared = [prepare(config, plan) for config in configs]

    shared = run_rounds(plan, [study for _, study, _ in prepared])
    outcomes = [conclude(study, shared) for _, study, _ in prepared]

    for (_, study, preprocessing), outcome in zip(prepared, outcomes, strict=True):
        metrics, scale = metrics_of(study, preprocessing, outcome), preprocessing.target_scale
        assert scale is not None
        assert metrics.keys() >= {"rmse", "mae", "r2"}
        targets = study.dataset.test.targets * scale.deviation
        assert metrics["rmse"] is not None
        assert metrics["mae"] is not None
        assert metrics["r2"] is not None
        assert 30 < metrics["mae"] <= metrics["rmse"] < 80
        expected = (1 - metrics["r2"]) * np.mean((targets - targets.mean()) ** 2)
        assert metrics["rmse"] ** 2 == pytest.approx(expected)
        assert metrics["r2"] > 0.2


def test_several_classes_are_told_apart(tmp_path: Path) -> None:
    """Three cultivars of wine, sites with different columns."""
    schedule = {"aggregate": "every-epoch", "epochs": 20, "batches_per_epoch": 4}
    plan = make_plan(schedule=schedule, optimiser={"name": "adamw", "learning_rate": 0.01})
    families = (slice(0, 7), slice(3, 10), slice(6, 13))
    prepared = [
        prepare(make_site(tmp_path / name, name, table="wine", columns=own), plan)
        for name, own in zip(NAMES, families, strict=True)
    ]

    shared = run_rounds(plan, [study for _, study, _ in prepared])

    for _, study, preprocessing in prepared:
        metrics = metrics_of(study, preprocessing, conclude(study, shared))
        assert metrics["auroc"] is not None
        assert metrics["auroc"] > 0.85


def _aligned_plan(folder: Path, **changes: object) -> Plan:
    columns: dict[str, None] = {}
    for name in NAMES:
        contract = read_contract(Path(read_hospital(folder / name / "hospital.yaml").data.contract))
        columns |= dict.fromkeys(contract.encoded_columns)
    return make_plan(method={"name": "fedavg"}, columns=list(columns), outputs=1, **changes)


def test_averaging_aligns_columns_by_name(tmp_path: Path) -> None:
    """What a site does not record is zero; the whole network is shared and equal everywhere at the end."""
    configs = [make_site(tmp_path / name, name, columns=own) for name, own in zip(NAMES, OWN_FAMILIES, strict=True)]
    plan = _aligned_plan(tmp_path, checkpoint="latest", weighting={"name": "rows", "largest_rows": 1024})
    studies = [make_study(config, plan) for config in configs]

    shared = run_rounds(plan, studies)
    outcomes = [conclude(study, shared) for study in studies]

    for study in studies:
        places = [plan.columns.index(name) for name in study.own.columns]
        features = study.dataset.training.features
        np.testing.assert_array_equal(features[:, places], study.own.training.features)
        assert not np.delete(features, places, axis=1).any()
        assert study.rows == 128  # 114 training rows on the public grid of two significant bits
    for name, array in outcomes[0].values.items():
        np.testing.assert_array_equal(array, outcomes[1].values[name])


def test_all_that_does_not_fit_a_table_is_told_at_once(tmp_path: Path) -> None:
    """Another outcome, a column that the plan spells otherwise, and too few rows: one refusal, three reasons."""
    config = make_site(tmp_path, table="wine")
    columns = list(read_contract(Path(read_hospital(config).data.contract)).encoded_columns)
    misspelt = [f"{columns[0]}s", *columns[1:]]
    many = {"aggregate": "every-epoch", "epochs": 1, "batches_per_epoch": 1000}

    with pytest.raises(ConfigurationError) as refusal:
        make_study(config, make_plan(method={"name": "fedavg"}, columns=misspelt, outputs=1, schedule=many))

    for reason in ("1 outputs", f"{columns[0]} (did you mean {misspelt[0]}?)", "1000 batches an epoch"):
        assert reason in refusal.value.what
    for remedy in ("choose the same outcome", "Ask the federation office to add them to the plan's list", "add rows"):
        assert remedy in refusal.value.remedy


def test_tensors_without_the_hospitals_module_are_refused(tmp_path: Path) -> None:
    """Named tensors serve modules of a hospital's own; hospital.yaml has to say where that is."""
    architecture = {"name": "named-tensors", "tensors": [{"name": "a", "shape": [2], "bound": 1.0}]}

    with pytest.raises(ConfigurationError, match="does not name its file"):
        make_study(make_site(tmp_path), make_plan(architecture=architecture))
