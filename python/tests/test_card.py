"""Cards that are started, controlled and stopped, and those that end badly."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any, cast
from unittest import mock

from picnic_lab import (
    Card,
    CardEnded,
    CardFileError,
    ControlError,
    MissingExtra,
    PicnicError,
    ProgramError,
    program,
)

RATE: dict[str, Any] = {"wire[0].rate_pps": 10_000}
# Seconds for an event, however busy the machine is.
PATIENCE_S = 120.0
# The code of a card whose core does not answer (docs/control.md).
NO_ANSWER = -32001


def is_there(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds anything; a borrowed core without time is asked again."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found := look():
                return found
        except ControlError as error:
            if error.code != NO_ANSWER or time.monotonic() > give_up:
                raise
        if time.monotonic() > give_up:
            raise TimeoutError(f"found nothing for {PATIENCE_S} s")
        time.sleep(0.01)


class RunningCards(unittest.TestCase):
    def test_card_is_up_controlled_and_stopped(self) -> None:
        with Card(host__queues=2, **RATE) as card:
            self.assertTrue(card.is_running)
            self.assertEqual(len(card.info()["target_cores"]), 2)
            done = wait_for(lambda: card.ctl("rss", "set", key="symmetric"))
            self.assertEqual(done["position"], 0)
            self.assertEqual(wait_for(lambda: card.ctl("rss", "get"))["key"][:4], "6d5a")
            wait_for(lambda: card.stats()["queues"][0]["packets"])
            self.assertIn("functions", wait_for(lambda: card.stats(counters=True)))
            report = card.stop()
            self.assertFalse(card.is_running)
        self.assertEqual(report["times"], "measured")
        self.assertTrue(report["ledger"]["balanced"])
        self.assertEqual(card.report, report)
        with self.assertRaisesRegex(RuntimeError, r"try: start\(\)"):
            card.stop()

    def test_two_cards_run_side_by_side(self) -> None:
        with Card(card__name="one", **RATE) as one, Card(card__name="two", **RATE) as two:
            self.assertEqual([card.info()["name"] for card in (one, two)], ["one", "two"])

    def test_finished_wires_end_the_card(self) -> None:
        with Card(**{**RATE, "wire[0].packets": 100}) as card:
            self.assertEqual(card.wait(PATIENCE_S)["ledger"]["delivered"], 100)

    def test_card_may_end_well_before_it_is_looked_at(self) -> None:
        few: dict[str, Any] = {**RATE, "wire[0].packets": 100}
        not_up_yet = mock.patch("picnic_lab.card.Connection", side_effect=FileNotFoundError)
        with not_up_yet, Card(**few) as card:
            self.assertEqual(card.wait()["ledger"]["delivered"], 100)
        with not_up_yet, Card(**few) as card:
            with self.assertRaisesRegex(CardEnded, "ended with exit status 0") as caught:
                card.info()
            report = caught.exception.report
            self.assertEqual(report and report["ledger"]["delivered"], 100)

    def test_wait_gives_up_and_the_card_runs_on(self) -> None:
        with Card(**RATE) as card:
            with self.assertRaises(TimeoutError):
                card.wait(0.05)
            self.assertTrue(card.stop()["ledger"]["balanced"])

    def test_virtual_time_is_modelled_and_repeats(self) -> None:
        def ledger() -> Any:
            with Card(world="sim", duration=0.002, card__seed=7, **RATE) as card:
                with self.assertRaisesRegex(RuntimeError, "no control socket"):
                    card.stats()
                report = card.wait()
            self.assertEqual(report["times"], "modelled")
            return report["ledger"]

        self.assertEqual(ledger(), ledger())

    def test_error_in_the_block_ends_the_card(self) -> None:
        card = Card(**RATE)
        with self.assertRaises(KeyError), card:
            pid = card.pid
            raise KeyError
        self.assertFalse(is_there(pid))

    def test_card_ends_with_its_python(self) -> None:
        code = (
            "from picnic_lab import Card\n"
            "card = Card(**{'wire[0].rate_pps': 1000}).start()\nprint(card.pid)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        self.assertFalse(is_there(int(done.stdout)))

    def test_killed_card_is_an_error_with_its_signal(self) -> None:
        calls: dict[str, Callable[[Card], Any]] = {
            "ctl": Card.info,
            "wait": Card.wait,
            "stop": Card.stop,
        }
        for name, call in calls.items():
            with self.subTest(name), Card(**RATE) as card:
                os.kill(card.pid, signal.SIGKILL)
                with self.assertRaisesRegex(CardEnded, "ended with signal 9") as caught:
                    call(card)
                self.assertEqual(caught.exception.status, -signal.SIGKILL)
                self.assertFalse(card.is_running)


class Schema(unittest.TestCase):
    """The program's output has exactly the fields that `picnic schema` declares."""

    definitions: dict[str, Any] = program.call(["schema"])["$defs"]

    def check(self, value: Any, schema: Any, place: str) -> None:
        if "$ref" in schema:
            schema = self.definitions[schema["$ref"].rsplit("/", 1)[1]]
        choices = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
        if value is not None and choices:
            self.check(value, choices[0], place)
        elif isinstance(value, dict) and "properties" in schema:
            self.assertLessEqual(set(schema["required"]), set(value), place)
            for key, part in value.items():
                self.assertIn(key, schema["properties"], place)
                self.check(part, schema["properties"][key], f"{place}.{key}")
        elif isinstance(value, list) and "items" in schema:
            for part in value:
                self.check(part, schema["items"], f"{place}[]")

    def test_reports_are_as_declared(self) -> None:
        task = {"task": "heartbeat", "period_us": 100_000}
        with tempfile.TemporaryDirectory() as folder:
            more: dict[str, Any] = {**RATE, "task": [task], "trace.path": f"{folder}/trace.pcapng"}
            with Card(**more) as card:
                self.check(card.stats(), {"$ref": "#/$defs/Report"}, "stats")
                report = card.stop()
        self.assertIn("os", report)
        self.assertIn("trace", report)
        self.check(report, {"$ref": "#/$defs/Report"}, "report")

    def test_errors_are_as_declared(self) -> None:
        with self.assertRaises(CardFileError) as caught:
            Card(host__queues=0).start()
        self.check({"errors": caught.exception.errors}, {"$ref": "#/$defs/ErrorList"}, "errors")


class WrongInput(unittest.TestCase):
    def test_errors_name_file_line_and_key(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "card.toml")
            pathlib.Path(path).write_text("[card]\n\n[host]\nqueues = 0\nnonsense = 1\n")
            unknown: dict[str, Any] = {"rx[0].function": "none"}
            cases: list[tuple[Card, list[tuple[int | None, str]]]] = [
                (Card(path), [(4, "host.queues"), (5, "host.nonsense")]),
                (Card(host__queues=0), [(None, "host.queues")]),
                (Card(**unknown), [(None, "rx[0].function")]),
            ]
            for card, expected in cases:
                with self.subTest(card=card):
                    with self.assertRaises(CardFileError) as caught:
                        card.start()
                    error = caught.exception
                    self.assertEqual([(e["line"], e["key"]) for e in error.errors], expected)
                    self.assertEqual((error.line, error.key), expected[0])
                    self.assertEqual(error.file, card.path or "--set")
                    self.assertIn(f"{error.key}: found", str(error))
                    self.assertFalse(card.is_running)

    def test_missing_file_is_named(self) -> None:
        with self.assertRaisesRegex(PicnicError, "/nowhere/card.toml"):
            Card("/nowhere/card.toml").start()

    def test_refused_calls_have_a_code_and_leave_the_card_running(self) -> None:
        cases: list[tuple[str, str, dict[str, object], int]] = [
            ("no", "such", {}, -32601),
            ("rss", "set", {"nonsense": 1}, -32602),
            ("chain", "swap", {"chain": "rx", "toml": "[[rx]]\nfunction = 'none'"}, -32602),
        ]
        with Card(**RATE) as card:
            for component, command, arguments, code in cases:
                with self.subTest(component), self.assertRaises(ControlError) as caught:
                    card.ctl(component, command, **arguments)
                self.assertEqual(caught.exception.code, code)
            self.assertEqual((caught.exception.line, caught.exception.key), (2, "rx[0].function"))
            self.assertTrue(card.is_running)

    def test_program_that_does_not_fit_is_refused_before_it_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            old = os.path.join(folder, "old")
            pathlib.Path(old).write_text("#!/bin/sh\necho picnic 0.0.9\n")
            os.chmod(old, 0o755)
            cases = {"/nowhere/picnic": "found no program", old: "0.0.9.*expected picnic 0.1"}
            for path, message in cases.items():
                with self.subTest(path), mock.patch.dict(os.environ, {"PICNIC": path}):
                    with self.assertRaisesRegex(ProgramError, message):
                        Card().start()

    def test_values_are_written_as_toml(self) -> None:
        cases: list[tuple[object, str]] = [
            (True, "true"),
            (2, "2"),
            (0.5, "0.5"),
            ('a "b"\x7f', '"a \\"b\\"\\u007f"'),
            (pathlib.Path("/x y"), '"/x y"'),
            ([1, "a"], '[1, "a"]'),
            ({"a b": [True]}, '{"a b" = [true]}'),
        ]
        for value, expected in cases:
            with self.subTest(value=value):
                self.assertEqual(program.toml(value), expected)
        with self.assertRaisesRegex(TypeError, "expected text"):
            program.toml(cast(object, None))

    def test_missing_packages_are_named_before_anything_is_measured(self) -> None:
        from picnic_lab import load, run

        with mock.patch.dict(sys.modules, {"pandas": None}):
            calls: list[Callable[[], object]] = [lambda: load("/"), lambda: run("nicos-edf")]
            for call in calls:
                with self.assertRaisesRegex(MissingExtra, r"picnic-lab\[frames\]"):
                    call()


if __name__ == "__main__":
    unittest.main()
