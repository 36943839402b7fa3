"""Divides scikit-learn's 1,797 handwritten digits among hospitals, as PNG files with unequal fractions of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from quickstart.dirichlet_shares import deal
from quickstart.hospitals import HospitalData

DIGITS = "digits"
SIZE = {"height": 8, "width": 8, "channels": 1}
_BRIGHTNESS = 15  # the table's intensities are 0 to 16


def digit_hospitals(count: int, folder: Path, seed: int) -> list[HospitalData]:
    """Divide images of digits among 2 to 20 hospitals. Each has a table, a contract and a folder of PNG files."""
    from PIL import Image
    from sklearn.datasets import load_digits

    bunch = load_digits()
    hospitals = []
    for number, rows in enumerate(deal(np.asarray(bunch.target), count, np.random.default_rng(seed)), start=1):
        name = f"hospital-{number}"
        images = folder / f"{name}-images"
        images.mkdir()
        lines = ["patient,image,digit"]
        for row in rows.tolist():
            Image.fromarray((bunch.images[row] * _BRIGHTNESS).astype(np.uint8)).save(images / f"{row:04d}.png")
            lines.append(f"P{row:04d},{row:04d}.png,{bunch.target[row]}")
        table, contract = folder / f"{name}.csv", folder / f"{name}.contract.yaml"
        table.write_text("\n".join(lines) + "\n")
        contract.write_text(yaml.safe_dump(_contract(images.name), sort_keys=False))
        hospitals.append(HospitalData(name, table, contract))
    return hospitals


def _contract(images: str) -> dict[str, object]:
    return {
        "format": {"header": True},
        "columns": [
            {"name": "patient", "role": "patient", "one_row_per_patient": True},
            {"name": "image", "role": "image", "folder": images, "image": SIZE, "window": [0, 16 * _BRIGHTNESS]},
            {"name": "digit", "role": "target", "task": "multi-class", "codes": [str(digit) for digit in range(10)]},
        ],
    }
