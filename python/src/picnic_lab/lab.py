"""Comparing cards and running experiments with `picnic lab`, and loading their results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from . import program
from .card import Card, Path
from .errors import MissingExtra, PicnicError
from .schema import Distribution, Document, Outcome, Point, Record

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

Row = dict[str, Any]


class FolderError(PicnicError):
    """A folder is not one of a run or an answer, or cannot be read."""


class Frames(NamedTuple):
    """What was measured, tidy: one value in a row.

    Each row of `figures` has the figure's name, its `unit`, its `source` ("measured", "modelled",
    "predicted" or "fitted"), the `side`, the number of the `repeat`, and a column for each key that
    was varied. `distributions` has histograms: how often (`count`) each `value` was counted. The
    `attrs` of both have `units` and `sources` by figure, `facts` of the machine, `failures` and
    `notes`.
    """

    figures: pandas.DataFrame
    distributions: pandas.DataFrame


@dataclass(frozen=True)
class Judged:
    """A candidate beside the baseline; null where there were too few pairs to tell."""

    value: Any
    """Of the key that a sweep varies; null without a sweep."""
    verdict: str | None
    """"better", "worse", "no_difference" or "too_noisy"."""
    ratio: float | None
    """Candidate by baseline."""
    low: float | None
    """The lower end of the ratio's 95 % interval."""
    high: float | None
    """The upper end of the ratio's 95 % interval."""
    pairs_needed: int | None
    """About how many pairs would give a verdict, if these do not."""


@dataclass(frozen=True)
class Answer:
    """What `ab` and `sweep` found."""

    document: Document
    """All of it, as `picnic lab ab --json` prints it."""

    @property
    def judged(self) -> list[Judged]:
        """Each candidate: one of `ab`, one for each value of `sweep`."""
        fields = cast("dict[str, Any]", self.document)
        points = [
            series for series in self.document["outcome"]["series"] if series["name"] == "sweep"
        ]
        if not points:
            return [_judged(None, fields)]
        values = [next(iter(point["labels"].values()), None) for point in points[0]["points"]]
        return [_judged(value, point) for value, point in zip(values, fields["sweep"])]

    @property
    def verdict(self) -> str | None:
        """The verdict on the only candidate, or on the first."""
        return self.judged[0].verdict

    @property
    def ratio(self) -> float | None:
        """Candidate by baseline, of the only candidate, or of the first."""
        return self.judged[0].ratio

    @property
    def notes(self) -> list[str]:
        """The answer in sentences, and what to know beside it."""
        return self.document["notes"]

    def frames(self) -> Frames:
        """All repeats. Raises `MissingExtra` without pandas."""
        return _frames(*_of_document(self.document))

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the ratios with their 95 % intervals. Raises `MissingExtra` without matplotlib."""
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise MissingExtra("matplotlib", "plots") from error
            axes = pyplot.subplots(figsize=(6, 3), layout="constrained")[1]
        shown = [one for one in self.judged if one.ratio is not None]
        names = ["candidate" if one.value is None else str(one.value) for one in shown]
        ratios = [one.ratio or 0.0 for one in shown]
        below = [
            ratio - (one.low if one.low is not None else ratio) for ratio, one in zip(ratios, shown)
        ]
        above = [
            (one.high if one.high is not None else ratio) - ratio
            for ratio, one in zip(ratios, shown)
        ]
        axes.axhline(1.0, color="gray", linewidth=0.8, linestyle="--", label="baseline")
        axes.errorbar(range(len(shown)), ratios, yerr=[below, above], fmt="o", capsize=4)
        axes.set_xticks(range(len(shown)), names)
        axes.margins(x=0.2)
        axes.set_ylabel(
            f"{self._figure()}\ncandidate / baseline, {self.document['outcome']['source']}"
        )
        axes.legend(loc="best", frameon=False)
        return axes

    def _figure(self) -> str:
        outcome = self.document["outcome"]
        points = [
            outcome["whole"],
            *(point for one in outcome["series"] for point in one["points"]),
        ]
        keys = (one["key"] for point in points for one in point.get("comparisons", []))
        return next(keys, "").replace("_", " ")


def _judged(value: Any, fields: dict[str, Any]) -> Judged:
    about = next((key[8:] for key in fields if key.startswith("verdict_")), "")
    ratio = f"ratio_{about}"
    return Judged(
        value,
        fields.get(f"verdict_{about}"),
        fields.get(ratio),
        fields.get(f"{ratio}_low_95"),
        fields.get(f"{ratio}_high_95"),
        fields.get(f"pairs_needed_{about}"),
    )


def ab(baseline: Card, candidate: Card, workload: str | None = None, **options: object) -> Answer:
    """Measures two cards alternately until the verdict holds, as `picnic lab ab` does.

    `workload` is a kind such as "wrk" or "iperf3", or a command for the client's shell (text with a
    space; then `server` is needed, too). `options` are those of `picnic lab ab`, with `_` for `-`:
    `figure_of="latency_p99_ns"`, `seconds=1`, `out="answer"`, `no_cost=True`.
    """
    words = _card("baseline", baseline) + _card("candidate", candidate)
    return _answer(words, workload, options)


def sweep(
    card: Card,
    key: str,
    values: Sequence[object],
    workload: str | None = None,
    **options: object,
) -> Answer:
    """Measures a card beside itself with each of these values of a key: a curve. See `ab`."""
    shown = ",".join(program.toml(value) for value in values)
    words = [*_card("baseline", card, "--set"), "--sweep", f"{key.replace('__', '.')}={shown}"]
    return _answer(words, workload, options)


def _card(side: str, card: Card, option: str = "") -> list[str]:
    if card.world != "host":
        raise ValueError(f"{side}: found world {card.world!r}, expected 'host'")
    file = [f"--{side}", card.path] if card.path else []
    return file + program.settings(card.overrides, option or f"--{side}-set")


def _answer(words: list[str], workload: str | None, options: dict[str, object]) -> Answer:
    command = ["lab", "ab", *words]
    if workload is not None:
        command += ["--workload" if " " in workload else "--workload-kind", workload]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(option)
        elif value is not None and value is not False:
            command += [option, str(value)]
    return Answer(cast(Document, program.call(command)))


def run(
    experiment: str, *, effort: str = "usual", out: Path | None = None, **settings: object
) -> Frames:
    """Runs an experiment of `picnic lab list` and loads its folder.

    `effort` is "quick", "usual" or "full"; `settings` are the experiment's, lists for several
    values. The folder is `out`, or the next of picnic-lab/1, 2, ...; `attrs["folder"]` names it.
    """
    _pandas()
    efforts: dict[str, list[str]] = {"quick": ["--quick"], "usual": [], "full": ["--full"]}
    if effort not in efforts:
        raise ValueError(f"effort: found {effort!r}, expected one of {', '.join(efforts)}")
    command = ["lab", "run", experiment, *efforts[effort]]
    command += [] if out is None else ["--out", os.fspath(out)]
    for key, value in settings.items():
        command += ["--set", f"{key}={_setting(value)}"]
    return load(program.call(command)["folder"])


def _setting(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_setting(one) for one in value)
    return program.toml(value) if isinstance(value, bool) else str(value)


def load(folder: Path) -> Frames:
    """What `picnic lab run` or `picnic lab ab --out` left in a folder.

    Raises `FolderError` if the folder cannot be read, `MissingExtra` without pandas.
    """
    _pandas()
    path = os.fspath(folder)
    answer = os.path.join(path, "answer.json")
    if os.path.exists(answer):
        document = program.read(_text(answer))
        if document is None or "outcome" not in document:
            raise FolderError(f"{answer}: found no answer of picnic lab ab")
        frames = _frames(*_of_document(cast(Document, document)))
    elif os.path.exists(os.path.join(path, "run.json")):
        frames = _frames(*_of_records(_records(os.path.join(path, "points.jsonl"))))
    else:
        raise FolderError(f"{path}: found no answer.json and no run.json, expected one of them")
    for frame in frames:
        frame.attrs["folder"] = path
    return frames


def _text(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error


def _records(file: str) -> list[Record]:
    """The points, of two of a name the later. A killed process leaves half a last line."""
    found: dict[tuple[str, str], Record] = {}
    lines = _text(file).split("\n")[:-1] if os.path.exists(file) else []
    for number, line in enumerate(lines, 1):
        record = program.read(line)
        if record is None or "sides" not in record:
            raise FolderError(f"{file}:{number}: not a point")
        found[record["experiment"], record["point"]] = cast(Record, record)
    return list(found.values())


_Tables = tuple[list[Row], list[Row], dict[str, Any]]


def _of_document(document: Document) -> _Tables:
    name = document.get("experiment") or document.get("benchmark")
    start: Row = {"experiment": name}
    about = {"facts": document["facts"], "notes": document["notes"], "failures": []}
    outcome = document["outcome"]
    return list(_figures(outcome, start)), list(_histograms(outcome, start)), about


def _of_records(records: list[Record]) -> _Tables:
    figures: list[Row] = []
    histograms: list[Row] = []
    failures, notes = [], []
    for record in records:
        failure = record.get("failure")
        if failure is not None:
            failures.append({"point": record["point"], "reason": failure["reason"]})
        for side in record["sides"]:
            start = {"experiment": record["experiment"], "point": record["point"]}
            start = {**start, "side": side["side"], **record["labels"]}
            figures += _figures(side["outcome"], start)
            histograms += _histograms(side["outcome"], start)
            notes += side["outcome"]["notes"]
    facts = records[-1]["facts"] if records else None
    return figures, histograms, {"facts": facts, "failures": failures, "notes": notes}


def _figures(outcome: Outcome, start: Row) -> Iterator[Row]:
    yield from _of_point(outcome["whole"], {**start, "series": ""})
    for series in outcome["series"]:
        for point in series["points"]:
            yield from _of_point(point, {**start, "series": series["name"], **point["labels"]})


def _of_point(point: Point, start: Row) -> Iterator[Row]:
    for figure in point["figures"]:
        yield from _values(figure["values"], start, figure["key"], figure["unit"], figure["source"])
    for compared in point.get("comparisons", []):
        sides = [compared["baseline"], compared["candidate"]]
        again = {"name": f"{sides[0]['name']} again", "values": compared.get("again", [])}
        for side in [*sides, again]:
            of_side = {**start, "side": side["name"]}
            unit, source = compared["unit"], compared["source"]
            yield from _values(
                cast("list[float]", side["values"]), of_side, compared["key"], unit, source
            )


def _values(
    values: Sequence[float], start: Row, figure: str, unit: str, source: str
) -> Iterator[Row]:
    for repeat, value in enumerate(values):
        marks = {"figure": figure, "unit": unit, "source": source, "repeat": repeat}
        yield {**start, **marks, "value": value}


def _histograms(outcome: Outcome, start: Row) -> Iterator[Row]:
    for one in outcome.get("distributions", []):
        for value, count in one["counts"]:
            marks = {"figure": one["key"], "unit": _unit(one), "source": one["source"]}
            yield {**start, **marks, "value": value, "count": count}


def _unit(one: Distribution) -> str:
    return "nanoseconds" if one["key"].endswith("_ns") else "count"


def _frames(figures: list[Row], histograms: list[Row], about: dict[str, Any]) -> Frames:
    pandas = _pandas()
    frames = []
    columns = ["experiment", "figure", "unit", "source", "value"]
    for rows in (figures, histograms):
        frame = pandas.DataFrame(rows if rows else None, columns=None if rows else columns)
        for mark, name in (("unit", "units"), ("source", "sources")):
            frame.attrs[name] = {row["figure"]: row[mark] for row in rows}
        frame.attrs.update(about)
        frames.append(frame)
    return Frames(*frames)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "frames") from error
    return pandas
