"""A card: started, controlled, stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from types import TracebackType
from typing import IO, Any, Union, cast

from . import program
from .control import Connection
from .errors import CardEnded, PicnicError
from .schema import Report

# Seconds until a started card serves its socket, on a busy machine: the first one with tasks
# measures it before.
START_S = 600.0
# Seconds until a stopped card ends.
PATIENCE_S = 60.0
# Seconds of a card that runs until it is stopped: the program's maximum.
ENDLESS_S = 1e9

Path = Union[str, "os.PathLike[str]"]


class Card:
    """A card file with changed keys, and the process that runs it.

        with Card("web.toml", host__queues=2) as card:
            card.ctl("rss", "set", key="symmetric")
            report = card.stop()

    `path` is a card file; without one, it is the built-in demonstration card. An override is a key
    with `__` for a dot, or the key as it is in `**{"wire[0].rate_pps": 1000}`. Nothing starts
    before `start()` or `with`; an unstarted card is what `ab` and `sweep` take.

    `world="sim"` runs the card in virtual time until `duration` seconds have passed there or the
    wires have finished: it has no socket, so call `wait()` for its report.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        world: str = "host",
        duration: float | None = None,
        **overrides: object,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        self.world = world
        self.duration = duration
        self.overrides = overrides
        self.report: Report | None = None
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"Card({self.path!r}, **{self.overrides!r})"

    def __enter__(self) -> Card:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run = self._run
        if run is None:
            return
        if error is None:
            self.stop()
        else:
            # The pending error says more than this card's error would.
            run.end()
            self._run = None

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._run is not None and self._run.process.poll() is None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._started().process.pid

    def start(self) -> Card:
        """Starts the card and waits until it serves its control socket, or has ended well before.

        Raises `CardFileError`, or `CardEnded` if it cannot start.
        """
        if self._run is not None:
            raise RuntimeError("the card has been started already")
        self.report = None
        self._run = _Run(self)
        if self.world == "host":
            try:
                self._run.connect()
            except BaseException:
                self._run.end()
                self._run = None
                raise
        return self

    def ctl(self, component: str, command: str, **arguments: object) -> Any:
        """A command of a component or the card, as `picnic ctl` has them: `ctl("rss", "get")`.

        Raises `ControlError` if the card refuses, `CardEnded` if it has ended.
        """
        try:
            return self._started().call(f"{component}.{command}", arguments)
        except CardEnded:
            self._run = None
            raise

    def info(self) -> dict[str, Any]:
        """What runs where."""
        return cast("dict[str, Any]", self.ctl("card", "info"))

    def stats(self, *, since_reset: bool = False, counters: bool = False) -> Report:
        """The figures at this moment; with `counters`, those of functions too."""
        return cast(Report, self.ctl("card", "stats", since_reset=since_reset, counters=counters))

    def stop(self) -> Report:
        """Stops the card, all rings flushed, and returns its report.

        Raises `CardEnded` if it ended badly, as with a ledger that does not balance.
        """
        run = self._started()
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
        return self.wait(PATIENCE_S)

    def wait(self, timeout: float | None = None) -> Report:
        """Waits until the card ends on its own and returns its report.

        Raises `TimeoutError` after `timeout` seconds; the card runs on.
        """
        try:
            self.report = self._started().wait(timeout)
        except PicnicError:
            self._run = None
            raise
        self._run = None
        return self.report

    def _started(self) -> _Run:
        if self._run is None:
            raise RuntimeError("the card is not running, try: start()")
        return self._run


class _Run:
    """A process of `picnic run`, its output in files so that it never waits for a reader."""

    def __init__(self, card: Card) -> None:
        self.folder = tempfile.mkdtemp(prefix="picnic-")
        socket = os.path.join(self.folder, "card.sock")
        duration = card.duration
        if duration is None and card.path is None:
            duration = ENDLESS_S
        self.command = [program.find(), "run", *([card.path] if card.path else [])]
        self.command += program.settings({**card.overrides, "control.socket": socket})
        self.command += ["--world", card.world, "--json", "--quiet"]
        if duration is not None:
            self.command += ["--duration", repr(duration)]
        self.socket = socket
        self.is_in_virtual_time = card.world != "host"
        self.connection: Connection | None = None
        self.stdout: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.stderr: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self.stdout, stderr=self.stderr
        )
        # A card ends with the Python process that started it, even if it is not stopped.
        self.ends = weakref.finalize(self, _end, self.process, self.folder)

    def connect(self) -> None:
        """Connects, unless a card of few packets has ended before this process had a core."""
        give_up = time.monotonic() + START_S
        while self.connection is None:
            connection = None
            try:
                connection = Connection(self.socket)
                connection.check()
                self.connection = connection
            except OSError:
                # Not yet up, or about to end.
                if connection is not None:
                    connection.close()
                if self.process.poll() == 0:
                    return
                if self.process.returncode is not None:
                    raise self.failure() from None
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def call(self, method: str, params: dict[str, object]) -> Any:
        if self.connection is None:
            if self.is_in_virtual_time:
                raise RuntimeError("a card in virtual time has no control socket, try: wait()")
            raise self.failure()
        try:
            return self.connection.call(method, params)
        except OSError as error:
            # A card that closed the connection is ending.
            try:
                self.process.wait(PATIENCE_S if isinstance(error, ConnectionError) else 0)
            except subprocess.TimeoutExpired:
                raise error from None
            raise self.failure() from error

    def wait(self, timeout: float | None) -> Report:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the card has not ended for {timeout} s") from None
        report = program.read(self.text(self.stdout))
        if self.process.returncode != 0 or report is None:
            raise self.failure()
        self.end()
        return cast(Report, report)

    def failure(self) -> Exception:
        """The error with which the process ended."""
        status, printed = self.process.returncode, program.read(self.text(self.stdout))
        stderr = self.text(self.stderr)
        self.end()
        if printed and printed.get("errors"):
            try:
                program.fail(self.command, status, printed, stderr)
            except Exception as error:
                return error
        report = cast("Report | None", printed)
        return CardEnded(self.command, status, stderr, report)

    def text(self, file: IO[str]) -> str:
        if file.closed:
            return ""
        file.seek(0)
        return file.read()

    def end(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.ends()
        self.stdout.close()
        self.stderr.close()


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
