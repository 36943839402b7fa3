"""Defines the column with the path of each row's image, and the contract's keys about images.

The network then reads only the images. The columns of an image follow from the declaration, as for every feature: one
for each pixel and channel, in the order that networks of images use.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.convolutional_networks import ImageSize
from site_agent.trainer.data.codes import Code, Name, Words

LARGEST_INTENSITY: Final = 1 << 24  # float32 holds every whole number up to here
CHANNEL_NAMES: Final = {1: ("grey",), 3: ("red", "green", "blue")}


def _beside_the_table(folder: str) -> str:
    path = PurePosixPath(folder)
    if not folder.isprintable() or path.is_absolute() or ".." in path.parts:
        raise ValueError('folder is the path of a folder from the table\'s folder, without ".."; "." is that folder')
    return folder


Folder = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_beside_the_table)]
Intensity = StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
Plane = Literal["axial", "coronal", "sagittal"]


class DicomFiles(Document):
    """One DICOM file for each row. If a file has several frames, its path ends in `#` and the frame's number from 1.

    Attributes:
        modality: the required modality, such as CT; None accepts any.
        plane: turns each image to the usual view of this plane; None uses the pixels as they are stored.
        burned_in: `refuse-yes` refuses files with YES in BurnedInAnnotation. `require-no` also refuses files without
            NO.
        patient_tags: `refuse` refuses files that still have the patient's name, number, birth date or address.
    """

    kind: Literal["dicom"]
    modality: Annotated[str, Field(pattern=r"^[A-Z]{2,16}$")] | None = None
    plane: Plane | None = None
    burned_in: Literal["refuse-yes", "require-no"] = "refuse-yes"
    patient_tags: Literal["allow", "refuse"] = "allow"


class NiftiFiles(Document):
    """One slice of a NIfTI volume for each row: the declared slice, or the slice whose number follows `#` in the path.

    Attributes:
        plane: the slice's plane. Slices are counted from the feet to the head, from the front to the back, or from the
            patient's right to the left.
        at: the slice's place between the first (0) and the last (1), if the path has no number. Numbers start from 1.
    """

    kind: Literal["nifti"]
    plane: Plane
    at: float = Field(default=0.5, ge=0, le=1)


class ImageColumn(Document):
    """A column with the path of one image for each row, in a folder next to the table: PNG, JPEG, DICOM or NIfTI.

    Attributes:
        folder: the path of the images' folder, from the table's folder.
        image: the size that the network reads; the plan's `architecture.image` must be equal.
        files: None for PNG and JPEG.
        bits: the bits of one channel of a pixel in the files; 16 is for grey PNG files.
        window: the intensities that become 0 and 1, others in between; None uses all that `bits` allows. DICOM and
            NIfTI need a window, in the unit of the files after their slope and intercept.
        orientation: for PNG and JPEG; `exif` turns an image as its EXIF entry requires; `stored` ignores the entry.
        resize: `refuse` requires files of exactly this size; `stretch` gives each file this size.
    """

    name: Name
    role: Literal["image"]
    folder: Folder
    image: ImageSize
    files: Annotated[DicomFiles | NiftiFiles, Field(discriminator="kind")] | None = None
    bits: Literal[8, 16] = 8
    window: tuple[Intensity, Intensity] | None = None
    orientation: Literal["exif", "stored"] = "exif"
    resize: Literal["refuse", "stretch"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    note: Words | None = None

    @model_validator(mode="after")
    def _readable(self) -> ImageColumn:
        low, high = self.limits
        if not self.lowest <= low < high <= self.highest:
            between = f"between {self.lowest} and {self.highest}"
            raise ValueError(f"window is the lowest and the highest intensity, {between}")
        if self.files is not None and (self.window is None or self.bits != 8 or self.orientation != "exif"):
            raise ValueError("DICOM and NIfTI files need a window; bits and orientation are for PNG and JPEG")
        if isinstance(self.files, NiftiFiles) and self.image.channels != 1:
            raise ValueError("a slice of a NIfTI volume is grey, with channels: 1")
        if self.bits == 16 and self.image.channels != 1:
            raise ValueError("bits: 16 is for grey images, with channels: 1")
        return self

    @property
    def highest(self) -> int:
        """The highest intensity that a pixel of an image file can have."""
        return (1 << self.bits) - 1 if self.files is None else LARGEST_INTENSITY

    @property
    def lowest(self) -> int:
        """The lowest intensity that a pixel of an image file can have."""
        return 0 if self.files is None else -LARGEST_INTENSITY

    @property
    def limits(self) -> tuple[float, float]:
        """The two intensities of a pixel that are converted to 0 and to 1."""
        return self.window or (0, self.highest)

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns for the pixels of an image, ordered by channel, then by row of pixels."""
        name = self.name.lower()
        return tuple(
            f"{name} {channel} row {row} column {column}"
            for channel in CHANNEL_NAMES[self.image.channels]
            for row in range(1, self.image.height + 1)
            for column in range(1, self.image.width + 1)
        )
