"""Tables whose outcome is a mask: scikit-learn's digits as PNG files, with the pixels of the stroke as masks.

The images are real. A mask has the pixels above half of the greatest intensity. A part of the masks is empty, as in
images without the structure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIZE: Final = {"height": 8, "width": 8, "channels": 1}
U_NET: Final[dict[str, Any]] = {"name": "u-net", "image": SIZE, "width": 4}
_GREATEST: Final = 16


def put_row(folder: Path, name: str, image: np.ndarray) -> None:
    """An image of 8 by 8 with intensities from 0 to 16, and its mask, in `images` and `masks`."""
    for part, pixels in (("images", image * 15), ("masks", np.where(image > _GREATEST / 2, 255, 0))):
        (folder / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / part / f"{name}.png")


def mask_contract(folder: str = ".") -> dict[str, Any]:
    """The hospital's declarations; `folder` has both folders."""
    scan = {"name": "scan", "role": "image", "folder": f"{folder}/images", "image": SIZE}
    mask = {"name": "stroke", "role": "target", "task": "segmentation", "folder": f"{folder}/masks"}
    return {"format": {"header": True}, "columns": [{"name": "who", "role": "patient"}, scan, mask]}


def put_table(path: Path, folder: Path, rows: list[int]) -> None:
    """A table of these digits, with their files in the folder."""
    images = load_digits().images
    lines = ["who,scan,stroke"]
    for row in rows:
        is_blank = row % 10 == 0
        put_row(folder, f"{row:04d}", np.minimum(images[row], _GREATEST / 4) if is_blank else images[row])
        lines.append(f"P{row:04d},{row:04d}.png,{row:04d}.png")
    path.write_text("\n".join(lines) + "\n")
