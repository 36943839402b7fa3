"""Defines the columns of a table other than the outcome, and the rules for their codes and names.

A measured feature is a number, or a date that is counted from or to another date. A coded feature is one of several
declared codes, and an image is a path. The encoded columns of a feature follow only from its declaration.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from itertools import permutations
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictFloat, StrictInt, StringConstraints, model_validator

from protos.plan.architecture import ImageSize
from protos.plan.concepts import ConceptName, Unit
from protos.plan.documents import COMPOSED, Document
from site_agent.trainer.data.cell_rules import canonical_code

UNKNOWN: Final = "unknown"


def _as_text(value: object) -> object:
    # YAML reads an unquoted 3 as a number and an unquoted true as a truth value. The number can be written as text
    # again. From a truth value, the spelling of the code in the table cannot be restored.
    if isinstance(value, bool):
        raise ValueError("write this code in quotes, as in the table, because YAML reads it as true or false")
    return str(value) if isinstance(value, int | float) else value


def written_name(cell: str) -> str:
    """Return a column's name as it is compared: one blank for each run of blanks and line ends, no hidden sign."""
    seen = (one for one in unicodedata.normalize("NFC", cell) if one.isprintable() or one.isspace())
    return " ".join("".join(seen).split())


def _name(value: str) -> str:
    if not (name := written_name(value)):
        raise ValueError("a column's name is printable text")
    return name


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] < value[1]:
        raise ValueError("range is the lowest and the highest possible value, lowest first")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
Code = Annotated[str, BeforeValidator(_as_text), AfterValidator(canonical_code)]
Name = Annotated[str, AfterValidator(_name)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=1000), COMPOSED]


class TableColumn(Document):
    """What every column declares: its name in the table, and a note for readers of the contract."""

    name: Name
    note: Words | None = None


def check_codes(codes: Sequence[str], *, fewest: int) -> None:
    """Raise ValueError if a column declares too few codes, an empty code, or the same code twice."""
    if len(codes) < fewest:
        raise ValueError(f"at least {fewest} code{'s are' if fewest > 1 else ' is'} needed")
    if "" in codes:
        raise ValueError("a code cannot be empty; an empty cell is a missing value")
    check_distinct(codes, "these codes are the same (numbers compare by value)")


def check_labels(labels: Sequence[str | None] | None, codes: Sequence[str]) -> None:
    """Raise ValueError if a column does not have exactly one label, or code of a concept, for each code."""
    if labels is not None and len(labels) != len(codes):
        words = "labels and concept_codes have one entry for each code, in the order of codes"
        raise ValueError(f"{words}: {len(codes)}, not {len(labels)}")


def check_distinct(names: Sequence[str], words: str) -> None:
    """If a name occurs more than once, raise a ValueError that lists the first of these names."""
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"{words}: {', '.join(twice[:5])}")


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
        burned_in: `refuse-yes` refuses files with YES in BurnedInAnnotation. `require-no` also refuses files without
            NO.
    """

    kind: Literal["dicom"]
    modality: Annotated[str, Field(pattern=r"^[A-Z]{2,16}$")] | None = None
    burned_in: Literal["refuse-yes", "require-no"] = "refuse-yes"


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


class ImageColumn(TableColumn):
    """A column with the path of one image for each row, in a folder next to the table: PNG, JPEG, DICOM or NIfTI.

    Attributes:
        folder: the path of the images' folder, from the table's folder.
        image: the size that the network reads; the plan's `architecture.image` must be equal.
        files: None for PNG and JPEG.
        bits: the bits of one channel of a pixel in the files; 16 is for grey PNG files.
        window: the intensities that become 0 and 1, others in between; None uses all that `bits` allows. DICOM and
            NIfTI need a window, in the unit of the files after their slope and intercept.
        resize: `refuse` requires files of exactly this size; `stretch` gives each file this size.
    """

    role: Literal["image"]
    folder: Folder
    image: ImageSize
    files: Annotated[DicomFiles | NiftiFiles, Field(discriminator="kind")] | None = None
    bits: Literal[8, 16] = 8
    window: tuple[Intensity, Intensity] | None = None
    resize: Literal["refuse", "stretch"] = "refuse"
    missing_markers: tuple[Code, ...] = ()

    @model_validator(mode="after")
    def _readable(self) -> ImageColumn:
        low, high = self.limits
        if not self.lowest <= low < high <= self.highest:
            between = f"between {self.lowest} and {self.highest}"
            raise ValueError(f"window is the lowest and the highest intensity, {between}")
        if self.files is not None and (self.window is None or self.bits != 8):
            raise ValueError("DICOM and NIfTI files need a window; bits are for PNG and JPEG")
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


_PATTERN: Final = re.compile(r"(%[YmbdHMS]|[-./ :T])+")
_DATE: Final = date(2001, 12, 31)
# The first 28 days of each month, in two years whose digits could be a day and a month: 1012 as 10.12.
_DAYS: Final = tuple(date(year, month, day) for year in (1012, 2011) for month in range(1, 13) for day in range(1, 29))


def patterns_of(pattern: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the date formats of a column as a tuple."""
    return (pattern,) if isinstance(pattern, str) else pattern


def _readable(pattern: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not (patterns := patterns_of(pattern)):
        raise ValueError("pattern needs at least one date format")
    for one in patterns:
        written = datetime(_DATE.year, _DATE.month, _DATE.day).strftime(one) if _PATTERN.fullmatch(one) else ""
        if any(one.replace("%b", "%m").count(part) != 1 for part in ("%Y", "%m", "%d")) or not written:
            told = "a pattern has %Y, %m (or %b, as Jan) and %d once, and between them no more than"
            raise ValueError(f"{told} -./ :T and %H, %M, %S")
    check_distinct(patterns, "these patterns are named more than once")
    for one, other in permutations(patterns, 2):
        for day in _DAYS:
            read = _read(day.strftime(one), other)
            if read is not None and read != day:
                text = f"{day.strftime(one)} is {day} by {one}, and {read} by {other}"
                raise ValueError(f"two patterns read one text as different days: {text}")
    return pattern


Pattern = Annotated[str | tuple[str, ...], AfterValidator(_readable)]


def _read(text: str, pattern: str) -> date | None:
    try:
        return datetime.strptime(text, pattern).date()
    except ValueError:
        return None


class MeasuredFeature(TableColumn):
    """The settings that numeric features and date features have in common.

    `missing` refuses a missing value, or fills it with the median of the training rows. `median-and-flag` adds a column
    that marks filled values. A number becomes one z-scored column.
    """

    role: Literal["feature"]
    range: Range | None = None
    missing: Literal["refuse", "median", "median-and-flag"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    same_for_patient: bool = False
    concept: ConceptName | None = None

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns into which this feature is encoded for a network."""
        name = self.name.lower()
        return (name, f"{name} is missing") if self.missing == "median-and-flag" else (name,)


class NumericFeature(MeasuredFeature):
    """A column with a measured number. `detection_limit` is what <5 and >90 become; `half` is for the lower limit."""

    type: Literal["numeric"]
    unit: Unit | None = None
    detection_limit: Literal["at-limit", "half", "missing"] | None = None

    @model_validator(mode="after")
    def _can_be_missing(self) -> NumericFeature:
        if self.detection_limit == "missing" and self.missing == "refuse":
            raise ValueError("detection_limit: missing needs missing: median-and-flag or median")
        return self


class DateFeature(MeasuredFeature):
    """A column with a date, read as a time in days, or in years of 365.25 days.

    The time is from `since` to the date, or from the date to `until`. Each of the two names another date column, or a
    day such as 2020-01-31. `pattern` is the format of the dates. It can be a list of formats, if no two of them read
    one text as different days.
    """

    type: Literal["date"]
    pattern: Pattern = "%Y-%m-%d"
    since: Name | None = None
    until: Name | None = None
    unit: Literal["days", "years"] = "days"
    future: Literal["refuse", "allow"] = "refuse"

    @model_validator(mode="after")
    def _counted(self) -> DateFeature:
        if (self.since is None) == (self.until is None):
            raise ValueError("give either since or until: a date is read as the time between two days")
        return self

    @property
    def other(self) -> str:
        """The column or day to which the time from this column's date is measured."""
        return self.since or self.until or ""


class CategoricalFeature(TableColumn):
    """A column whose cells each contain one of several declared codes.

    The type `ordinal` means that the codes have an order, `binary` that there are two codes. The encoding `ordinal`
    gives one z-scored column: the code's position among the declared ones, and -1 for unknown. `one-hot` gives one
    column of 0 and 1 for each code and one for unknown.

    A code with fewer than `fewest_rows` training rows counts as unknown. `missing` decides what unknown becomes: a
    value of its own, the most common code with or without a column that marks it, or an error. `concept` names the
    concept of a plan that this column records. `concept_codes` has the concept's code for each own code, if they are
    written differently.
    """

    role: Literal["feature"]
    type: Literal["categorical", "ordinal", "binary"]
    codes: tuple[Code, ...]
    labels: tuple[Words, ...] | None = None
    encoding: Literal["ordinal", "one-hot"] = "ordinal"
    missing: Literal["unknown", "refuse", "most-common", "most-common-and-flag"] = UNKNOWN
    missing_markers: tuple[Code, ...] = ()
    fewest_rows: int = Field(default=1, ge=1)
    same_for_patient: bool = False
    group: bool = False
    concept: ConceptName | None = None
    concept_codes: tuple[Words | None, ...] | None = None

    @model_validator(mode="after")
    def _usable(self) -> CategoricalFeature:
        check_codes(self.codes, fewest=1)
        check_labels(self.labels, self.codes)
        if UNKNOWN in self.codes:
            raise ValueError(f'the code "{UNKNOWN}" is reserved; declare it as one of missing_markers instead')
        if self.type == "binary" and len(self.codes) != 2:
            raise ValueError("a binary column has exactly two codes")
        if self.type == "ordinal" and self.encoding != "ordinal":
            raise ValueError(f"an ordinal column keeps its order; declare it categorical for {self.encoding}")
        if self.concept_codes is not None and (self.concept is None or len(self.concept_codes) != len(self.codes)):
            raise ValueError("concept_codes needs concept, and one entry for each code: the concept's code, or null")
        return self

    @property
    def has_unknown(self) -> bool:
        """Whether an unknown code gets its own value in the encoding."""
        return self.missing in ("unknown", "refuse")

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns into which this feature is encoded for a network."""
        name = self.name.lower()
        values: tuple[str, ...] = (name,)
        if self.encoding == "one-hot":
            values = tuple(f"{name}={code}" for code in (*self.codes, *([UNKNOWN] if self.has_unknown else [])))
        return (*values, f"{name} is missing") if self.missing == "most-common-and-flag" else values


class PatientColumn(TableColumn):
    """The column that identifies the patient of a row. All rows of one patient are in the same part of the split."""

    role: Literal["patient"]
    one_row_per_patient: bool = False


class GroupColumn(TableColumn):
    """A column by which results are divided, not read by the model. A feature has `group: true` instead."""

    role: Literal["group"]
    codes: tuple[Code, ...]
    labels: tuple[Words, ...] | None = None
    missing_markers: tuple[Code, ...] = ()

    @model_validator(mode="after")
    def _usable(self) -> GroupColumn:
        check_codes(self.codes, fewest=1)
        check_labels(self.labels, self.codes)
        return self


class DayColumn(TableColumn):
    """A column with a date, to which the dates of other columns are compared. The model does not read this column.

    In a row without this date, the interval is missing. `pattern` as for DateFeature.
    """

    role: Literal["date"]
    pattern: Pattern = "%Y-%m-%d"
    missing_markers: tuple[Code, ...] = ()
    future: Literal["refuse", "allow"] = "refuse"


class FollowUpColumn(TableColumn):
    """The column with the time to the event, or to the end of follow-up. The target says which of the two.

    No model for predictions reads it, because it is known only afterwards.

    Attributes:
        unit: of the time; days or years (of 365.25 days) for dates.
        longest: the longest possible time, in this unit.
        zero: whether a time of 0 is a mistake or is kept.
        pattern, since: for dates: how they are written, and the date column with the start.
        end: for dates: the administrative end. After it nobody was followed.
        competing: codes of the target that count as censored although another event ended the follow-up.
    """

    role: Literal["follow-up"]
    unit: Unit
    longest: float | None = Field(default=None, gt=0)
    zero: Literal["refuse", "keep"] = "refuse"
    missing: Literal["refuse", "allow"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    pattern: Pattern | None = None
    since: Name | None = None
    end: date | None = None
    competing: tuple[Code, ...] = ()
    concept: ConceptName | None = None

    @model_validator(mode="after")
    def _usable(self) -> FollowUpColumn:
        if (self.pattern is None) != (self.since is None):
            raise ValueError("a follow-up by dates needs both pattern and since")
        if self.pattern is not None and self.unit not in ("days", "years"):
            raise ValueError("the unit of a follow-up by dates is days or years")
        if self.pattern is None and self.end is not None:
            raise ValueError("end is a day, so it needs a follow-up by dates; for a number give longest")
        return self


class IgnoredColumn(TableColumn):
    """A column of the table that is never read."""

    role: Literal["ignore"]


Feature = NumericFeature | DateFeature | CategoricalFeature
FeatureChoice = Annotated[Feature, Field(discriminator="type")]
