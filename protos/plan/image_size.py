"""Defines the size of the images that a network reads."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StrictInt, model_validator

from protos.plan.documents import Document

LARGEST_IMAGE_NUMBERS: Final = 2**18
Side: TypeAlias = Annotated[StrictInt, Field(ge=1, le=1024)]


class ImageSize(Document):
    """The size of the images that a network reads. `channels` is 1 for grey and 3 for red, green and blue."""

    height: Side
    width: Side
    channels: Literal[1, 3] = 1

    @model_validator(mode="after")
    def _bounded(self) -> ImageSize:
        if self.numbers > LARGEST_IMAGE_NUMBERS:
            raise ValueError(
                f"an image has {self.numbers} values, but at most {LARGEST_IMAGE_NUMBERS} values are possible"
            )
        return self

    @property
    def numbers(self) -> int:
        """Return the number of values in one image."""
        return self.pixels * self.channels

    @property
    def pixels(self) -> int:
        """Return the number of pixels in one image, for any number of channels."""
        return self.height * self.width

    def __str__(self) -> str:
        """Return the image size as text, such as `64 by 64 pixels, grey`."""
        return f"{self.height} by {self.width} pixels, {'grey' if self.channels == 1 else 'colour'}"
