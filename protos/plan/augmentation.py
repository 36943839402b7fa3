"""Defines random changes of the training images, so that each image differs a little in every epoch.

A site carries out the steps in the order of the plan, on training rows only. A seed of the site, the epoch and the row
decide which image is changed, and how. A mask is changed in the same way as its image.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StrictInt

from protos.plan.architecture import Architecture, ImageNetwork, UNetNetwork
from protos.plan.documents import Document


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


Augmentation: TypeAlias = Annotated[Flip | Shift, Field(discriminator="name")]


def augmentation_in_words(steps: tuple[Augmentation, ...]) -> str:
    """Return a sentence about the image changes in training, for the person who reviews the plan."""
    return f"In training, images are changed at random in each epoch: {', '.join(step.words for step in steps)}."


def why_not_augmented(steps: tuple[Augmentation, ...], network: Architecture) -> Iterator[str]:
    """Yield every reason why a network cannot be trained with these changes of images, each as a short text."""
    if not steps:
        return
    if not isinstance(network, ImageNetwork | UNetNetwork):
        yield f"augmentation changes images, but the network {network.name} does not read images"
        return
    if len(set(steps)) != len(steps):
        yield "augmentation lists the same change of images twice"
    shortest = min(network.image.height, network.image.width)
    if (most := max((step.pixels for step in steps if isinstance(step, Shift)), default=0)) >= shortest:
        yield (
            f"augmentation moves images by {most} pixels, but the shorter side of the images has only {shortest} pixels"
        )
