#!/usr/bin/env python3
"""A newcomer's first hour: the commands of the documents, run as they are written.

    tests/first-hour/run.py                         README, tutorial, how-to pages
    tests/first-hour/run.py docs/how-to/vm.md       these pages

Run as root, with $PICNIC or target/debug/picnic as `picnic`.

Of each page, the blocks marked `sh` are run from top to bottom by one bash, in an
empty folder that has the repository's examples. Any command that fails fails the
page, and so does whatever the page leaves behind: namespaces, interfaces, journals,
processes. Blocks of `make` are run in the repository. Blocks marked otherwise (`text`,
`console`, `toml`) are for reading only.

A page has separate network, mount and process namespaces, so its names
(`client`, `server`) meet no others of this machine.

`<!-- needs: PROGRAM -->` above a block: where the program is not installed, the rest of
the page is skipped, by the name `first-hour-PAGE`.

Exit codes: 0 good, 1 a page failed, 77 cannot run here.
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds for a page; its programs have been built before, except a function in Rust.
PATIENCE = 1500
# Commands that the caller of this script has already run.
LEFT_OUT = {
    "make test": "it runs this script",
    "make install": "it writes to the machine",
    "git clone": "this is a clone",
}
if "PICNIC" in os.environ or not (ROOT / "target/fast/picnic").exists():
    LEFT_OUT["make run"] = "nothing is built here"
NEEDS = re.compile(r"<!-- needs: (\S+) -->")
# A page has these to itself.
APART = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# `picnic` of a page. A borrowed core that is kept from its work does not answer in time: it is asked
# again, for some minutes.
ASKING = """#!/bin/bash
[[ $1 = ctl || $1 = top ]] || exec {picnic} "$@"
while
    {{ errors=$({picnic} "$@" 2>&1 >&3 3>&-); code=$?; }} 3>&1
    [[ $errors = *"borrowed core has not answered"* ]] && ((SECONDS < 300))
do
    sleep 1
done
[ -z "$errors" ] || echo "$errors" >&2
exit $code
"""
# What every page begins and ends with. The kernel shows the devices of one network only.
PROLOGUE = """
mount -t tmpfs none /run/netns && mount -t sysfs none /sys
ip link set lo up
set -E -e -o pipefail
trap 'echo "$PAGE:$LINE: failed: $BASH_COMMAND" >&2' ERR
"""
EPILOGUE = """
LINE=end
# The kernel removes the interfaces of a deleted namespace later.
for second in $(seq 60); do
    rest=$(ip netns list; ip -br link | grep -v '^lo ' || true; jobs -r)
    [ -n "$rest" ] || break
    sleep 1
done
[ -z "$rest" ] || { echo "$PAGE: leaves behind: $rest" >&2; exit 1; }
[ "$(picnic cleanup --all)" = "nothing to undo" ] || { echo "$PAGE: leaves changes" >&2; exit 1; }
"""


def blocks(page):
    """Line, text and needed program of each `sh` block."""
    found, needed, start, lines = [], None, None, []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if start is not None:
            if line.startswith("```"):
                found.append((start, "\n".join(lines), needed))
                start, lines, needed = None, [], None
            else:
                lines.append(line)
        elif line == "```sh":
            start = number + 1
        elif match := NEEDS.match(line):
            needed = match[1]
    if start is not None:
        raise ValueError(f"{page}:{start}: the block has no end")
    return found


def left_out(command):
    reasons = (why for words, why in LEFT_OUT.items() if command.startswith(words))
    return next(reasons, None)


def script(page):
    """The page as a program; the names of omitted blocks; the reason for an early end."""
    parts, without, missing = [f"PAGE={page}", PROLOGUE], [], None
    for start, text, needed in blocks(page):
        if needed and not shutil.which(needed):
            missing = needed
            break
        commands = []
        for line in text.splitlines():
            why = left_out(line)
            if why:
                without.append(f"{line.split('#')[0].strip()} ({why})")
            else:
                commands.append(line)
        text = "\n".join(commands)
        if text.startswith("make "):
            text = f"cd {ROOT}\n{text}\ncd - > /dev/null"
        parts.append(f"LINE={start}; echo \"== $PAGE:$LINE\"\n{text}")
    return "\n".join([*parts, EPILOGUE]), without, missing


def run(page, picnic):
    """Whether the page runs."""
    text, without, missing = script(page)
    with tempfile.TemporaryDirectory(prefix="picnic-first-hour-") as work:
        work = pathlib.Path(work)
        (work / "bin").mkdir()
        asking = ASKING.format(picnic=shlex.quote(str(picnic)))
        (work / "bin/picnic").write_text(asking, encoding="utf-8")
        (work / "bin/picnic").chmod(0o755)
        folder = work / "here"
        folder.mkdir()
        shutil.copytree(ROOT / "examples", folder / "examples")
        environment = dict(os.environ, PATH=f"{work}/bin:{os.environ['PATH']}",
                           CARGO_NET_OFFLINE="true", PICNIC_STATE_DIR=str(work / "state"),
                           # No cost profile is kept: the tasks of a page are admitted under the
                           # built-in costs, whatever a busy machine would measure.
                           XDG_CACHE_HOME="/dev/null",
                           PICNIC_RUNTIME_DIR=str(work / "run"))
        environment.pop("CARGO_TARGET_DIR", None)
        (work / "page.sh").write_text(text, encoding="utf-8")
        command = [*APART, "bash", str(work / "page.sh")]
        with open(work / "log", "wb") as log:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
            try:
                code = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = f"not done after {PATIENCE} s"
        told = (work / "log").read_text(encoding="utf-8", errors="replace")
    for what in without:
        print(f"left out {page}: {what}")
    if missing:
        name = pathlib.Path(page).stem
        print(f"skipped: first-hour-{name}, because {missing} is not installed")
    if code == 0:
        print(f"good     {page}: {len(blocks(page))} blocks")
        return True
    print("\n".join(told.splitlines()[-40:]))
    print(f"failed   {page}: {code}")
    return False


def main():
    picnic = pathlib.Path(os.environ.get("PICNIC", ROOT / "target/debug/picnic")).resolve()
    if os.geteuid() != 0:
        print("it needs root")
        return 77
    if not picnic.exists():
        print(f"{picnic} is not there: cargo build")
        return 77
    if subprocess.run([*APART, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("this machine gives no namespaces")
        return 77
    os.makedirs("/run/netns", exist_ok=True)
    pages = sys.argv[1:]
    if not pages:
        pages = ["README.md", "docs/tutorial.md"]
        pages = [page for page in pages if (ROOT / page).exists()]
        pages += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/how-to").glob("*.md"))
    results = [run(page, picnic) for page in pages]
    print(f"first hour: {sum(results)} of {len(results)} pages run as they are written")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
