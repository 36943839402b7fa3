"""The failures that a person can do something about, in three sentences.

What happened, what it means for the data, what to do. Each kind names who can act and carries the
exit status with which a program ends; a programmer's mistake is a plain ValueError and never
caught.
"""

from __future__ import annotations

from typing import ClassVar


class OperatorError(Exception):
    """A failure that a person running this program can do something about."""

    exit_status: ClassVar[int] = 1

    def __init__(self, *, what: str, consequence: str, remedy: str) -> None:
        super().__init__(f"{what} {consequence} {remedy}")
        self.what, self.consequence, self.remedy = what, consequence, remedy

    def lines(self, program: str) -> str:
        """The error as an operator reads it: the program and what happened, then one line each."""
        return f"{program}: {self.what}\n  {self.consequence}\n  {self.remedy}"


class UsageError(OperatorError):
    """The command was called with words that do not fit; nobody else needs to be called."""

    exit_status = 2


class RefusedError(OperatorError):
    """The other side, the policy or the register says no; a person there has to change that."""

    exit_status = 77


class ConfigurationError(OperatorError):
    """The operator's own file is wrong; no one else needs to be called."""

    exit_status = 78


class DataError(OperatorError):
    """The hospital's table does not meet its declaration; the data manager can mend it."""

    exit_status = 78


class ProtocolError(OperatorError):
    """A peer sent what no honest peer of this version sends; the stream with it ends."""


class UnavailableError(OperatorError):
    """A peer, a disk or a process is not there at the moment; trying again later is sensible."""
