"""Tells in which unit a DICOM image has its intensities, so that images of one table that differ are asked about.

CT has Hounsfield units whatever its slope and intercept are. PET names its unit. The numbers of other images are those
of the device, and another slope is another number for the same tissue.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from typing import Final

# The units that the standard defines for PET (PS3.3 C.8.9.1.1.3). Any other text could name a patient.
_UNITS: Final = frozenset(
    (
        *("CNTS", "NONE", "CM2", "CM2ML", "PCNT", "CPS", "BQML", "MGMINML", "UMOLMINML", "MLMING", "MLG", "1CM"),
        *("UMOLML", "PROPCNTS", "PROPCPS", "MLMINML", "MLML", "GML", "STDDEV"),
    )
)
_TAGS: Final = ["Modality", "Units", "RescaleType", "RescaleSlope", "RescaleIntercept"]


def scale_of(content: bytes) -> str:
    """Return the scale of a DICOM image that was read before, in words without a text of the file."""
    import pydicom

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tags = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=_TAGS)
        modality, slope, intercept = tags.get("Modality"), tags.get("RescaleSlope"), tags.get("RescaleIntercept")
        if modality == "PT":
            units = str(tags.get("Units"))
            return f"the unit {units}" if units in _UNITS else "no usual unit"
        if modality == "CT":
            return "Hounsfield units" if tags.get("RescaleType", "HU") == "HU" else "another unit than Hounsfield's"
        return f"slope {float(1 if slope is None else slope):g}, intercept {float(intercept or 0):g}"


def difference(scales: Counter[str]) -> str | None:
    """Return what to ask about images of several scales, or None."""
    if len(scales) < 2:
        return None
    shown = ", ".join(f"{count} have {scale}" for scale, count in scales.most_common(4))
    more = f" and {len(scales) - 4} other scales are there" if len(scales) > 4 else ""
    return f"intensities differ in their scale: {shown}{more}; does the window mean the same in each image?"
