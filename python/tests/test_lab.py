"""Comparisons, experiments and the frames that they are loaded into."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import pandas

from picnic_lab import (
    Card,
    CommandFailed,
    FolderError,
    Frames,
    Judged,
    MissingExtra,
    ab,
    load,
    run,
    sweep,
)

# Short, and with any noise of this machine.
SHORT: dict[str, Any] = {
    "seconds": 0.05,
    "most_pairs": 40,
    "no_cost": True,
    "allow_loss": 100,
    "allow_others": 100,
}
SLOW: dict[str, Any] = {"wire[0].rate_pps": 50_000}
VERDICTS = {"better", "worse", "no_difference", "too_noisy"}


class Questions(unittest.TestCase):
    folder: tempfile.TemporaryDirectory[str]

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder.name) / name)

    def test_each_side_has_its_own_changes(self) -> None:
        out = self.path("answer")
        passes, drops = Card(**SLOW), Card(**{**SLOW, "rx": [{"function": "drop"}]})
        turned = ab(drops, passes, figure_of="delivered_pps", **SHORT)
        compared = turned.document["outcome"]["whole"]["comparisons"][0]
        self.assertEqual(sum(compared["baseline"]["values"]), 0.0)
        self.assertGreater(sum(compared["candidate"]["values"]), 0.0)
        # Certain also on a busy machine.
        answer = ab(passes, drops, figure_of="delivered_pps", out=out, **SHORT)
        # There, the baseline may differ from itself, so that no verdict is given.
        verdict = answer.verdict
        self.assertIn(verdict, ("worse", "too_noisy"), answer.notes)
        needed = answer.judged[0].pairs_needed
        judged = [Judged(None, verdict, 0.0, 0.0, 0.0, needed)]
        self.assertEqual((answer.judged, answer.ratio), (judged, 0.0), answer.notes)
        self.assertEqual(needed is None, verdict == "worse", answer.notes)
        frames = answer.frames()
        kept = load(out)
        pandas.testing.assert_frame_equal(frames.figures, kept.figures)
        self.check(kept, "measured")
        sides = kept.figures.query("figure == 'delivered_pps'").groupby("side")["value"]
        self.assertEqual(sorted(sides.groups), ["baseline", "baseline again", "candidate"])
        self.assertEqual(len(set(sides.count())), 1)
        self.assertGreaterEqual(sides.count().iloc[0], 10)
        self.assertEqual(kept.figures.attrs["units"]["delivered_pps"], "per_second")
        self.assertEqual(kept.figures.attrs["folder"], out)

    def check(self, frames: Frames, source: str) -> None:
        for frame in frames:
            self.assertFalse(frame.empty)
            self.assertEqual(set(frame["source"]), {source})
            self.assertEqual(set(frame.attrs["sources"].values()), {source})
            units = dict(zip(frame["figure"], frame["unit"]))
            self.assertEqual(frame.attrs["units"], units)
            self.assertTrue(frame.attrs["facts"]["processor"])

    def test_sweep_has_an_answer_for_each_value_and_is_drawn(self) -> None:
        rates = [25_000, 50_000, 100_000]
        answer = sweep(Card(**SLOW), "wire[0].rate_pps", rates, figure_of="received_pps", **SHORT)
        self.assertEqual([one.value for one in answer.judged], rates)
        self.assertEqual([one.verdict in VERDICTS for one in answer.judged], [True] * 3)
        swept = answer.frames().figures.query("series == 'sweep'")
        self.assertEqual(sorted(swept["wire_0_rate_pps"].unique()), rates)
        axes = answer.plot()
        self.assertEqual(
            [text.get_text() for text in axes.get_xticklabels()], list(map(str, rates))
        )
        self.assertIn("received pps", axes.get_ylabel())
        with mock.patch.dict(sys.modules, {"matplotlib": None, "matplotlib.pyplot": None}):
            with self.assertRaises(MissingExtra):
                answer.plot()

    def test_experiment_is_loaded_as_modelled(self) -> None:
        out = self.path("edf")
        frames = run("nicos-firewall", effort="quick", out=out, world="sim", rules=[1, 16])
        self.assertEqual(set(frames.figures["source"]), {"modelled"})
        self.assertEqual(set(frames.figures["experiment"]), {"nicos-firewall"})
        pandas.testing.assert_frame_equal(frames.figures, load(out).figures)
        csv = pandas.read_csv(pathlib.Path(out) / "points.csv")
        self.assertEqual(len(frames.figures), len(csv))
        self.assertAlmostEqual(frames.figures["value"].sum(), csv["value"].sum())

    def test_folders_that_cannot_be_read_are_named_with_the_line(self) -> None:
        good = json.dumps(
            {
                "experiment": "x",
                "point": "a",
                "labels": {},
                "sides": [],
                "failure": {"reason": "no root", "unavailable": True},
                "facts": {"processor": "p"},
            }
        )
        cases: dict[str, tuple[dict[str, bytes], str]] = {
            "empty": ({}, "found no answer.json and no run.json"),
            "answer": ({"answer.json": b"{}"}, "answer.json: found no answer"),
            "binary": ({"answer.json": b"\xff"}, "answer.json: cannot be read"),
            "line": (
                {"run.json": b"{}", "points.jsonl": f"{good}\n[]\n".encode()},
                "points.jsonl:2: not a point",
            ),
        }
        for name, (files, message) in cases.items():
            with self.subTest(name):
                folder = pathlib.Path(self.path(name))
                folder.mkdir()
                for file, text in files.items():
                    (folder / file).write_bytes(text)
                with self.assertRaisesRegex(FolderError, message):
                    load(folder)
        # As root, no mode makes a file unreadable.
        unreadable = pathlib.Path(self.path("unreadable"))
        (unreadable / "answer.json").mkdir(parents=True)
        with self.assertRaisesRegex(FolderError, "answer.json: cannot be read"):
            load(unreadable)
        # The last line of a killed process is not whole.
        points = folder / "points.jsonl"
        points.write_text(f'{good}\n{{"experiment": "x')
        frames = load(folder)
        self.assertTrue(frames.figures.empty)
        failures = [{"point": "a", "reason": "no root"}]
        self.assertEqual(frames.figures.attrs["failures"], failures)

    def test_what_the_program_refuses_is_an_error_in_its_words(self) -> None:
        card = Card(**SLOW)
        cases: dict[str, tuple[Callable[[], object], str]] = {
            "unknown experiment": (lambda: run("none"), "none"),
            "unknown option": (lambda: ab(card, card, nonsense=1), "--nonsense"),
            "unknown workload": (lambda: ab(card, card, "none"), "--workload-kind"),
            "existing folder": (lambda: run("nicos-edf", out=self.path("there")), "found a run"),
        }
        pathlib.Path(self.path("there")).mkdir()
        pathlib.Path(self.path("there"), "run.json").write_text("{}")
        for name, (call, message) in cases.items():
            with self.subTest(name), self.assertRaisesRegex(CommandFailed, message):
                call()
        unfit: list[Callable[[], object]] = [
            lambda: ab(card, Card(world="sim")),
            lambda: run("nicos-edf", effort="some"),
        ]
        for wrong in unfit:
            with self.assertRaisesRegex(ValueError, "expected"):
                wrong()


if __name__ == "__main__":
    unittest.main()
