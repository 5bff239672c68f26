#!/usr/bin/env -S python3 -B
"""SIGKILL of a card and of its guest, DPDK's virtio-user, under load.

    vhost_kills.py                       all of it, as root
    vhost_kills.py --inside FOLDER       the part within the namespaces

    this program ── veth ── wire ── card ── vhost-user ── virtio-user ── dpdk-testpmd, which echoes

Frames of several flows go out all the time. Each echo must come at most once, unchanged, in the order of
its flow; after each kill, echoes of every flow must come again. The ledger of a card that survives
balances, and `picnic cleanup` has nothing to undo. $PICNIC_KILLS kills of each kind, by default 5.

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import json
import os
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import vhost
from vhost import FLOWS, PICNIC, frame, wait_for

KILLS = int(os.environ.get("PICNIC_KILLS", 5))
QUEUES = 2
# Rounds per second, with one frame of each flow; echoes of each flow after which traffic goes on.
PACE, ENOUGH = 200, 5
CARD = """
[card]
name = "guests"
idle = "block"

[[wire]]
port = "packet"
interface = "wire0"

[[rx]]
function = "rss"

[host]
attachment = "vhost-user"
queues = {queues}

[[host.guest]]
socket = "vm0.sock"
mode = "{mode}"
packed = {packed}
"""
# The card's mode, who is killed, and packed rings.
KINDS = (("server", "guest", 0), ("client", "guest", 0), ("client", "card", 0), ("client", "guest", 1), ("client", "card", 1))


class Load(threading.Thread):
    """Frames out, echoes in."""

    def __init__(self):
        super().__init__(daemon=True)
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.wire.bind(("peer0", 0))
        self.wrong, self.is_over, self.sent = None, False, 0
        self.last, self.count = [-1] * FLOWS, [0] * FLOWS

    def run(self):
        while not self.is_over and not self.wrong:
            for flow in range(FLOWS):
                try:
                    self.wire.send(frame(flow, self.sent, self.length(flow, self.sent)))
                except OSError:
                    pass  # The kernel's queue is full, as nobody takes frames: it is lost.
            self.sent += 1
            end = time.monotonic() + 1 / PACE
            while (left := end - time.monotonic()) > 0:
                if select.select([self.wire], [], [], left)[0]:
                    got, address = self.wire.recvfrom(65_536)
                    if address[2] != socket.PACKET_OUTGOING:
                        self.take(got)

    @staticmethod
    def length(flow, number):
        return (60, 127, 590, 1514)[(flow + number) % 4]

    def take(self, got):
        flow, number = struct.unpack_from("!HI", got, 42)
        if flow >= FLOWS or got != frame(flow, number, self.length(flow, number)):
            self.wrong = f"an echo is changed: {got[:60].hex()}"
        elif number <= self.last[flow]:
            self.wrong = f"flow {flow}: frame {number} after {self.last[flow]}"
        else:
            self.last[flow] = number
            self.count[flow] += 1

    def go_on(self):
        before = list(self.count)
        wait_for("echoes of every flow", lambda: self.wrong or all(
            now >= was + ENOUGH for now, was in zip(self.count, before)))
        if self.wrong:
            raise AssertionError(self.wrong)


def start_card(folder):
    card = subprocess.Popen([PICNIC, "run", "--json", "--quiet", folder / "card.toml"],
                            stdout=subprocess.PIPE, text=True)

    def is_ready():
        assert card.poll() is None, "the card ended"
        told = subprocess.run([PICNIC, "ctl", "info"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False)
        return told.returncode == 0

    wait_for("the card", is_ready)
    return card


def start_guest(folder, is_server, packed):
    if is_server:
        (folder / "vm0.sock").unlink(missing_ok=True)
    with open(folder / "testpmd.log", "wb") as log:
        keys = f"server={int(is_server)},packed_vq={packed}"
        return vhost.start_guest(folder, QUEUES, keys, log, 128, 8192)


def kind(folder, mode, victim, packed):
    """Kills of the card or of the guest; `mode` is the card's."""
    text = CARD.format(queues=QUEUES, mode=mode, packed="true" if packed else "false")
    (folder / "card.toml").write_text(text, encoding="utf-8")
    card, load, moments = start_card(folder), Load(), random.Random(1)
    guest = start_guest(folder, mode == "client", packed)
    load.start()
    try:
        load.go_on()
        for _ in range(KILLS):
            time.sleep(moments.random() * 0.05)
            if victim == "card":
                card.kill()
                card.communicate()
                card = start_card(folder)
            else:
                guest.kill()
                guest.wait()
                guest = start_guest(folder, mode == "client", packed)
            load.go_on()
    except AssertionError as error:
        log = (folder / "testpmd.log").read_text(errors="replace")
        raise AssertionError(f"{error}\n{log[-1500:]}") from error
    finally:
        load.is_over = True
        load.join()
        guest.kill()
        guest.wait()
        told = vhost.stop(card)
    report = json.loads(told)
    if not report["ledger"]["balanced"] or report["drops"].get("bad_descriptor") or load.wrong:
        raise AssertionError(f"{load.wrong}, {report['ledger']}, {report['drops']}")
    return sum(load.count)


def inside(folder):
    os.environ["PICNIC_RUNTIME_DIR"] = str(folder / "run")
    os.environ["PICNIC_STATE_DIR"] = str(folder / "state")
    vhost.add_wire()
    failed = False
    for mode, victim, packed in KINDS:
        what = f"{'packed' if packed else 'split'} rings, {KILLS} kills of the {victim}, the card as {mode}"
        try:
            print(f"{what}: {kind(folder, mode, victim, packed)} echoes in order", flush=True)
        except AssertionError as error:
            print(f"failed: {what}: {error}", flush=True)
            failed = True
    told = subprocess.run([PICNIC, "cleanup", "--all"], stdout=subprocess.PIPE, text=True, check=True)
    if told.stdout.strip() != "nothing to undo":
        print(f"failed: left behind: {told.stdout}")
        failed = True
    return int(failed)


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(pathlib.Path(sys.argv[2]))
    # What is left when the test ends, ends with it.
    return vhost.run_inside(__file__, ["--pid", "--mount-proc"])


if __name__ == "__main__":
    sys.exit(main())
