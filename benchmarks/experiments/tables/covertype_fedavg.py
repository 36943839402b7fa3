"""Finds out why FedAvg's published AUROC on covertype is low: by definitions of the metric, and by single changes.

Source: Obeidi, "Global Layers", tables 4, 8, 10, 11 and 15 to 17. FedAvg's network has all seven classes at every site,
so its published mean is over classes that a site lacks, too. Each of those counts 0.5. The published test rows are not
available (`data/covertype.py`). But their classes' frequencies are known, and every class was drawn at random from its
records. So weights make the test rows here count as the published ones would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.experiments.data.covertype import AREAS, area_table, covertype
from benchmarks.experiments.data.recipes import Authors
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.tables.covertype import EPOCHS, NETWORK, OPTIMISER, covertype_plan
from benchmarks.experiments.variants import Outputs, Row, Variant, row_of, run_plans
from protos.plan.architecture import GlobalLayersNetwork, network_tensors
from site_agent.trainer.data.contract_columns import NumericFeature
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.probabilities import probabilities

AS_IS: Final = "as in the covertype table"
SHORT: Final = "the same with 10 epochs"
SHORT_EPOCHS: Final = 10
SEEDS: Final = range(8, 11)  # the first three of the paper's 21
CLASSES: Final = 7
# The number of classes at each area, table 4.
CLASSES_OF_AREAS: Final = {"rawah": 4, "neota": 3, "comanche": 6, "poudre": 4}
# covtype.info, "Class distribution", less the 2,160 records of each class that train and validate.
TEST_RECORDS: Final = np.array([211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510], np.float64) - 2160
_ALL_BUT_EMBEDDING: Final = tuple(
    dict.fromkeys(
        tensor.layer
        for tensor in network_tensors(GlobalLayersNetwork.model_validate(NETWORK), columns=11, outputs=CLASSES)
        if tensor.layer != "input.embedding"
    )
)


def as_it_is(_folder: Path, sites: Sites) -> Sites:
    """Return the sites unchanged."""
    return sites


def with_one_scale(folder: Path, sites: Sites) -> Sites:
    """Return the sites with numbers standardised by all sites' training rows instead of the site's own rows."""
    return _rescaled(folder, sites)


def with_own_codes(_folder: Path, sites: Sites) -> Sites:
    """Return the sites with their own classes numbered from 0.

    So one output is for different classes at different sites.
    """

    def recoded(rows: Examples, present: npt.NDArray[np.generic]) -> Examples:
        return replace(rows, targets=np.searchsorted(present, rows.targets).astype(rows.targets.dtype))

    found = {}
    for name, dataset in sites.items():
        present = np.unique(dataset.training.targets)
        parts = {part: recoded(getattr(dataset, part), present) for part in ("training", "validation", "test")}
        found[name] = replace(dataset, **parts)
    return found


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of the plan `SHORT`: keys of the plan or of its schedule, the sites' rows, or the number of epochs."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    of_sites: Callable[[Path, Sites], Sites] = as_it_is
    seeds: int = 1
    epochs: int = SHORT_EPOCHS


CHANGES: Final = {
    AS_IS: Change(seeds=len(SEEDS), epochs=EPOCHS),
    SHORT: Change(seeds=2),
    "plain SGD, rate 0.01": Change(keys={"optimiser": {"name": "sgd", "learning_rate": 0.01}}),
    "ten times the rate": Change(keys={"optimiser": OPTIMISER | {"learning_rate": 1e-2}}),
    "mean after every batch": Change(schedule={"aggregate": "every-batch"}),
    "mean after 5 epochs": Change(schedule={"aggregate": "every-round", "epochs_per_round": 5}),
    "weights by rows": Change(keys={"weighting": {"name": "rows", "largest_rows": 8192}}),
    "40 batches an epoch": Change(schedule={"batches_per_epoch": 40}),
    "5 epochs": Change(epochs=5),
    "105 epochs": Change(epochs=105),
    "one scale for all sites": Change(of_sites=with_one_scale),
    "private embedding": Change(keys={"method": {"name": "global-layers", "layers": _ALL_BUT_EMBEDDING}}),
    "own start": Change(keys={"start": "own"}),
    "own codes of classes": Change(of_sites=with_own_codes),
}


def variants() -> list[Variant]:
    """Return the variants: FedAvg as in the covertype table, and FedAvg with one change each."""
    return [
        Variant(name=name, run=_Changed(name).run, seeds_at_once=1, most_seeds=change.seeds)
        for name, change in CHANGES.items()
    ]


@dataclass(frozen=True)
class _Changed:
    """One change, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """Compute this variant's rows for the seeds. See Variant."""
        change = CHANGES[self.name]
        for seed in seeds:
            own = covertype(folder, seed, Authors())
            sites = change.of_sites(folder, own)
            schedule = {"aggregate": "every-epoch", "epochs": change.epochs, "batches_per_epoch": 10}
            keys = {"schedule": schedule | dict(change.schedule)} | dict(change.keys)
            plan = covertype_plan(sites, seed, "fedavg", change.epochs, keys)
            for predicted in run_plans([plan], [sites]):
                dataset = sites[predicted.site]
                weights = TEST_RECORDS[own[predicted.site].test.targets.astype(np.int64)]
                yield row_of(self.name, predicted, dataset, **readings(dataset, predicted.outputs, weights))


def readings(dataset: Dataset, logits: Outputs, weights: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return AUROC and AUPRC over the classes that occur: on logits, and weighted like the published test rows.

    Args:
        dataset: of the site; only its test rows are read.
        logits: float32 of shape (test rows, classes).
        weights: of shape (test rows,), how many published test rows a row stands for; only their ratios matter.

    Returns:
        `classes` is the number of classes present. From it and a mean over them follows the mean over all seven.
    """
    targets = dataset.test.targets.astype(np.int64)
    present, scores = np.unique(targets), probabilities(dataset.task, logits)

    def mean(metric: Callable[..., Any], read: npt.NDArray[Any], **more: Any) -> float:
        return float(np.mean([metric(targets == place, read[:, place], **more) for place in present]))

    return {
        "classes": float(len(present)),
        "auroc_of_logits": mean(roc_auc_score, logits),
        "auroc_published_rows": mean(roc_auc_score, scores, sample_weight=weights),
        "auroc_of_logits_published_rows": mean(roc_auc_score, logits, sample_weight=weights),
        "auprc_of_logits_published_rows": mean(average_precision_score, logits, sample_weight=weights),
    }


def over_all_classes(mean_over_present: float, present: float, of_absent: float) -> float:
    """Return the mean over all seven classes if each class that does not occur has the value `of_absent`."""
    return (present * mean_over_present + (CLASSES - present) * of_absent) / CLASSES


def over_present_classes(mean_over_all: float, present: float, of_absent: float) -> float:
    """Return the mean over the classes that occur, from the mean over all classes. Inverts `over_all_classes`."""
    return (CLASSES * mean_over_all - (CLASSES - present) * of_absent) / present


def _rescaled(folder: Path, sites: Sites) -> Sites:
    raw = {}
    for area in AREAS:
        table, training = area_table(folder, area, Authors())
        numbers = [feature for feature in table.contract.features if isinstance(feature, NumericFeature)]
        columns = [feature.encoded_columns[0] for feature in numbers]
        raw[area] = columns, np.stack([table.features[feature.name][:training] for feature in numbers], axis=1)
    everyone = np.concatenate([values for _, values in raw.values()])
    centre, width = everyone.mean(0), everyone.std(0)
    found = {}
    for name, dataset in sites.items():
        columns, own = raw[name]
        places = [dataset.columns.index(column) for column in columns]

        def again(rows: Examples, places: list[int] = places, own: npt.NDArray[np.float64] = own) -> Examples:
            features = rows.features.astype(np.float64)
            recorded = features[:, places] * own.std(0) + own.mean(0)
            features[:, places] = (recorded - centre) / width
            return replace(rows, features=features.astype(np.float32))

        parts = {part: again(getattr(dataset, part)) for part in ("training", "validation", "test")}
        found[name] = replace(dataset, **parts)
    return found
