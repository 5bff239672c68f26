"""Programs through a card in their own server's kernel: see inside.py.

workloads.py and web.py have the tests for both engines.
"""

import hashlib
import random
import re
import subprocess

import lab
import web
from check import Wrong
from order import Witness
from transfers import all_arrived, gigabits, transfer

# Streams of a transfer, and the window of each: all together stay below the ring of a veth.
STREAMS = {1: "128K", 8: "16K"}
TCP_AMOUNT, UDP_AMOUNT = 32 << 20, 2 << 20
UDP_STREAMS = 8
# Mbit/s. A core may be kept from its work for fifty milliseconds before that ring is full.
UDP_RATE = 50
PAGE_BYTES = 32 << 20
# How a card is refused that is for the poll engine.
REFUSED = r'^{file}:\d+: [\w\[\].-]+: found .+, allowed with engine = "kernel": .+'


def tcp(hosts, way):
    """iperf3, TCP over IPv4 and IPv6, both ways: no gaps, no disorder, no missing bytes."""
    rates, again, there = [], 0, 0
    with hosts.card(way) as card:
        for family in range(2):
            for streams, window in STREAMS.items():
                for reverse in (False, True):
                    what = f"IPv{(4, 6)[family]}, {streams} streams, reverse {reverse}"
                    witness = Witness(hosts, (hosts.client, hosts.server), hosts.links)
                    result = transfer(hosts, streams, reverse, family=family, window=window,
                                      amount=("-n", str(TCP_AMOUNT)))
                    again += witness.judge(what)
                    # The receiver counts the bytes that it had read at the end of the transfer.
                    sent, arrived = (result["end"][f"sum_{end}"]["bytes"]
                                     for end in ("sent", "received"))
                    if sent < TCP_AMOUNT or arrived < 0.9 * TCP_AMOUNT:
                        raise Wrong(f"{what}: of {TCP_AMOUNT:,} bytes {sent:,} were sent, {arrived:,} "
                                    "arrived")
                    there += 0 if reverse else arrived
                    rates.append(f"{gigabits(result):.1f}")
    passed_by_the_card(card, there)
    return f"{' '.join(rates)} Gbit/s there and back by {list(STREAMS)} streams, IPv4 and IPv6, " \
           f"{again} sent again"


def passed_by_the_card(card, least):
    """So many bytes at least have come through the card, and by each of its queues."""
    wire, queues = card.report["wires"][0], card.report["queues"]
    if wire["rx_bytes"] < least or not all(queue["packets"] for queue in queues):
        raise Wrong(f"of {least:,} bytes the wire had {wire['rx_bytes']:,}, the queues had "
                    f"{[queue['packets'] for queue in queues]} packets")


def udp(hosts, way):
    """iperf3, UDP, by IPv4 and IPv6, both ways: none lost, none out of order."""
    told = []
    with hosts.card(way):
        for family in range(2):
            for reverse in (False, True):
                count = all_arrived(hosts, UDP_STREAMS, reverse, rate=UDP_RATE, family=family,
                                    window="512K", amount=("-n", str(UDP_AMOUNT)))
                told.append(f"{count:,}")
    return f"{' '.join(told)} datagrams there and back by {UDP_STREAMS} streams, IPv4 and IPv6"


def nginx(hosts, way):
    """nginx: a random file by IPv4 and IPv6, as it was; 1000 connections, no error."""
    with hosts.card(way) as card:
        web.serve_nginx(hosts)
        page = random.randbytes(PAGE_BYTES)
        (hosts.work / "nginx" / "page").write_bytes(page)
        digest = hashlib.sha256(page).digest()
        for address in hosts.SERVER:
            host = f"[{address}]" if ":" in address else address
            told = subprocess.run(["ip", "netns", "exec", hosts.client, "curl", "-s", "-f",
                                   f"http://{host}:{web.PORT}/page"],
                                  stdout=subprocess.PIPE, timeout=lab.PATIENCE)
            if told.returncode != 0 or hashlib.sha256(told.stdout).digest() != digest:
                raise Wrong(f"curl from {address}: exit code {told.returncode}, {len(told.stdout):,} of "
                            f"{PAGE_BYTES:,} bytes, or others")
        told = web.loaded(hosts, "/file")
    passed_by_the_card(card, 0)
    return f"a file of {PAGE_BYTES >> 20} MiB as it was, {told}"


def examples(hosts, way):
    """The example cards: each is refused by file, line and key, or is at work in the kernel."""
    folder, at_work, refused = lab.HERE.parents[1] / "examples" / "cards", [], []
    for file in sorted(folder.glob("*.toml")):
        told = subprocess.run([hosts.picnic, "check", file, *hosts.options(way)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=lab.PATIENCE)
        if told.returncode == 0:
            with hosts.card(way, example=file) as card:
                for address in hosts.SERVER:
                    hosts.run(hosts.client, "ping", "-q", "-c", "5", "-i", "0.02", address)
            if card.report["ledger"]["in"] < 10:
                raise Wrong(f"{file.name}: {card.report['ledger']}")
            at_work.append(file.stem)
        elif told.returncode == 2 and re.search(REFUSED.format(file=re.escape(str(file))), told.stderr,
                                                re.MULTILINE):
            refused.append(file.stem)
        else:
            raise Wrong(f"check of {file.name}: exit code {told.returncode}, {told.stderr.strip()[-500:]}")
    # Whoever makes another one possible, or this one impossible, is to know.
    if at_work != ["kernel"] or len(refused) < 9:
        raise Wrong(f"at work: {at_work}, refused: {refused}")
    return f"{', '.join(at_work)} at work, {len(refused)} refused by line and key"
