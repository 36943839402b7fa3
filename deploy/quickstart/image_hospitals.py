"""Divides scikit-learn's 1,797 handwritten digits among hospitals, as PNG files with unequal fractions of the digits.

Source: Elhussein and Gürsoy 2025, "PLayer-FL": for each class the hospitals' shares are drawn from a Dirichlet
distribution with the parameter 0.5. One thing differs: each hospital first receives eight images of each digit, so that
it has every class in training and in test.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from quickstart.hospitals import HospitalData

DIGITS = "digits"
SIZE = {"height": 8, "width": 8, "channels": 1}
CONCENTRATION = 0.5
FEWEST_OF_CLASS = 8
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


def deal(classes: np.ndarray, count: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return the sorted rows of each of `count` sites. `classes` has the class of each row."""
    sites: list[list[int]] = [[] for _ in range(count)]
    for one in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == one))
        sure, others = rows[: count * FEWEST_OF_CLASS], rows[count * FEWEST_OF_CLASS :]
        shares = generator.dirichlet(np.full(count, CONCENTRATION))
        ends = np.rint(np.cumsum(shares)[:-1] * len(others)).astype(int)
        for site, own, more in zip(sites, np.split(sure, count), np.split(others, ends), strict=True):
            site.extend([*own.tolist(), *more.tolist()])
    return [np.array(sorted(site)) for site in sites]


def _contract(images: str) -> dict[str, object]:
    return {
        "format": {"header": True},
        "columns": [
            {"name": "patient", "role": "patient", "one_row_per_patient": True},
            {"name": "image", "role": "image", "folder": images, "image": SIZE, "window": [0, 16 * _BRIGHTNESS]},
            {"name": "digit", "role": "target", "task": "multi-class", "codes": [str(digit) for digit in range(10)]},
        ],
    }
