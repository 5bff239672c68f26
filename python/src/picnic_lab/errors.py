"""Errors of the program, as exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .schema import CardFileError as Fault
    from .schema import Report


class PicnicError(Exception):
    """The base of all errors of this package."""


class ProgramError(PicnicError):
    """The program `picnic` is missing, or this package cannot use it."""


class MissingExtra(PicnicError, ImportError):
    """A package that only this call needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed, try: pip install 'picnic-lab[{extra}]'")


class CardFileError(PicnicError):
    """A card file, or a key that was given for it, is wrong.

    `file`, `line` and `key` are those of the first error; `errors` has all of them.
    """

    def __init__(self, errors: Sequence[Fault]) -> None:
        self.errors = list(errors)
        first = self.errors[0]
        self.file: str | None = first["file"]
        self.line: int | None = first["line"]
        self.key: str = first["key"]
        super().__init__("\n".join(_line(error) for error in self.errors))


def _line(error: Fault) -> str:
    place = (error["file"], error["line"], error["key"])
    return "".join(f"{part}: " for part in place if part) + error["message"]


class ControlError(PicnicError):
    """A running card refused a call. `file`, `line`, `key` are null unless a text was wrong."""

    def __init__(self, method: str, error: dict[str, Any]) -> None:
        data = error.get("data")
        data = data if isinstance(data, dict) else {}
        self.code: int = error["code"]
        self.file: str | None = data.get("file")
        self.line: int | None = data.get("line")
        self.key: str | None = data.get("key")
        super().__init__(f"{method}: {error['message']}")


class CommandFailed(PicnicError):
    """A command of the program failed. `status` is its exit status, `stderr` its messages."""

    def __init__(self, command: Sequence[str], status: int, stderr: str) -> None:
        self.command = list(command)
        self.status = status
        self.stderr = stderr
        said = stderr.strip() or "it said nothing"
        super().__init__(f"{command[0]} {command[1]} ended with {_status(status)}: {said}")


class CardEnded(CommandFailed):
    """A card ended badly, or while it was needed. `report` has its figures if there are any."""

    def __init__(
        self, command: Sequence[str], status: int, stderr: str, report: Report | None = None
    ) -> None:
        super().__init__(command, status, stderr)
        self.report = report


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
