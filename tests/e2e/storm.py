#!/usr/bin/env -S python3 -B
"""Five members of STORM in namespaces on a bridge, two of them on cards: a crash, a restart, a cut
link, one order.

    storm.py            all of it, as root
    storm.py --inside FOLDER   the part within the namespaces

Members print and log what they deliver; `picnic storm check`, which shares no code with the
protocol, compares the logs. Packets are lost at random if the kernel has netem. Everything runs in
separate network, mount and process namespaces, and ends with them.

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICNIC = ROOT / "target/debug/picnic"
NAMES = "abcde"
# These run on a card of their process, the others are plain programs over UDP.
ON_CARDS = "be"
# What any one step may take on a busy machine, in seconds; on an idle one the slowest takes about three.
PATIENCE = 300
LINES = 200


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(pathlib.Path(sys.argv[2]))
    if os.geteuid() != 0:
        print("it needs root")
        return 77
    absent = [tool for tool in ("ip", "tc", "unshare", "mount") if shutil.which(tool) is None]
    if absent:
        print(f"{', '.join(absent)} not installed")
        return 77
    if not PICNIC.exists():
        print(f"failed: {PICNIC} is not there; cargo build")
        return 1
    with tempfile.TemporaryDirectory(prefix="picnic-storm-") as folder:
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc",
                   "--kill-child", sys.executable, "-B", __file__, "--inside", folder]
        return subprocess.run(command).returncode


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


def build():
    """The namespaces and their bridge; whether packets are lost."""
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "none", "/run/netns")
    run("ip", "link", "add", "bridge", "type", "bridge")
    run("ip", "link", "set", "bridge", "up")
    lossy = True
    for number, name in enumerate(NAMES, 1):
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
        if name not in ON_CARDS:  # a card answers for its address itself
            run("ip", "-n", name, "address", "add", f"10.86.0.{number}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        netem = run("tc", "qdisc", "add", "dev", f"to-{name}", "root", "netem", "loss", "2%",
                    check=False)
        lossy = lossy and netem.returncode == 0
    return lossy


class Node:
    """A member at work."""

    def __init__(self, name, folder, log):
        self.name, self.log, self.views = name, folder / log, folder / f"{log}.views"
        members = [f"{name}=10.86.0.{number}:7001" for number, name in enumerate(NAMES, 1)]
        command = ["ip", "netns", "exec", name, PICNIC, "storm", "node", name, *members,
                   "--log", self.log]
        if name in ON_CARDS:
            command += ["--place", "card", "--interface", "eth0"]
        with open(self.views, "w", encoding="utf-8") as views:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True,
                                            stdout=subprocess.DEVNULL, stderr=views)

    def say(self, count):
        for number in range(count):
            self.process.stdin.write(f"line {number} of {self.name}\n")
        self.process.stdin.flush()

    def view(self):
        lines = self.views.read_text(encoding="utf-8").splitlines()
        return lines[-1].partition(": ")[2] if lines else ""

    def lines(self, kind):
        return [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.startswith(kind)]

    def events(self, kind):
        return len(self.lines(kind))


def wait_for(what, is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"not in {PATIENCE} s: {what}")
        time.sleep(0.05)


def all_in(nodes, names):
    wait_for(f"a view of {names}", lambda: all(node.view() == ", ".join(names) for node in nodes))


def check(nodes):
    command = [PICNIC, "storm", "check", "--json", *(node.log for node in nodes)]
    checked = run(*command, check=False)
    report = json.loads(checked.stdout)
    assert checked.returncode == 0 and not report["problems"], report["problems"] or checked.stderr
    return report


def inside(folder):
    # Other cards' processes cannot be seen from here, so that their journals look left behind.
    os.environ["PICNIC_STATE_DIR"] = str(folder / "state")
    os.environ["PICNIC_RUNTIME_DIR"] = str(folder / "run")
    try:
        lossy = build()
        nodes = {name: Node(name, folder, f"{name}.log") for name in NAMES}
        all_in(nodes.values(), NAMES)
        for node in nodes.values():
            node.say(LINES)
        wait_for("half of the lines", lambda: nodes["a"].events("deliver") > 2 * LINES)
        killed = nodes.pop("e")
        killed.process.kill()
        killed.process.wait()
        all_in(nodes.values(), "abcd")
        nodes["e"] = Node("e", folder, "e-again.log")
        all_in(nodes.values(), NAMES)
        run("ip", "link", "set", "to-d", "down")
        rest = [nodes[name] for name in "abce"]
        all_in(rest, "abce")
        for node in nodes.values():
            node.say(LINES)
        run("ip", "link", "set", "to-d", "up")
        all_in(nodes.values(), NAMES)
        sent = [nodes[name].events for name in "abcd"]
        wait_for("every line is sent", lambda: all(sum_of("submit") == 2 * LINES for sum_of in sent)
                 and nodes["e"].events("submit") == LINES)
        steady = [nodes[name] for name in "abc"]
        least = 9 * LINES  # the killed member's own lines may be lost

        def delivered():
            # A member that was kept from its core for a second is left out for a while, without the
            # lines of that time.
            logs = [node.lines("deliver ") for node in nodes.values()]
            return len(set().union(*logs)) >= least and len({tuple(log[-1:]) for log in logs[:3]}) == 1

        wait_for("every line is delivered", delivered)
        for node in nodes.values():
            node.process.send_signal(2)
        for node in nodes.values():
            assert node.process.wait(PATIENCE) == 0, f"{node.name} failed"
        check([*steady, nodes["d"], killed])
        report = check([*steady, nodes["d"], nodes["e"]])
        loss = "2 % loss" if lossy else "no loss: the kernel has no netem"
        print(f"five members, {len(ON_CARDS)} on cards, {loss}: " + ", ".join(
            f"{member['member']} {member['delivered']}" for member in report["members"]))
        return 0
    except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"failed: {error} {getattr(error, 'stderr', '') or ''}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
