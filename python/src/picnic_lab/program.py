"""The program `picnic`: where it is, whether it fits, and how it is called."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .errors import CardFileError, CommandFailed, ProgramError

# The versions whose JSON `schema.py` describes: the first two numbers.
VERSION = (0, 1)


def find() -> str:
    """The path of the program: `$PICNIC`, or `picnic` on the path.

    Raises `ProgramError` if it is missing or of another version.
    """
    named = os.environ.get("PICNIC")
    path = shutil.which(named or "picnic")
    if path is None:
        where = f"PICNIC={named}" if named else "the path"
        raise ProgramError(
            f"{where}: found no program picnic, expected one, "
            "try: make install, or set PICNIC to its path"
        )
    _check(path, os.stat(path).st_mtime_ns)
    return path


@functools.lru_cache(maxsize=8)
def _check(path: str, _changed: int) -> None:
    """Its version; asked again when the file changes."""
    expected = ".".join(str(number) for number in VERSION)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=120, check=False
        )
        found = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"{path}: cannot be run: {error}") from error
    version = re.match(r"picnic (\d+)\.(\d+)", found)
    if version is None or (int(version[1]), int(version[2])) != VERSION:
        raise ProgramError(f"{path}: found {found or 'no version'!r}, expected picnic {expected}")


def settings(changes: Mapping[str, object], option: str = "--set") -> list[str]:
    """The options that change these keys of a card file; `__` in a key means a dot."""
    words = []
    for key, value in changes.items():
        words += [option, f"{key.replace('__', '.')}={toml(value)}"]
    return words


def toml(value: object) -> str:
    """A value as TOML: text, numbers, booleans, lists and tables of these."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return _quoted(os.fspath(value))
    if isinstance(value, Mapping):
        parts = (f"{_quoted(str(key))} = {toml(part)}" for key, part in value.items())
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml(part) for part in value) + "]"
    raise TypeError(f"found {value!r}, expected text, a number, a boolean, a list or a dict")


def _quoted(text: str) -> str:
    # The escapes of JSON are escapes of TOML, except the one of DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def call(words: Sequence[str]) -> dict[str, Any]:
    """What a command printed with `--json`.

    Raises `CardFileError` or `CommandFailed`. If this is interrupted, the command is asked to stop
    and undoes what it did to the machine.
    """
    command = [find(), *words, "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            process.terminate()
            raise
    printed = read(stdout)
    if process.returncode != 0:
        fail(command, process.returncode, printed, stderr)
    if printed is None:
        raise CommandFailed(command, 0, f"found no JSON object on standard output\n{stderr}")
    return printed


def read(text: str) -> dict[str, Any] | None:
    """A JSON object; none if that is not one."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def fail(
    command: Sequence[str], status: int, printed: dict[str, Any] | None, stderr: str
) -> NoReturn:
    """Raises the error of a failed command."""
    if printed and printed.get("errors"):
        raise CardFileError(printed["errors"])
    raise CommandFailed(command, status, stderr)
