#!/usr/bin/env -S python3 -B
"""Unmodified programs through a card between kernel interfaces.

    workloads.py                 all, with each available wire port (as root)
    workloads.py --only WORDS    only those with these words in their name
    workloads.py --engine poll   only by this engine, poll or kernel
    workloads.py --wire packet   only with this wire of the poll engine
    workloads.py --way cpumap    only in this way of the kernel engine
    workloads.py --list          their names

Client namespace, veth, card, tap, server namespace: see behind.py; with the kernel engine the
card is in the server's namespace: see inside.py. For every card: the ledger balances, all buffers
return, and only the fault tests drop packets.

Exit codes: 0 good, 1 failed, 2 usage, 77 skipped for the reason printed.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bonded
import clients
import faults
import inside
import kernel
import looped
import lab
import web
from behind import Behind, LINK, TAP, TAP_MAC
from check import Wrong
from inside import Inside, WAYS
from lab import HERE, NETWORKS
from order import Witness
from transfers import all_arrived, gigabits, transfer

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "e2e-workloads"
STREAM_PORT = 5301
# Streams of a transfer, and the amount of one of datagrams: fewer than a ring holds.
STREAMS, UDP_AMOUNT = (1, 8, 64), ("-n", "16M")
# Wire ports that take `interface` and `namespace`, in the order they are tried.
WIRES = ("packet", "xdp")


# ---------------------------------------------------------------- reach


def answers(namespace):
    """Answers to pings that the kernel has counted there."""
    told = subprocess.run(["ip", "netns", "exec", namespace, "nstat", "-asz", "IcmpInEchoReps",
                           "Icmp6InEchoReplies"], stdout=subprocess.PIPE, check=True, text=True)
    lines = [line.split() for line in told.stdout.splitlines() if not line.startswith("#")]
    return sum(int(words[1]) for words in lines)


def pings(hosts, namespace, address, *options):
    """Ping, of which none may be lost. `ping` itself takes for lost a last answer that comes later
    than twice the slowest before it, so the kernel counts."""
    count = hosts.PINGS
    hosts.run(namespace, "ping", "-q", "-c", "1", "-W", "10", *options, address)
    before = answers(namespace)
    told = subprocess.run(["ip", "netns", "exec", namespace, "ping", "-q", "-c", str(count), "-i",
                           "0.002", *options, address], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + lab.PATIENCE
    while answers(namespace) < before + count and time.monotonic() < deadline:
        time.sleep(0.01)
    if answers(namespace) != before + count or "duplicates" in told.stdout:
        raise Wrong(f"ping {' '.join(options)} {address}: {answers(namespace) - before} answers to "
                    f"{count}; {told.stdout.splitlines()[-2:]}")


def reach(hosts, wire):
    """ping and ping6 of several sizes both ways, ARP, neighbour discovery."""
    with hosts.card(wire) as card:
        for family in range(2):
            for namespace, address in ((hosts.client, hosts.SERVER[family]),
                                       (hosts.server, hosts.CLIENT[family])):
                for size in ("8", "56", "1400", "4000"):
                    pings(hosts, namespace, address, "-s", size)
            # Nobody was asked about twice, and the answer is right.
            told = subprocess.run(["ip", "-n", hosts.client, "-j", "neigh", "show", hosts.SERVER[family],
                                   "dev", LINK], stdout=subprocess.PIPE, check=True, text=True)
            neighbours = json.loads(told.stdout)
            if [entry.get("lladdr") for entry in neighbours] != [TAP_MAC]:
                raise Wrong(f"the client's neighbour is {neighbours}")
            # Once more from nothing.
            hosts.run(hosts.client, "ip", "neigh", "flush", "dev", LINK)
            pings(hosts, hosts.client, hosts.SERVER[family])
    return f"{card.report['ledger']['in']:,} packets"


def vlan(hosts, wire):
    """802.1Q and QinQ: tagged frames, made by programs so that the kernel needs no support."""
    without = lab.why_no_vlan()
    if without:
        raise Skipped(without)
    with hosts.card(wire) as card:
        networks = [network for network in NETWORKS if network[3]]
        children = []
        for number, (namespace, link) in enumerate(((hosts.client, LINK), (hosts.server, TAP)), 1):
            taps = [f"{name}={tags}" for name, _, _, tags, _ in networks]
            children.append(hosts.start(namespace, sys.executable, str(HERE / "vlan_relay.py"), link,
                                        *taps))
            for name, ipv4, _, _, size in networks:
                lab.wait_for(lambda: hosts.link(namespace, name), f"interface {name}")
                hosts.run(namespace, "ip", "address", "add", f"{ipv4}{number}/24", "dev", name)
                hosts.run(namespace, "ip", "link", "set", name, "mtu", str(size), "up")
        for _, ipv4, _, _, size in networks:
            pings(hosts, hosts.client, f"{ipv4}2")
            pings(hosts, hosts.server, f"{ipv4}1", "-M", "do", "-s", str(size - 28))
        for child in children:
            hosts.end(child)
    return f"{card.report['ledger']['in']:,} packets"


def jumbo(hosts, wire):
    """MTU 9000: the longest packet passes, the next longer does not."""
    hosts.set_mtu(9000)
    try:
        with hosts.card(wire, 9000) as card:
            for family, headers in ((0, 28), (1, 48)):
                pings(hosts, hosts.client, hosts.SERVER[family], "-M", "do", "-s",
                      str(9000 - headers))
            longer = subprocess.run(["ip", "netns", "exec", hosts.client, "ping", "-q", "-c", "1", "-M",
                                     "do", "-s", "8973", "-W", "1", hosts.SERVER[0]],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if longer.returncode == 0:
                raise Wrong("a packet of 9001 bytes passes")
            rate = gigabits(transfer(hosts, 1, False))
    finally:
        hosts.set_mtu(1500)
    return f"{card.report['ledger']['in']:,} packets, TCP {rate:.1f} Gbit/s"


# ---------------------------------------------------------------- iperf3


def tcp(hosts, wire):
    """iperf3, TCP, both ways, 1 to 64 streams: no gap and no disorder."""
    rates, again = [], 0
    with hosts.card(wire) as card:
        for streams in STREAMS:
            for reverse in (False, True):
                witness = Witness(hosts, (hosts.client, hosts.server), hosts.links)
                rates.append(f"{gigabits(transfer(hosts, streams, reverse)):.1f}")
                again += witness.judge(f"{streams} streams, reverse {reverse}")
        lost = hosts.link(hosts.server, TAP)["stats64"]["tx"]["dropped"]
        if lost:
            raise Wrong(f"{lost} packets found the queues of {TAP} full")
    frames = card.report["wires"][0]
    sizes = [frames[f"{way}_bytes"] // max(1, frames[f"{way}_packets"]) for way in ("rx", "tx")]
    return (f"{' '.join(rates)} Gbit/s there and back by {STREAMS} streams, frames of {sizes[0]:,} and "
            f"{sizes[1]:,} bytes, {again} sent again")


def udp(hosts, wire):
    """iperf3, UDP, both ways, 1 to 64 streams: none lost, none out of order."""
    told = []
    for reverse in (False, True):
        # A TAP moves a flow to another of its queues once nothing of the flow has come to it for three
        # seconds: on the way back there is only one.
        with hosts.card(wire, queues=1 if reverse else 2):
            told += [f"{all_arrived(hosts, streams, reverse, amount=UDP_AMOUNT):,}" for streams in STREAMS]
    return f"{' '.join(told)} datagrams there and then back by {STREAMS} streams"


# ---------------------------------------------------------------- a file


def whole_file(hosts, wire):
    """A long file each way, bit for bit."""
    size = hosts.FILE_BYTES
    with hosts.card(wire) as card:
        hosts.serve(sys.executable, str(HERE / "stream.py"), "serve", str(STREAM_PORT), str(size),
                    port=STREAM_PORT)
        times = []
        for way in ("upload", "download"):
            started = time.monotonic()
            hosts.run(hosts.client, sys.executable, str(HERE / "stream.py"), way, hosts.SERVER[0],
                      str(STREAM_PORT), str(size), str(random.randrange(1 << 32)))
            times.append(time.monotonic() - started)
    counted = [card.report["wires"][0][f"{way}_bytes"] for way in hosts.COUNTED]
    if min(counted) < size:
        raise Wrong(f"the wire had {counted} bytes of {size:,}")
    return f"there in {times[0]:.1f} s, back in {times[1]:.1f} s, sha256 as it was"


# ---------------------------------------------------------------- all


class Skipped(Exception):
    """It cannot run here, because of this."""


# Name, function, and required programs besides the lab's.
TESTS = (
    ("reach", reach, ()),
    ("vlan", vlan, ()),
    ("jumbo", jumbo, ("iperf3", "taskset")),
    ("tcp", tcp, ("iperf3", "taskset", "nstat")),
    ("udp", udp, ("iperf3", "taskset", "nstat")),
    ("file", whole_file, ()),
    ("nginx", web.nginx, ("nginx", "wrk")),
    ("apache", web.apache, ("apache2", "wrk", "curl")),
    ("four-clients", clients.four_clients, ("curl", "iperf3", "nginx", "nstat", "ss", "tcpdump")),
    ("bonded", bonded.bonded, ("iperf3", "nstat")),
    ("looped", looped.looped, ()),
    ("wire-removed", faults.wire_removed, ("iperf3",)),
    ("server-stopped", faults.server_stopped, ("nginx", "wrk")),
    ("second-card", faults.second_card, ()),
    ("killed", faults.killed, ()),
)
# By the kernel engine.
KERNEL_TESTS = (
    ("kernel-reach", reach, ()),
    ("kernel-tcp", kernel.tcp, ("iperf3", "nstat", "taskset")),
    ("kernel-udp", kernel.udp, ("iperf3", "nstat", "taskset")),
    ("kernel-file", whole_file, ()),
    ("kernel-nginx", kernel.nginx, ("curl", "nginx", "wrk")),
    ("kernel-apache", web.apache, ("apache2", "wrk", "curl")),
    ("kernel-examples", kernel.examples, ()),
)
# Of these, what frames taken one by one make a difference to; the rest is tested by the other ways.
BY_FRAME = ("kernel-tcp", "kernel-udp", "kernel-file")


def main():
    arguments = parse()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(1))
    if arguments.list:
        print("\n".join(name for name, _, _ in TESTS + KERNEL_TESTS))
        return 0
    if not arguments.picnic.exists():
        print(f"failed: {arguments.picnic} is not there; make build")
        return 1
    reason = lab.why_not()
    if reason is None and not os.path.exists("/dev/net/tun"):
        reason = "/dev/net/tun is not there"
    if reason:
        print(reason)
        return 77
    engines = [arguments.engine] if arguments.engine else ["poll", "kernel"]
    # A word about one engine's cards is not about the other's.
    if arguments.wire or arguments.way:
        engines = [engine for engine, asked in (("poll", arguments.wire), ("kernel", arguments.way))
                   if asked and engine in engines]
    started, failures, ran = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix=f"{lab.PREFIX}{os.getpid()}-") as work:
        os.chmod(work, 0o755)  # Servers give up root.
        beds = []
        if "poll" in engines:
            beds += [(Behind, wire, TESTS) for wire in wires_of(arguments)]
        if "kernel" in engines:
            beds += [(Inside, way, tests_of(way)) for way in WAYS if arguments.way in (None, way)]
        for bed, kind, tests in beds:
            chosen = [test for test in tests if arguments.only in test[0]]
            ran += len(chosen)
            reason = inside.why_not(arguments.picnic, kind) if chosen and bed is Inside else None
            if reason:
                print(f"skipped: {NAME}-kernel-{kind}, because {reason}", flush=True)
                continue
            if chosen:
                with bed(arguments.picnic, work) as hosts:
                    failures += sum(not passes(hosts, kind, *test) for test in chosen)
    print(f"{ran - failures} passed or skipped, {failures} failed, in {time.monotonic() - started:.1f} s")
    return 1 if failures or not ran else 0


def wires_of(arguments):
    """The wire ports of the poll engine that are asked for, and there."""
    told = subprocess.run([arguments.picnic, "ports", "--json"], stdout=subprocess.PIPE, check=True)
    ports = {port["name"] for port in json.loads(told.stdout)["ports"]}
    return [wire for wire in WIRES if wire in ports and arguments.wire in (None, wire)]


def tests_of(way):
    """The tests of a way of the kernel engine."""
    return [test for test in KERNEL_TESTS if way != "skb-frames" or test[0] in BY_FRAME]


def passes(hosts, wire, name, test, tools):
    started = time.monotonic()
    try:
        absent = [tool for tool in tools if shutil.which(tool) is None]
        if absent:
            raise Skipped(f"{', '.join(absent)} not installed")
        told = test(hosts, wire)
        print(f"passed   {name}, {wire}: {told} ({time.monotonic() - started:.1f} s)", flush=True)
    except Skipped as reason:
        print(f"skipped: {NAME}-{name}, because {reason}", flush=True)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # After any error, the others can still run.
        print(f"failed   {name}, {wire}: {type(error).__name__}: {error}", flush=True)
        return False
    finally:
        hosts.end_children()
    return True


def parse():
    parser = argparse.ArgumentParser(description="Unmodified programs through a card.")
    parser.add_argument("--only", default="", metavar="WORDS", help="only those with these in their name")
    parser.add_argument("--engine", choices=("poll", "kernel"), help="only by this engine")
    parser.add_argument("--wire", choices=WIRES, help="only with this wire port of the poll engine")
    parser.add_argument("--way", choices=tuple(WAYS), help="only in this way of the kernel engine")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--picnic", type=pathlib.Path, metavar="FILE",
                        default=ROOT / "target/debug/picnic", help="program to test")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
