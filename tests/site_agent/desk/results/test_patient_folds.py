"""The folds in which a site's own models are compared before they are joined."""

from __future__ import annotations

import numpy as np
import pytest

from protos.errors import DataError
from site_agent.desk.results.joining_models import FOLDS, _patient_folds, fit_own_models
from site_agent.trainer.data.dataset import Dataset, Examples
from tests.for_each import for_each


@for_each("seed", range(20))
def test_a_patient_is_in_one_fold_and_classes_are_in_all(seed: int) -> None:
    """Rows of one patient stay together; each fold has its part of the rarer class."""
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, 40, 100)
    of_patient = generator.random(40) < 0.3
    targets = of_patient[patients].astype(np.float32)

    folds = _patient_folds(targets, patients, seed, has_classes=False)

    assert all(len(set(folds[patients == patient])) == 1 for patient in patients)
    positive = [len(set(patients[(folds == fold) & (targets == 1)])) for fold in range(FOLDS)]
    assert max(positive) - min(positive) <= 1


@pytest.mark.parametrize("rows", [4, 12])
def test_too_few_patients_are_refused(rows: int) -> None:
    """Fewer patients than folds, or a class that one fold would hold as a whole."""
    features, targets = (
        np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32),
        np.zeros(rows, np.float32),
    )
    targets[0] = 1.0
    part = Examples(features=features, targets=targets)
    classes = ("negative", "positive")
    dataset = Dataset(
        training=part, validation=part, test=part, columns=("a", "b", "c", "d"), task="binary", classes=classes
    )

    with pytest.raises(DataError):
        fit_own_models(dataset, 0)
