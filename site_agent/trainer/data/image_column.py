"""The column of a table that has the path of each row's image, and what the contract declares about the images.

The network then reads the images alone. The columns that an image becomes follow from the declaration, as those of
every feature do: one for each pixel and channel, in the order in which a network of images lays them out.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.convolutional_networks import ImageSize
from site_agent.trainer.data.codes import Code, Name, Words

CHANNEL_NAMES: Final = {1: ("grey",), 3: ("red", "green", "blue")}


def _beside_the_table(folder: str) -> str:
    path = PurePosixPath(folder)
    if not folder.isprintable() or path.is_absolute() or ".." in path.parts:
        raise ValueError('folder is the path of a folder from the table\'s folder, without ".."; "." is that folder')
    return folder


class ImageColumn(Document):
    """The path of one image for each row, in a folder beside the table: PNG or JPEG.

    Attributes:
        folder: from the table's folder.
        image: the size that the network reads; the plan's `architecture.image` has to be equal.
        bits: of one channel of a pixel in the files; 16 is for grey PNG files.
        window: the intensities that become 0 and 1, others in between; None takes all that `bits` allows.
        orientation: `exif` turns an image as its EXIF entry says; `stored` ignores the entry.
        resize: `refuse` wants files of exactly this size; `stretch` gives each file this size.
    """

    name: Name
    role: Literal["image"]
    folder: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_beside_the_table)]
    image: ImageSize
    bits: Literal[8, 16] = 8
    window: tuple[StrictInt, StrictInt] | None = None
    orientation: Literal["exif", "stored"] = "exif"
    resize: Literal["refuse", "stretch"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    note: Words | None = None

    @model_validator(mode="after")
    def _readable(self) -> ImageColumn:
        low, high = self.limits
        if not 0 <= low < high <= self.highest:
            raise ValueError(f"window is the lowest and the highest intensity, between 0 and {self.highest}")
        if self.bits == 16 and self.image.channels != 1:
            raise ValueError("bits: 16 is for grey images, with channels: 1")
        return self

    @property
    def highest(self) -> int:
        """The highest intensity of a file."""
        return (1 << self.bits) - 1

    @property
    def limits(self) -> tuple[int, int]:
        """The intensities that become 0 and 1."""
        return self.window or (0, self.highest)

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns, channel by channel, in each row by row."""
        name = self.name.lower()
        return tuple(
            f"{name} {channel} row {row} column {column}"
            for channel in CHANNEL_NAMES[self.image.channels]
            for row in range(1, self.image.height + 1)
            for column in range(1, self.image.width + 1)
        )
