"""Defines the size of images, and random changes with which each image differs a little in every epoch of training.

A site carries out the steps in the order of the plan, on training rows only. A seed of the site, the epoch and the row
decide which image is changed, and how. A mask is changed in the same way as its image.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, StrictInt, model_validator

from protos.plan.documents import Document

LARGEST_IMAGE_NUMBERS: Final = 2**18
Side: TypeAlias = Annotated[StrictInt, Field(ge=1, le=1024)]


class Flip(Document):
    """Half of the images are mirrored. `across` swaps left and right, `down` swaps top and bottom."""

    name: Literal["flip"]
    direction: Literal["across", "down"] = "across"

    @property
    def words(self) -> str:
        """Describe this change of training images in words."""
        return f"half of them are mirrored {self.direction}"


class Shift(Document):
    """Each image is shifted by a random number of pixels, vertically and horizontally. `pixels` is the largest shift.

    The pixels at the free edge get the mean of the training rows.
    """

    name: Literal["shift"]
    pixels: Annotated[StrictInt, Field(ge=1, le=512)]

    @property
    def words(self) -> str:
        """Describe this change of training images in words."""
        return f"each is moved by up to {self.pixels} pixels"


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


Augmentation: TypeAlias = Annotated[Flip | Shift, Field(discriminator="name")]


def augmentation_in_words(steps: tuple[Augmentation, ...]) -> str:
    """Return a sentence about the image changes in training, for the person who reviews the plan."""
    return f"In training, images are changed at random in each epoch: {', '.join(step.words for step in steps)}."


class ImageNetworkSettings(Document):
    """The settings of every network that reads images: their size, and their random changes in training."""

    image: ImageSize
    augmentation: Annotated[tuple[Augmentation, ...], Field(max_length=8)] = ()

    @model_validator(mode="after")
    def _check_augmentation(self) -> Self:
        if len(set(self.augmentation)) != len(self.augmentation):
            raise ValueError("augmentation lists the same change of images twice")
        shortest = min(self.image.height, self.image.width)
        most = max((step.pixels for step in self.augmentation if isinstance(step, Shift)), default=0)
        if most >= shortest:
            raise ValueError(
                f"augmentation moves images by {most} pixels, but the shorter side of the images has only {shortest} "
                "pixels"
            )
        return self
