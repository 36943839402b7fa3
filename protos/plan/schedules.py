"""Defines the course of a run: training at a site, rounds, deadlines and saves.

Every schedule gives every site the same number of steps in a round. So equal weights are fair, and control variates
have one divisor.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias, assert_never

from pydantic import Field, model_validator

from protos.plan.documents import Document
from protos.wire.messages import MOST_ROUNDS


class EpochSchedule(Document):
    """A schedule in epochs. Every site has `batches_per_epoch` batches of rows // batches_per_epoch rows.

    Source: docs/researcher.md, "Methods".
    """

    aggregate: Literal["every-batch", "every-epoch", "every-round"]
    epochs: int = Field(ge=1, le=100_000)
    batches_per_epoch: int = Field(ge=1, le=100_000)
    epochs_per_round: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.aggregate != "every-round" and self.epochs_per_round != 1:
            raise ValueError("epochs_per_round can only be used with aggregate: every-round")
        if self.epochs % self.epochs_per_round:
            raise ValueError(f"epochs must be a multiple of epochs_per_round ({self.epochs_per_round})")
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"the schedule has {self.rounds} rounds, but at most {MOST_ROUNDS} rounds are possible")
        return self

    @property
    def steps_per_round(self) -> int:
        """Return the number of batches that a site trains on in one round."""
        return 1 if self.aggregate == "every-batch" else self.batches_per_epoch * self.epochs_per_round

    @property
    def rounds(self) -> int:
        return self.epochs * self.batches_per_epoch // self.steps_per_round

    def batches(self, rows: int) -> int:  # the other schedule requires this
        """Return the number of batches in an epoch of a site with these training rows; 0 if the rows are too few."""
        return self.batches_per_epoch if rows >= self.batches_per_epoch else 0

    @property
    def rounds_per_measurement(self) -> int:
        """Return the number of training rounds from one measurement to the next. These rounds make one epoch."""
        return max(1, self.batches_per_epoch // self.steps_per_round)


class StepSchedule(Document):
    """A schedule with steps on batches of `batch_rows` rows. A site with few rows uses its rows more often.

    Source: FENDA-FL's experiments, 100 steps a round with batches of 4.
    """

    aggregate: Literal["every-steps"]
    rounds: int = Field(ge=1, le=1_000_000)
    steps_per_round: int = Field(ge=1, le=100_000)
    batch_rows: int = Field(ge=1, le=1_000_000)

    def batches(self, rows: int) -> int:
        return rows // self.batch_rows

    @property
    def rounds_per_measurement(self) -> int:
        return 1


def too_few_rows(schedule: EpochSchedule | StepSchedule, rows: int) -> str | None:
    """Return the requirement that this number of rows does not satisfy, such as `5 batches an epoch`, or None."""
    if schedule.batches(rows):
        return None
    match schedule:
        case EpochSchedule(batches_per_epoch=count):
            return f"{count} batches an epoch"
        case StepSchedule(batch_rows=size):
            return f"batches of {size} rows"
        case _:
            assert_never(schedule)


class Timing(Document):
    """The longest times for which the coordinator waits, and how often the state is saved for a restart after a crash.

    Seconds are of a clock that never jumps. Of the two intervals between saves, the first that is reached decides.
    Coordinator and sites also save after the first round and after the last training round.
    """

    contribute_seconds: float = Field(default=3600.0, gt=0)
    grace_seconds: float = Field(default=900.0, gt=0)
    save_every_rounds: int | None = Field(default=None, ge=1, le=1 << 30)
    save_every_seconds: float | None = Field(default=60.0, ge=0)


Schedule: TypeAlias = Annotated[EpochSchedule | StepSchedule, Field(discriminator="aggregate")]
