"""A card in a server's own kernel (`engine = "kernel"`), with a client and a server only.

    with Inside(picnic, work) as lab:
        with lab.card("cpumap") as card:
            lab.run(lab.client, "ping", "-c", "1", lab.SERVER[0])
        print(card.report["ledger"])

    client: c0 ═══ veth ═══ w0 :server, the card's wire and its host's interface

`card` takes one of WAYS; the rest is as in Behind. Packets that the host sends pass no chain, so the
report does not count them.

Guarantees: those of Behind; after the card, the server's interface has its old settings.
"""

import contextlib
import json
import os
import subprocess

from behind import as_toml, Behind, LINK, TAP_MAC, WIRE
from check import Wrong

# The name of a card, its hand-over, and the offloads that the client's interface does for its
# host.
WAYS = {
    # As a veth comes: super-frames stay whole.
    "skb": ("skb", ("tx", "on", "tso", "on")),
    # As a NIC brings them: frame by frame, merged by GRO.
    "skb-frames": ("skb", ("tx", "on", "tso", "off")),
    # XDP carries no word of unfinished checksums.
    "cpumap": ("cpumap", ("tx", "off")),
}
BORROWED_CORE, TARGET_CORES = 1, (0, 1)
# The report's note about packets that another core than the borrowed one took.
ELSEWHERE = "taken on the core that sent them"


def why_not(picnic, way):
    """Why no card can hand packets over like this here, as the doctor says; None if one can."""
    if not {BORROWED_CORE, *TARGET_CORES} <= os.sched_getaffinity(0):
        return f"it needs cores {', '.join(map(str, TARGET_CORES))}"
    name = f"kernel-{WAYS[way][0]}"
    told = subprocess.run([picnic, "doctor", "--json"], stdout=subprocess.PIPE, check=True)
    found = {finding["name"]: finding for finding in json.loads(told.stdout)["findings"]}
    return None if found[name]["available"] else found[name]["reason"]


class Inside(Behind):
    """The two namespaces; use it by `with`."""

    COUNTED = ("rx",)
    # By cpumap a veth is several times slower.
    FILE_BYTES = 1 << 27
    # On the client's core, the server would wait for the client's turn before it takes a window.
    SERVER_CORE = 1
    # As many requests as the ring of a veth and a core's backlog have room for.
    CONNECTIONS, SECONDS = 200, 1
    PINGS = 10

    def __init__(self, picnic, work):
        super().__init__(picnic, work)
        self.middle = self.server
        self.links = (self.client, LINK), (self.server, WIRE)
        self.socket = self.work / "card.sock"

    def build(self):
        for namespace in (self.client, self.server):
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            self.run(namespace, "ip", "link", "set", "lo", "up")
        self.connect()
        self.run(self.server, "ip", "link", "set", WIRE, "address", TAP_MAC)
        for address, prefix in zip(self.SERVER, (24, 64)):
            self.run(self.server, "ip", "address", "add", f"{address}/{prefix}", "dev", WIRE,
                     *(["nodad"] if ":" in address else []))
        # The other end of a polled veth has a ring of 256 packets. Packets without room there are
        # lost, and with a queue before it they arrive late and out of order (Linux 6.18): neither
        # would be the card's doing. So no window is longer than the ring.
        for namespace in (self.client, self.server):
            for buffer in ("rmem", "wmem"):
                self.run(namespace, "sysctl", "-qw", f"net.ipv4.tcp_{buffer}=4096 131072 262144")

    # ------------------------------------------------------------ the card

    def text(self, way, mtu, name=None, **host):
        """A card file."""
        return as_toml([
            ("[card]", {"name": name or self.client, "engine": "kernel",
                        "borrowed_core": BORROWED_CORE}),
            ("[[wire]]", {"port": "xdp", "interface": WIRE, "namespace": self.server}),
            ("[[rx]]", {"function": "rss", "types": [f"{protocol}ipv{version}" for version in (4, 6)
                                                     for protocol in ("", "tcp-", "udp-")]}),
            ("[host]", {"attachment": "stack", "handover": WAYS[way][0], "queues": len(TARGET_CORES),
                        "target_cores": TARGET_CORES, **host}),
            ("[control]", {"socket": str(self.socket)}),
        ])

    def options(self, way):
        """What makes somebody else's card one between these namespaces."""
        keys = {"wire[0].interface": WIRE, "wire[0].namespace": self.server,
                "host.handover": WAYS[way][0], "control.socket": str(self.socket)}
        return ["--engine", "kernel", *(word for key, value in keys.items()
                                        for word in ("--set", f"{key}={value}"))]

    def start_card(self, way, mtu=1500, example=None, **host):
        """Starts the card, or the card of an example's file."""
        self.run(self.client, "ethtool", "-K", LINK, *WAYS[way][1])
        if example:
            text = example.read_text()
            return self.launch(example.stem, text, self.server, WIRE, self.options(way))
        return super().start_card(way, mtu, **host)

    def is_at_work(self, *_):
        """It answers once its programs are attached."""
        told = subprocess.run([self.picnic, "ctl", "info", "--socket", self.socket],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return told.returncode == 0

    @contextlib.contextmanager
    def card(self, way, mtu=1500, lossless=True, example=None, **host):
        """A card inside the `with`; at the end its ledger must balance, and its wire be unchanged."""
        before, sent = self.state(), [self.sent()]
        with super().card(way, mtu, lossless, example=example, **host) as card:
            sent.append(self.sent())
            yield card
            sent.append(self.sent())
        sent.append(self.sent())
        after = self.state()
        if before != after:
            raise Wrong(f"{WIRE} was {before}, and is {after}")
        # All that comes is taken on the borrowed core.
        if any(ELSEWHERE in note for note in card.report["notes"]):
            raise Wrong(f"{way}: the report says of its cores: {card.report['notes']}")
        # Of super-frames the card counts the packets in them, the interface does not.
        taken = card.report["ledger"]["in"]
        if way != "skb" and not sent[2] - sent[1] <= taken <= sent[3] - sent[0]:
            raise Wrong(f"{LINK} sent {sent[2] - sent[1]:,} packets, the card took in {taken:,}")

    def sent(self):
        """Packets that the client's interface has sent."""
        return self.link(self.client, LINK)["stats64"]["tx"]["packets"]

    def state(self):
        """The changes of a running card in the server's namespace."""
        told = subprocess.run(
            ["ip", "netns", "exec", self.server, "sh", "-c",
             f"ls /sys/class/net; cd /sys/class/net/{WIRE}; cat threaded gro_flush_timeout "
             f"napi_defer_hard_irqs queues/rx-*/rps_cpus; ip link show {WIRE} | grep -o 'xdp.*'; "
             f"ethtool -k {WIRE} | grep '^generic-receive'; tc qdisc show dev {WIRE}"],
            stdout=subprocess.PIPE, text=True)
        return told.stdout.split()
