#!/usr/bin/env -S python3 -B
"""Real traffic through `picnic run`, each packet's queue computed independently.

    run.py                       makes captures (as root), runs every card on them
    run.py --keep FOLDER         keeps captures, cards and traces there
    run.py --captures FOLDER     runs on captures kept so; no root
    run.py --card WORDS          only cards with these words in their name

For every card: each captured packet reached the queue that oracle.py computes, once, byte for byte;
the packets of a queue, and so of a flow, are in the order of the capture; packet and byte counts equal
the computed ones; the ledger balances.

Exit codes: 0 good, 1 failed, 2 usage, 77 skipped for the reason printed.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import captures
import cards
import check
import lab
import oracle
import traffic
from check import Wrong

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = ROOT / "crates/hash/tests/vectors"
NAME = "e2e-traffic"
# Time limit of a card on a busy machine, in seconds; each takes about one.
PATIENCE = 300
MEMORY, MEMORY_BYTES = "/dev/shm", 1 << 30
FEWEST, MOST = 20_000, 200_000
# Derived from plain.pcap: packets in it, and bytes missing from the last.
SWAPPED_PACKETS, CUT_PACKETS, CUT_BYTES = 5_000, 5_000, 7


def main():
    arguments = parse()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(1))
    if not arguments.picnic.exists():
        print(f"failed: {arguments.picnic} is not there; make build")
        return 1
    reason = None if arguments.captures else lab.why_not()
    if reason:
        print(reason)
        return 77
    try:
        count = oracle.self_test(VECTORS)
        print(f"oracle   {count} published hashes, all as computed", flush=True)
        with work_folder(arguments.keep) as work:
            paths = make_captures(work) if not arguments.captures else {
                path.name: path for path in sorted(arguments.captures.resolve().glob("*.pcap*"))
                if path.suffix in (".pcap", ".pcapng")}
            return run_all(arguments, paths, work)
    except (Wrong, AssertionError, OSError, RuntimeError, ValueError,
            subprocess.SubprocessError) as error:
        print(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 1


def parse():
    parser = argparse.ArgumentParser(description="Real traffic through `picnic run`.")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER",
                        help="keep captures, cards and traces here")
    parser.add_argument("--captures", type=pathlib.Path, metavar="FOLDER",
                        help="use captures kept here")
    parser.add_argument("--card", default="", metavar="WORDS",
                        help="only cards with these words in their name")
    parser.add_argument("--picnic", type=pathlib.Path, metavar="FILE",
                        default=ROOT / "target/debug/picnic", help="program to test")
    return parser.parse_args()


@contextlib.contextmanager
def work_folder(keep):
    if keep is None:
        # In memory if there is room: a busy disk would take most of the time.
        room = os.statvfs(MEMORY) if os.path.isdir(MEMORY) else None
        place = MEMORY if room and room.f_bavail * room.f_frsize > MEMORY_BYTES else None
        for stale in pathlib.Path(place or tempfile.gettempdir()).glob(lab.PREFIX + "*"):
            if not lab.is_alive(stale.name):
                shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{lab.PREFIX}{os.getpid()}-", dir=place) as name:
            yield pathlib.Path(name)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()


# ---------------------------------------------------------------- captures


def make_captures(work):
    started = time.monotonic()
    without_vlan = lab.why_no_vlan()
    if without_vlan:
        print(f"skipped: {NAME}-vlan, because {without_vlan}")
    with lab.Lab() as hosts:
        paths = traffic.record(hosts, work)
    packets = captures.read(paths["plain.pcap"])
    captures.write_pcap(work / "swapped.pcap", packets[:SWAPPED_PACKETS], ">")
    captures.write_pcap(work / "cut.pcap", packets[:CUT_PACKETS + 1])
    with open(work / "cut.pcap", "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - CUT_BYTES)
    print(f"traffic  {time.monotonic() - started:.1f} s")
    contents(packets, not without_vlan)
    return {**paths, "swapped.pcap": work / "swapped.pcap", "cut.pcap": work / "cut.pcap"}


def contents(packets, with_vlan):
    """Tells what there is in a capture; anything that should be and is not is Wrong."""
    kinds = collections.Counter()
    for found in map(oracle.layers, packets):
        family = {"ipv4": "IPv4", "ipv6": "IPv6"}.get(found.family)
        kinds[{0x0806: "ARP"}.get(found.type, "other") if family is None else family] += 1
        if found.tags:
            kinds["802.1Q" if found.tags == 1 else "QinQ"] += 1
        if family is None:
            continue
        if found.fragment:
            kinds[f"{family} fragments"] += 1
        elif found.protocol in (1, 58):
            kinds["ICMP" if found.protocol == 1 else "ICMPv6"] += 1
        elif found.ports:
            kinds[f"{'TCP' if found.protocol == oracle.TCP else 'UDP'} over {family}"] += 1
            kinds[f"{family} options before ports"] += bool(found.extensions)
        else:
            kinds[f"other over {family}"] += 1
    flows = {(found.addresses, found.ports) for found in map(oracle.layers, packets)}
    print(f"capture  {len(packets):,} packets, {len(flows):,} flows: " + ", ".join(
        f"{count:,} {kind}" for kind, count in kinds.most_common()), flush=True)
    wanted = ["ARP", "other", "ICMP", "ICMPv6"] + ["802.1Q", "QinQ"] * with_vlan
    for family in ("IPv4", "IPv6"):
        wanted += [f"TCP over {family}", f"UDP over {family}", f"{family} fragments",
                   f"{family} options before ports", f"other over {family}"]
    missing = [kind for kind in wanted if not kinds[kind]]
    if missing:
        raise Wrong(f"the capture has no {', '.join(missing)}")
    if not FEWEST <= len(packets) <= MOST:
        raise Wrong(f"the capture has {len(packets)} packets, not {FEWEST} to {MOST}")


# ---------------------------------------------------------------- cards


def run_all(arguments, paths, work):
    failures, ran, in_all, started = 0, 0, 0, time.monotonic()
    packets, is_tried = {}, False
    if "plain.pcapng" not in paths:
        print(f"skipped: {NAME}-pcapng, because dumpcap is not installed")
    for card in cards.all_of(paths):
        if arguments.card not in card.name:
            continue
        ran += 1
        for path in card.captures:
            if path not in packets:
                packets[path] = captures.read(path, card.cut_off)
        try:
            wires = check.expected(card, [packets[path] for path in card.captures])
            got, report = run(arguments.picnic, card, work, packets, arguments.keep)
            check.same(card, wires, got)
            check.figures(card, wires, got, report)
            if card.cut_off and not report["notes"]:
                raise Wrong("nothing is said of the end of the file")
            told = summary(card, got, report)
            if card.rss.get("symmetric"):
                flows = check.symmetric(packets[card.captures[0]], check.oracle_of(card))
                told += f", {flows:,} flows both ways"
            if not is_tried and not card.lossy and len(card.captures) == 1 and card.queues > 1:
                is_tried = True
                told += f"; {check.self_test(card, wires, got)} wrongs seen by the check"
            in_all += report["ledger"]["in"]
            print(f"passed   {card.name}: {told}", flush=True)
        except (Wrong, ValueError, subprocess.SubprocessError) as error:
            failures += 1
            print(f"failed   {card.name}: {error}", flush=True)
    print(f"{ran - failures} cards passed, {failures} failed, {in_all:,} packets in all, in "
          f"{time.monotonic() - started:.1f} s")
    return 1 if failures or not ran else 0


def run(picnic, card, work, packets, keeps):
    """Runs a card; returns the packets of each queue and the JSON."""
    size = sum(len(packet) + 64 for path in card.captures for packet in packets[path])
    # All that the card may send to one queue, doubled packets and loops too.
    room = min(1 << 30, max(1 << 18, 2 * size * card.loops))
    name = "".join(letter if letter.isalnum() else "-" for letter in card.name)
    file, trace = work / f"{name}.toml", work / f"{name}.trace.pcapng"
    file.write_text(card.text(trace, room))
    done = subprocess.run([picnic, "run", file, "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise Wrong(f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
    by_name = captures.by_interface(trace)
    if sorted(by_name) != sorted(f"queue{queue}" for queue in range(card.queues)):
        raise Wrong(f"interfaces of the trace are {', '.join(by_name)}")
    if not keeps:
        trace.unlink()
    return [by_name[f"queue{queue}"] for queue in range(card.queues)], json.loads(done.stdout)


def summary(card, got, report):
    counts = [len(packets) for packets in got]
    dropped = report["ledger"]["dropped"]
    text = f"{report['ledger']['in']:,} in, {' '.join(map(str, counts))} by queue"
    return text + (f", {dropped:,} dropped and counted" if card.lossy else "")


if __name__ == "__main__":
    sys.exit(main())
