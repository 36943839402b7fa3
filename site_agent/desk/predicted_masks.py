"""Writes predicted masks: a grey PNG file for each row, in a new folder next to the table of predictions.

The files are named after the row's number in the table, never after a patient. The folder is written completely or
not at all, and before the table that names its files. Only its owner can read it.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.errors import UsageError
from protos.plan.networks.convolutional_networks import ImageSize
from site_agent.desk.result_files import write_result

MASK_COLUMNS: Final = ("mask", "mask_share")
_INSIDE: Final = 255


def check_mask_folder(output: Path) -> None:
    """Raise an error if the folder for masks already exists. This is checked before anything is computed.

    Raises:
        UsageError: the folder exists.
    """
    folder = _folder(output)
    if folder.exists() or folder.is_symlink():
        raise UsageError(
            what=f"The masks would be written to {folder.name}, which already exists.",
            consequence="Nothing was predicted or overwritten, and nothing left this site.",
            remedy="Name another file with --output, or remove this folder.",
        )


def write_masks(
    output: Path, size: ImageSize, rows: npt.NDArray[np.int64], parts: Iterable[npt.NDArray[np.bool_]]
) -> Iterator[list[float | str]]:
    """Write the predicted masks. Return the path of each mask, and the fraction of pixels that the mask covers.

    Args:
        rows: the positions of the rows in their table, from 0.
        parts: the masks in this order, in arrays of shape (some rows, pixels).

    Raises:
        UsageError: the unfinished folder, or a file in its place, cannot be removed.
    """
    from PIL import Image

    folder = _folder(output)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Otherwise the masks could be written into a linked folder or into another user's folder.
    if os.path.lexists(partial):
        raise UsageError(
            what=f"The masks are written to {partial.name} first, and this folder cannot be removed.",
            consequence="No prediction was written, and nothing left this site.",
            remedy=f"Remove {partial.name}, or name another file with --output.",
        )
    cells: list[list[float | str]] = []
    try:
        for row, mask in zip(rows.tolist(), chain.from_iterable(parts), strict=True):
            name, stream = f"{row + 1:06d}.png", io.BytesIO()
            pixels = np.where(mask, _INSIDE, 0).astype(np.uint8).reshape(size.height, size.width)
            Image.fromarray(pixels).save(stream, "PNG")
            write_result(partial / name, stream.getvalue())
            cells.append([f"{folder.name}/{name}", float(mask.mean())])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # nobody uses half of the masks
        raise
    if cells:
        partial.rename(folder)
    return iter(cells)


def remove_masks(output: Path) -> None:
    """Remove the masks if the table of predictions could not be written, so that the same command can be repeated."""
    shutil.rmtree(_folder(output), ignore_errors=True)


def _folder(output: Path) -> Path:
    return output.with_name(f"{output.stem}-masks")
