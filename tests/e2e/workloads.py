#!/usr/bin/env -S python3 -B
"""Unmodified programs through a card between kernel interfaces.

    workloads.py                 all, with each wire port there is (as root)
    workloads.py --only WORDS    only those with these words in their name
    workloads.py --wire packet   only with this wire
    workloads.py --list          their names

Client namespace, veth, card, tap, server namespace: see behind.py. Of every card:
the ledger balances, all buffers come home, and but for the faults nothing is dropped.

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
import looped
import lab
import web
from behind import Behind, LINK, TAP, TAP_MAC, WIRE
from check import Wrong
from lab import HERE, NETWORKS
from order import Witness

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "e2e-workloads"
MEMORY, FILE_BYTES = "/dev/shm", 1 << 30
IPERF_PORT, STREAM_PORT = 5201, 5301
# Streams of a transfer, and the window of each: all together stay below what the queues of the
# kernel's interfaces hold, whose drops would be blamed on the card.
STREAMS = (1, 8, 64)
WINDOWS = {1: "2M", 8: "256K", 64: "64K"}
# Seconds of one transfer; all of them together are most of the time this takes.
TRANSFER = "1"
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
    count = 50
    hosts.run(namespace, "ping", "-q", "-c", "1", "-W", "10", *options, address)
    before = answers(namespace)
    told = subprocess.run(["ip", "netns", "exec", namespace, "ping", "-q", "-c", str(count), "-i",
                           "0.005", *options, address], stdout=subprocess.PIPE, text=True)
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
            rate = transfer(hosts, 1, False)
    finally:
        hosts.set_mtu(1500)
    return f"{card.report['ledger']['in']:,} packets, TCP {rate:.1f} Gbit/s"


# ---------------------------------------------------------------- iperf3


def transfer(hosts, streams, reverse, *options):
    """iperf3 from client to server or back; Gbit/s received, or the whole result with options."""
    # On one core: threads that wander would hand a flow's packets to the veth from two.
    command = ["taskset", "-c", "0", "iperf3", "-J", "-c", hosts.SERVER[0], "-p", str(IPERF_PORT),
               "-t", TRANSFER, "-P", str(streams), "-w", WINDOWS[streams],
               *(["-R"] if reverse else []), *options]
    end = time.monotonic() + lab.PATIENCE
    server = hosts.serve("taskset", "-c", "0", "iperf3", "-J", "-s", "-p", str(IPERF_PORT),
                         port=IPERF_PORT)
    while True:
        told = subprocess.run(["ip", "netns", "exec", hosts.client, *command], stdout=subprocess.PIPE,
                              text=True, timeout=lab.PATIENCE)
        result = json.loads(told.stdout)
        if "error" not in result:
            break
        if "busy" not in result["error"] or time.monotonic() > end:
            raise Wrong(f"{' '.join(command)}: {result['error']}")
        time.sleep(0.1)
    hosts.end(server)
    return result if options else result["end"]["sum_received"]["bits_per_second"] / 1e9


def tcp(hosts, wire):
    """iperf3, TCP, both ways, 1 to 64 streams: no gap and no disorder."""
    rates, again = [], 0
    links = ((hosts.client, LINK), (hosts.middle, WIRE), (hosts.server, TAP))
    with hosts.card(wire) as card:
        for streams in STREAMS:
            for reverse in (False, True):
                witness = Witness(hosts, (hosts.client, hosts.server), links)
                rates.append(f"{transfer(hosts, streams, reverse):.1f}")
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
    with hosts.card(wire):
        for streams in STREAMS:
            for reverse in (False, True):
                before = hosts.counters(hosts.client if reverse else hosts.server)
                each = 200 // streams
                result = transfer(hosts, streams, reverse, "-u", "-b", f"{each}M", "-l", "1400",
                                  "--get-server-output")
                after = hosts.counters(hosts.client if reverse else hosts.server)
                # What finds its receiver's buffer full has come through the card.
                full = after["UdpRcvbufErrors"] - before["UdpRcvbufErrors"]
                lost = result["end"]["sum"]["lost_packets"]
                # The sender does not know; one that came twice counts, too.
                receiver = result if reverse else result["server_output_json"]
                late = sum(stream["udp"]["out_of_order"] for stream in receiver["end"]["streams"])
                if lost > full or late:
                    raise Wrong(f"{streams} streams, reverse {reverse}: {lost} lost, {full} for want of "
                                f"room at the receiver, {late} out of order")
                told.append(f"{result['end']['sum']['packets']:,}")
    return f"{' '.join(told)} datagrams there and back by {STREAMS} streams"


# ---------------------------------------------------------------- a file


def whole_file(hosts, wire):
    """1 GiB each way, bit for bit."""
    with hosts.card(wire) as card:
        hosts.serve(sys.executable, str(HERE / "stream.py"), "serve", str(STREAM_PORT), str(FILE_BYTES),
                    port=STREAM_PORT)
        times = []
        for way in ("upload", "download"):
            started = time.monotonic()
            hosts.run(hosts.client, sys.executable, str(HERE / "stream.py"), way, hosts.SERVER[0],
                      str(STREAM_PORT), str(FILE_BYTES), str(random.randrange(1 << 32)))
            times.append(time.monotonic() - started)
    wire = card.report["wires"][0]
    if min(wire["rx_bytes"], wire["tx_bytes"]) < FILE_BYTES:
        raise Wrong(f"the wire had {wire['rx_bytes']:,} and {wire['tx_bytes']:,} bytes")
    return f"there in {times[0]:.1f} s, back in {times[1]:.1f} s, sha256 as it was"


# ---------------------------------------------------------------- all


class Skipped(Exception):
    """It cannot run here, because of this."""


# What it is called, what does it, programs it needs beside the lab's.
TESTS = (
    ("reach", reach, ()),
    ("vlan", vlan, ()),
    ("jumbo", jumbo, ("iperf3", "taskset")),
    ("tcp", tcp, ("iperf3", "taskset", "nstat")),
    ("udp", udp, ("iperf3", "taskset", "nstat")),
    ("file", whole_file, ()),
    ("nginx", web.nginx, ("nginx", "wrk")),
    ("apache", web.apache, ("apache2", "wrk", "curl")),
    ("four-clients", clients.four_clients, ("iperf3", "nginx", "nstat", "tcpdump", "wrk")),
    ("bonded", bonded.bonded, ("iperf3", "nstat")),
    ("looped", looped.looped, ()),
    ("wire-removed", faults.wire_removed, ("iperf3",)),
    ("server-stopped", faults.server_stopped, ("nginx", "wrk")),
    ("second-card", faults.second_card, ()),
    ("killed", faults.killed, ()),
)


def main():
    arguments = parse()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(1))
    if arguments.list:
        print("\n".join(name for name, _, _ in TESTS))
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
    told = subprocess.run([arguments.picnic, "ports", "--json"], stdout=subprocess.PIPE, check=True)
    ports = {port["name"] for port in json.loads(told.stdout)["ports"]}
    wires = [wire for wire in WIRES if wire in ports and arguments.wire in (None, wire)]
    started, failures, ran = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix=f"{lab.PREFIX}{os.getpid()}-") as work:
        os.chmod(work, 0o755)  # Servers give up root.
        for wire in wires:
            with Behind(arguments.picnic, work) as hosts:
                for name, test, tools in TESTS:
                    if arguments.only in name:
                        ran += 1
                        failures += not passes(hosts, wire, name, test, tools)
    print(f"{ran - failures} passed or skipped, {failures} failed, in {time.monotonic() - started:.1f} s")
    return 1 if failures or not ran else 0


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
    except Exception as error:  # Whatever it is, the others can still run.
        print(f"failed   {name}, {wire}: {type(error).__name__}: {error}", flush=True)
        return False
    finally:
        hosts.end_children()
    return True


def parse():
    parser = argparse.ArgumentParser(description="Unmodified programs through a card.")
    parser.add_argument("--only", default="", metavar="WORDS", help="only those with these in their name")
    parser.add_argument("--wire", choices=WIRES, help="only with this wire port")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--picnic", type=pathlib.Path, metavar="FILE",
                        default=ROOT / "target/debug/picnic", help="program to test")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
