"""Defines the alternatives of a plan: other learning rates or strengths, each in a separate run.

All alternatives together are one agreement. Each contains the whole list, so a person who reads one reads all of them.
The run with the lowest validation loss over all sites is chosen. The choice uses sums that a checkpoint over all sites
needs anyway.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import Field, StringConstraints, ValidationError, model_validator

from protos.plan.documents import Document

MOST_ALTERNATIVES: Final = 16

# Only numbers of these sections change the training at sites. The plan refuses keys that change which data is sent.
# Each list position has one spelling, so no number has two keys.
SweptKey: TypeAlias = Annotated[
    str,
    StringConstraints(
        pattern=r"^(optimiser|rate_schedule|method|loss)(\.(0|[1-9][0-9]{0,3}|[a-z][a-z0-9_]{0,39})){1,4}$"
    ),
]
# The JSON type of a plan.
Settings: TypeAlias = dict[str, Any]


class Sweep(Document):
    """The alternatives of a plan as a table: the swept settings, and for each alternative a value for each setting.

    Attributes:
        keys: each names a number of the plan by its path, such as `optimiser.learning_rate`.
        alternatives: for each alternative one value for each key.
        at: the number of this plan's alternative, counted from 0. A plan's file does not contain it.
    """

    keys: tuple[SweptKey, ...] = Field(min_length=1, max_length=8)
    alternatives: tuple[tuple[float, ...], ...] = Field(min_length=2, max_length=MOST_ALTERNATIVES)
    at: int = Field(default=0, ge=0, lt=MOST_ALTERNATIVES)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("sweep lists a key twice")
        if any(len(values) != len(self.keys) for values in self.alternatives):
            raise ValueError(f"each alternative of sweep needs {len(self.keys)} values, one value for each key")
        if len(set(self.alternatives)) != len(self.alternatives):
            raise ValueError("sweep lists the same alternative twice")
        if self.at >= len(self.alternatives):
            raise ValueError(f"sweep has no alternative number {self.at}. The first alternative has the number 0")
        return self

    def why_impossible(self, settings: Settings, read: Callable[[str], object]) -> Iterator[str]:
        """Yield each reason why an alternative is impossible, or why `settings` differ from alternative number `at`.

        Args:
            settings: the plan as JSON.
            read: a function that reads an alternative from JSON. It raises ValidationError if the JSON is no plan, and
                another ValueError if the plan cannot be an alternative of this one.
        """
        for key, value in zip(self.keys, self.alternatives[self.at], strict=True):
            found = _find(settings, key)
            if found is None:
                yield f"sweep lists the key {key}, but the plan has no number with this key"
                return
            if found[0][found[1]] != value:
                yield (
                    f"alternative {self.at} of sweep has {key} {value:g}, but the plan itself has "
                    f"{found[0][found[1]]:g}"
                )
        for number in set(range(len(self.alternatives))) - {self.at}:
            try:
                read(json.dumps(self._settings_of(settings, number)))
            except ValidationError as impossible:
                yield f"alternative {number} of sweep is impossible: {impossible.errors()[0]['msg']}"
            except ValueError as other:
                yield f"alternative {number} of sweep is impossible: {other}"

    def documents(self, settings: Settings) -> Iterator[str]:
        """Yield the plan of each alternative as JSON, without `sweep`. `settings` is the plan of any alternative."""
        for number in range(len(self.alternatives)):
            yield json.dumps(self._settings_of(settings, number))

    def _settings_of(self, settings: Settings, number: int) -> Settings:
        other = copy.deepcopy(settings)
        for key, value in zip(self.keys, self.alternatives[number], strict=True):
            found = _find(other, key)
            assert found is not None
            # A whole number in the plan, such as a number of steps, stays a whole number.
            found[0][found[1]] = int(value) if value.is_integer() else value
        return other | {"sweep": None}

    @property
    def is_last(self) -> bool:
        """Return whether this is the last alternative. The choice among alternatives is announced with its result."""
        return self.at == len(self.alternatives) - 1

    def text_of(self, number: int) -> str:
        """Describe the settings of an alternative in one line, each with its value."""
        pairs = zip(self.keys, self.alternatives[number], strict=True)
        return ", ".join(f"{key} {value:g}" for key, value in pairs)


def chosen_of(losses: Sequence[float]) -> int:
    """Return the alternative with the lowest validation loss. Of several equal alternatives, return the first."""
    return min(range(len(losses)), key=losses.__getitem__)


def _find(settings: Settings, key: str) -> tuple[Any, str | int] | None:
    """Find a number of the plan by the path of its setting. Return its container, and its name or index there."""
    *path, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    holder: Any = settings
    try:
        for part in path:
            holder = holder[part]
        value = holder[last]
    except (KeyError, IndexError, TypeError):
        return None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else (holder, last)
