"""A connection to the control socket of a running card (docs/control.md)."""

from __future__ import annotations

import json
import socket
from typing import Any

from .errors import ControlError, ProgramError

# The version of the protocol that this is a client of.
PROTOCOL = 1
# Seconds for an answer: a card that has a core answers within 10 s, or says that its core does not.
PATIENCE_S = 60.0


class Connection:
    """Calls methods of a card, one at a time. `OSError` means that the card is not there."""

    def __init__(self, path: str) -> None:
        self._calls = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The result of a method. Raises `ControlError` if the card refuses."""
        self._calls += 1
        request = {"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params or {}}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the card closed the connection")
        answer = json.loads(line)
        if "error" in answer:
            raise ControlError(method, answer["error"])
        return answer["result"]

    def check(self) -> dict[str, Any]:
        """What `card.info` says. Raises `ProgramError` if it speaks another protocol."""
        info: dict[str, Any] = self.call("card.info")
        if info["protocol"] != PROTOCOL:
            raise ProgramError(f"found protocol {info['protocol']}, expected {PROTOCOL}")
        return info

    def close(self) -> None:
        """Ends it."""
        self._lines.close()
        self._socket.close()
