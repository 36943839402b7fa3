"""Defines the errors that a person can correct.

Each error has three sentences: what happened, what that means for the data, and what to do. Each class of error has the
exit status of the program and an identifier. A programmer's mistake is a plain ValueError and never caught.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


class OperatorError(Exception):
    """A person who runs this program can correct this failure."""

    exit_status: int = 1
    code: str = "E001"

    def __init__(self, *, what: str, consequence: str, remedy: str, code: str | None = None) -> None:
        """Create the error. `code` is an identifier; the default is the class's own code."""
        super().__init__(("\n" if "\n" in what else " ").join((what, consequence, remedy)))
        self.what, self.consequence, self.remedy = what, consequence, remedy
        self.code = code or self.code

    def lines(self, program: str) -> str:
        """Return the error as text: first the program and the failure, then the consequence and the remedy."""
        first, *more = self.what.split("\n")
        return "\n".join((f"{program}: {first} [{self.code}]", *more, f"  {self.consequence}", f"  {self.remedy}"))


class UsageError(OperatorError):
    """The command line is wrong. The person who typed the command can correct it."""

    exit_status = 2
    code = "E002"


class RefusedError(OperatorError):
    """A peer, the policy or the register of sites refused the request. Only the responsible person can permit it."""

    exit_status = 77
    code = "E003"


class ConfigurationError(OperatorError):
    """The operator's own configuration file is wrong. The operator can correct it alone."""

    exit_status = 78
    code = "E004"


class DataError(OperatorError):
    """The hospital's table does not match its contract. The data manager can correct the table or the contract."""

    exit_status = 78
    code = "E005"


class ProtocolError(OperatorError):
    """A peer sent data that no honest peer of this version sends. The connection's stream ends."""

    code = "E006"


class UnavailableError(OperatorError):
    """A peer, a disk, a process or a graphics card is not available now. The operator can retry later."""

    code = "E007"


class DefectError(OperatorError):
    """The program has a defect. The operator sees its kind and place, but no words of the exception."""

    exit_status = 70
    code = "E008"


def to_install(extra: str) -> str:
    """Return the sentence that describes how to install an optional part of this project, such as `site,imaging`."""
    command = f"{sys.executable} -m pip install --constraint constraints.txt '.[{extra}]'"
    return f"In a copy of the repository, run: {command}"


def explained(error: Exception) -> OperatorError:
    """Convert an exception of a command to an error with three sentences.

    The text of an unexpected exception is omitted, because it might quote data.
    """
    match error:
        case OperatorError():
            return error
        case FileNotFoundError() if error.filename is not None:
            return UnavailableError(
                what=f"The path {error.filename} does not exist.",
                consequence="The command did not finish. Earlier records are unchanged.",
                remedy="Correct the path, or create the missing folder. Then run the command again.",
                code="E009",
            )
        case OSError():
            place = "" if error.filename is None else f" {error.filename}"
            return UnavailableError(
                what=f"The operating system refused an operation{place}: {error.strerror or type(error).__name__}.",
                consequence="The command did not finish. Earlier records are unchanged.",
                remedy="Check the disk's free space and the permissions of the paths in use, then try again.",
                code="E009",
            )
        case _:
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
            return DefectError(
                what=f"The program has a defect: {type(error).__name__} at {places}.",
                consequence="It stopped. Nothing more was sent.",
                remedy="Report this line to the project. The line contains no patient data.",
            )
