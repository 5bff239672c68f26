"""One TCP connection over two wires: two cards back to back, each alternating between its wires.

    h1 :client ─ card ═ a0, a1 ═══ two veth pairs ═══ b0, b1 ═ card ─ h2 :server

Each wire is limited to a link rate, so that one wire alone could not carry the traffic.
"""

import json
import subprocess

from check import Wrong
from lab import PATIENCE

MBPS, AMOUNT = 200, 32 << 20
PORT = 5202
ENDS = (("a", "h1", "10.87.0.2"), ("b", "h2", "10.87.0.1"))


def card_text(hosts, wire, side, tap, address, order):
    """A card of two wires; with `order`, it restores the order of packets that the other alternates."""
    place = hosts.client if side == "a" else hosts.server
    wires = "".join(
        f'[[wire]]\nport = "{wire}"\ninterface = "{side}{number}"\nnamespace = "{hosts.middle}"\n'
        f"[wire.link]\nrate_mbps = {MBPS}\n" for number in range(2))
    keys = "order_usecs = 2000\norder_packets = 256\n" if order else "order_usecs = 0\n"
    return (f'[card]\nname = "{place}-{tap}"\n{wires}[[rx]]\nfunction = "bond"\nmode = "round-robin"\n{keys}'
            f'[[tx]]\nfunction = "tso"\n[[tx]]\nfunction = "bond"\nmode = "round-robin"\n'
            f'[host]\nattachment = "tap"\nqueues = 1\nname = "{tap}"\nnamespace = "{place}"\n'
            f'addresses = ["{address}/24"]\n[pool]\nbuffers = 16384\n')


def start(hosts, wire, end, order):
    side, tap, address = end
    text = card_text(hosts, wire, side, tap, address, order)
    return hosts.launch(tap, text, hosts.client if side == "a" else hosts.server, tap)


def once(hosts, wire, order):
    """Megabits a second of one connection, and segments that came ahead of others."""
    cards = [start(hosts, wire, end, order) for end in ENDS]
    server = hosts.serve("iperf3", "-s", "-p", str(PORT), port=PORT)
    before = hosts.counters(hosts.server)["TcpExtTCPOFOQueue"]
    told = subprocess.run(
        ["ip", "netns", "exec", hosts.client, "iperf3", "-c", ENDS[1][2], "-p", str(PORT), "-n",
         str(AMOUNT), "-J"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    result = json.loads(told.stdout)
    if told.returncode != 0:
        raise Wrong(f"iperf3: {result.get('error', told.returncode)}")
    ahead = hosts.counters(hosts.server)["TcpExtTCPOFOQueue"] - before
    hosts.end(server)
    for card in cards:
        report = card.stop(lossless=False)
        sent = [wire["tx_bytes"] for wire in report["wires"]]
        # Turn about: neither has much more than the other.
        if min(sent) * 2 < max(sent):
            raise Wrong(f"the wires have sent {sent} bytes")
    received = result["end"]["sum_received"]
    # The rest is on its way when the transfer ends.
    if received["bytes"] < AMOUNT / 2:
        raise Wrong(f"{received['bytes']} of {AMOUNT} bytes have come")
    return received["bits_per_second"] / 1e6, ahead


def bonded(hosts, wire):
    """A connection over two wires turn about, as it comes and put in order again."""
    for number in range(2):
        subprocess.run(["ip", "-n", hosts.middle, "link", "add", f"a{number}", "type", "veth", "peer",
                        "name", f"b{number}"], check=True)
        for name in (f"a{number}", f"b{number}"):
            hosts.run(hosts.middle, "ip", "link", "set", name, "up")
    try:
        (plain, ahead), (ordered, left) = once(hosts, wire, False), once(hosts, wire, True)
    finally:
        for number in range(2):
            subprocess.run(["ip", "-n", hosts.middle, "link", "del", f"a{number}"])
    return (f"two wires of {MBPS} Mb/s: {plain:.0f} Mb/s as it comes, {ahead:,} segments ahead of others; "
            f"{ordered:.0f} Mb/s put in order, {left:,}")
