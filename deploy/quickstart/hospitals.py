"""Writes the tables and data contracts of the example hospitals. Each hospital has its own columns.

There are three sets of hospitals. `uci-heart` is the default: four clinics that recorded partly the same columns for
the same question (deploy/data). `breast-cancer` divides scikit-learn's table (569 patients of the University of
Wisconsin) among hospitals that record different families of measurements. A folder has the three heart studies of the
Global Layers paper.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

CONTRACTS = Path(__file__).parent.parent / "data"
FAMILIES = ("mean", "error", "worst")
UCI_HEART = "uci-heart"
BREAST_CANCER = "breast-cancer"
UCI_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART = {"cleveland": "cleveland.data", "south-africa": "sa.data", "faisalabad": "faisalabad.csv"}


@dataclass(frozen=True)
class HospitalData:
    """One hospital's name, table and contract."""

    name: str
    table: Path
    contract: Path


def uci_hospitals(folder: Path) -> list[HospitalData]:
    """Return four heart clinics with their own patients. Columns that a clinic did not record are absent."""
    source, hospitals = CONTRACTS / UCI_HEART, []
    for name in UCI_HOSPITALS:
        table, contract = folder / f"{name}.data", folder / f"{name}.contract.yaml"
        shutil.copyfile(source / f"{name}.data", table)
        shutil.copyfile(source / f"{name}.yaml", contract)
        hospitals.append(HospitalData(name, table, contract))
    return hospitals


def heart_hospitals(source: Path, folder: Path) -> list[HospitalData]:
    """Return the three heart studies of a folder, with the contracts in deploy/data."""
    hospitals = []
    for name, file in HEART.items():
        contract = folder / f"{name}.contract.yaml"
        shutil.copyfile(CONTRACTS / f"{name}.yaml", contract)
        hospitals.append(HospitalData(name, (source / file).resolve(), contract))
    return hospitals


def dealt_hospitals(count: int, folder: Path, seed: int) -> list[HospitalData]:
    """Divide breast cancer patients among this many hospitals. Groups of columns differ between them."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    patients = np.random.default_rng(seed).permutation(len(bunch.target))
    hospitals = []
    for number, rows in enumerate(np.array_split(patients, count)):
        family = FAMILIES[number % len(FAMILIES)]
        columns = [index for index, name in enumerate(names) if family in name]
        hospital = f"hospital-{number + 1}"
        table, contract = folder / f"{hospital}.csv", folder / f"{hospital}.contract.yaml"
        header = [names[index].replace(" ", "_") for index in columns]
        lines = [",".join(["patient", *header, "diagnosis"])]
        for row in rows:
            values = [f"{bunch.data[row, index]:g}" for index in columns]
            lines.append(",".join([f"P{row:04d}", *values, str(bunch.target_names[bunch.target[row]])]))
        table.write_text("\n".join(lines) + "\n")
        contract.write_text(yaml.safe_dump(_contract(header), sort_keys=False))
        hospitals.append(HospitalData(hospital, table, contract))
    return hospitals


def _contract(header: list[str]) -> dict[str, object]:
    features = [{"name": name, "role": "feature", "type": "numeric"} for name in header]
    return {
        "format": {"header": True},
        "columns": [
            {"name": "patient", "role": "patient"},
            *features,
            {
                "name": "diagnosis",
                "role": "target",
                "task": "binary",
                "positive": ["malignant"],
                "negative": ["benign"],
            },
        ],
    }
