#!/usr/bin/env python3
"""The live page of a running card in a browser: it shows every part, fits, and logs no error.

    live.py                 all checks
    live.py --keep FOLDER   also screenshots, light and dark, desk and phone, into FOLDER

Also: other hosts and origins get no figures, a port in use is an error in the card file, and clients
that never read do not affect the card or its control socket. Chromium is controlled through its
debugging pipe.

Exit code 77 means skipped, the reason being the last line printed.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VIEWS = {"desk": 1280, "phone": 390}
PATIENCE_S = 120
CARD = """
[control]
socket = "./card.sock"
web = "127.0.0.1:0"
[[wire]]
port = "generator"
rate_pps = 20000
[[rx]]
function = "rss"
[[rx]]
function = "sample"
[host]
queues = 2
[[task]]
task = "heartbeat"
period_us = 10000
"""
SECTIONS = ["Packets per second", "Borrowed core", "Fullest target ring", "Latency, last 10 s", "Wires",
            "Queues", "Functions", "Drops", "Ledger", "Tasks"]
# The values found in the page.
LOOK = """(() => {
  const of = (section) => ({title: section.querySelector('h2').textContent,
    text: section.textContent, lines: [...section.querySelectorAll('path')].map((one) => one.getAttribute('d')),
    bars: section.querySelectorAll('rect').length,
    rows: section.querySelectorAll('tbody tr').length,
    tallest: Math.max(0, ...[...section.querySelectorAll('td')].map((one) => one.clientHeight)),
    sideways: section.scrollWidth - section.clientWidth});
  const root = document.documentElement;
  return {samples: samples.length, state: byId('state').textContent, name: byId('name').textContent,
    sideways: root.scrollWidth - root.clientWidth, height: root.scrollHeight,
    sections: [...document.querySelectorAll('section')].map(of)};
})()"""

# A busy machine: long figures, full rings, drops everywhere. Drawn until the next look.
BUSY = """(() => {
  const [before, now] = samples.slice(-2).map((one) => structuredClone(one));
  const grow = (value, key) => {
    if (Array.isArray(value) || value && typeof value === 'object')
      for (const inner of Object.keys(value)) value[inner] = grow(value[inner], inner);
    else if (Number.isInteger(value) && !['queue', 'core', 'ring_size'].includes(key))
      return 123456789 + 4321 * value;
    return value;
  };
  const {latencies, duration_s} = now.stats;
  now.stats.drops_by_stage = {'pool_exhausted@wire': 1, 'backlog_full@wire': 1, 'ring_full@deliver': 1};
  grow(now, '');
  for (const queue of now.stats.queues) queue.ring_depth = queue.ring_size;
  for (const one of now.stats.functions) one.ns_per_packet = 123456.7;
  for (const [key, value] of Object.entries({latencies, duration_s})) now.stats[key] = value;
  const kept = samples.splice(-2, 2, before, now);
  draw();
  samples.splice(-2, 2, ...kept);
})()"""


def wait(about, look):
    """What `look` gives, once it gives anything."""
    give_up = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > give_up:
            sys.exit(f"failed: {about}")
        time.sleep(0.1)
    return found


class Browser:
    """Chromium without a window: commands through its pipe, and its log."""

    def __init__(self, path, folder):
        (self.read, to_us), (from_us, self.write) = os.pipe(), os.pipe()

        def place():
            # The descriptors that Chromium reads and writes; higher ones are out of the way.
            spare = [os.dup2(from_us, 100), os.dup2(to_us, 101)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        words = [path, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                 "--disable-background-networking", f"--user-data-dir={folder}/profile"]
        self.process = subprocess.Popen(words, preexec_fn=place, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_us)
        os.close(from_us)
        self.calls, self.rest, self.logged = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {}
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params, **getattr(self, "session", {})}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                part = os.read(self.read, 1 << 20)
                if not part:
                    sys.exit("failed: the browser has ended")
                self.rest += part
            line, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self.calls:
                if "error" in answer:
                    sys.exit(f"failed: {method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.logged.append(params["exceptionDetails"].get("text", "") + str(
                    params["exceptionDetails"].get("exception", {}).get("description", "")))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.logged.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.logged.append(str(params["args"]))

    def value(self, script):
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    def end(self):
        self.process.terminate()
        self.process.wait()


def ask(address, path="/live.json", host=None, fields=""):
    """Status and body of an answer. A connection whose time passed before it was used is made again."""
    host = host or f"{address[0]}:{address[1]}"

    def answer():
        try:
            with socket.create_connection(address, timeout=PATIENCE_S) as stream:
                stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n".encode())
                return b"".join(iter(lambda: stream.recv(65536), b""))
        except ConnectionError:
            return None

    head, body = wait(f"no answer to {path}", answer).split(b"\r\n\r\n", 1)
    return int(head.split()[1]), body


def strangers(address):
    """Wrong answers to requests of other hosts and origins."""
    own = f"http://{address[0]}:{address[1]}"
    for host, fields, status in [
            (None, "", 200), (None, f"Origin: {own}\r\n", 200), ("localhost", "", 200),
            ("evil.example", "", 403), (None, "Origin: http://evil.example\r\n", 403),
            (None, "Sec-Fetch-Site: cross-site\r\n", 403)]:
        found, body = ask(address, host=host, fields=fields)
        if found != status or (status == 200) != (b"ledger" in body):
            yield f"{host} {fields!r}: status {found}, expected {status}"


def problems(view, found):
    if found["sideways"] > 0:
        yield f"{view}: the page must be moved sideways by {found['sideways']}"
    titles = [section["title"] for section in found["sections"]]
    if titles != SECTIONS:
        yield f"{view}: sections {titles}"
    for section in found["sections"]:
        where = f"{view}: {section['title']}"
        if section["tallest"] > 60:
            yield f"{where}: a row of height {section['tallest']}"
        if section["sideways"] > 0:
            yield f"{where}: must be moved sideways by {section['sideways']}"
        if any("L" not in line for line in section["lines"]):
            yield f"{where}: a line without points"
        if not (section["lines"] or section["bars"] or section["rows"] or section["title"] == "Drops"):
            yield f"{where}: nothing in it"
        if any(word in section["text"] for word in ("NaN", "undefined", "null", "Infinity", "[object")):
            yield f"{where}: {section['text']}"


def views(browser, address, keep):
    for view, width in VIEWS.items():
        for scheme in ("light", "dark"):
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                         deviceScaleFactor=1, mobile=view == "phone")
            browser.call("Emulation.setEmulatedMedia",
                         features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.call("Page.navigate", url=f"http://{address[0]}:{address[1]}/")
            # A core that is kept from its work tells of no tasks.
            enough = "typeof samples === 'object' && samples.length > 5 && samples.some((one) => one.tasks)"
            wait("the page has no samples", lambda: browser.value(enough))
            found = browser.value(LOOK)
            yield from problems(f"{view}, {scheme}", found)
            browser.value(BUSY)
            yield from problems(f"{view}, {scheme}, busy", browser.value(LOOK))
            if keep:
                clip = {"x": 0, "y": 0, "width": width, "height": found["height"], "scale": 1}
                shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
                (keep / f"{view}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    if not chromium:
        print("chromium is not installed: try `apt-get install chromium`")
        return 77
    program = pathlib.Path(os.environ.get("PICNIC", ROOT / "target/debug/picnic")).resolve()
    if not program.exists():
        print(f"{program} is not there: cargo build")
        return 77
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    # Parts of the browser may end after it, and write to their files until then.
    with tempfile.TemporaryDirectory(prefix="picnic-live-", ignore_cleanup_errors=True) as folder:
        (pathlib.Path(folder) / "card.toml").write_text(CARD)
        # Under the built-in costs: those of a busy machine may refuse the task, and are not to be kept.
        os.environ["XDG_CACHE_HOME"] = "/dev/null"
        run = [program, "run", "card.toml", "--json", "--quiet"]
        card = subprocess.Popen(run, cwd=folder, stdout=subprocess.PIPE, text=True)

        def ctl(*words):
            done = subprocess.run([program, "ctl", "--socket", "card.sock", "--json", *words],
                                  cwd=folder, capture_output=True, text=True)
            return json.loads(done.stdout) if done.returncode == 0 else None

        browser = None
        try:
            host, port = wait("the card is not up", lambda: ctl("info"))["web"].rsplit(":", 1)
            address = (host, int(port))
            wrong = list(strangers(address))
            taken = subprocess.run([*run, "--set", "control.socket=off", "--set",
                                    f"control.web={host}:{port}"], cwd=folder, capture_output=True, text=True)
            if taken.returncode != 2 or "control.web" not in taken.stdout:
                wrong.append(f"a port in use: {taken.returncode}: {taken.stdout}")
            # They take all places, until their time has passed.
            silent = []
            for _ in range(20):
                stream = socket.create_connection(address)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                stream.sendall(f"GET /live.json HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                silent.append(stream)

            def delivered():
                # A core that is kept from its work does not answer in time.
                return wait("no answer to ctl", lambda: ctl("stats"))["ledger"]["delivered"]

            before = delivered()
            wait("the card stands still", lambda: delivered() > before)
            if ask(address)[0] != 200:
                wrong.append("no answer because of clients that never read")
            browser = Browser(chromium, folder)
            wrong += views(browser, address, args.keep)
            wrong += [f"logged: {line}" for line in browser.logged]
            for stream in silent:
                stream.close()
            card.terminate()
            report = json.loads(card.communicate(timeout=PATIENCE_S)[0])
            if card.returncode or not report["ledger"]["balanced"]:
                wrong.append(f"the card ended with {card.returncode}: {report['ledger']}")
            gone = "byId('state').textContent.includes('no answer')"
            wait("the page does not say that the card has stopped", lambda: browser.value(gone))
        finally:
            card.kill()
            card.wait()
            if browser:
                browser.end()
    for line in wrong:
        print(line)
    print(f"{len(SECTIONS)} sections in {2 * len(VIEWS)} views, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
