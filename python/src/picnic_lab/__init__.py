"""PICNIC from Python: start a card, control it, compare it, load what was measured.

    from picnic_lab import Card, ab
    answer = ab(Card("card.toml"), Card("card.toml", host__queues=2), figure_of="latency_p99_ns")
    print(answer.verdict, answer.ratio)

The program `picnic` must be on the path, or named by `$PICNIC`.
"""

from .card import Card
from .errors import (
    CardEnded,
    CardFileError,
    CommandFailed,
    ControlError,
    MissingExtra,
    PicnicError,
    ProgramError,
)
from .lab import Answer, FolderError, Frames, Judged, ab, load, run, sweep

__all__ = [
    "Answer",
    "Card",
    "CardEnded",
    "CardFileError",
    "CommandFailed",
    "ControlError",
    "FolderError",
    "Frames",
    "Judged",
    "MissingExtra",
    "PicnicError",
    "ProgramError",
    "ab",
    "load",
    "run",
    "sweep",
]
