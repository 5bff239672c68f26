"""A server behind a card: client, card and server, each in its own namespace.

    with Behind(picnic) as lab:
        with lab.card("packet") as card:
            lab.run(lab.client, "ping", "-c", "1", lab.ADDRESS)
        print(card.report["ledger"])

    client: c0 ═══ veth ═══ w0 :middle, wire ─ card ─ tap h0 :server

Guarantees: those of Lab; the card is stopped, and its ledger is checked.
"""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import time

from check import Wrong
from lab import Lab, PATIENCE, wait_for

# The card's wire, the client's end of it, the interface that the card makes.
WIRE, LINK, TAP = "w0", "c0", "h0"
# Identity of the server's kernel, the same for all cards.
TAP_MAC = "02:00:00:00:88:01"
# A busy machine keeps the borrowed core and the target cores from their work: rings must hold the
# windows of all streams, without super-frames, and all datagrams of a transfer, or packets are lost.
RING = 16384
PORT_KEYS = {"packet": {"frames": RING}, "xdp": {"rx_ring": RING}}
HOST_KEYS = dict.fromkeys(("packet", "xdp"), {"ring_size": RING})
# The core that softirqs of the veth's ends are moved to: packets of one flow that two cores hand to
# a veth would overtake each other there, and the card would be blamed.
RPS_CORE = 0


class Behind(Lab):
    """The three namespaces; use it by `with`."""

    CLIENT, SERVER = ("10.88.0.2", "2001:db8:88::2"), ("10.88.0.1", "2001:db8:88::1")
    # Directions that the report of a wire counts.
    COUNTED = ("rx", "tx")
    FILE_BYTES = 1 << 30
    # Where programs run that are kept on a core.
    CLIENT_CORE = SERVER_CORE = 0
    # Of wrk.
    CONNECTIONS, SECONDS = 1000, 2
    # One after another, of one size.
    PINGS = 50

    def __init__(self, picnic, work):
        super().__init__()
        self.middle = self.client[:-1] + "m"
        self.picnic, self.work, self.servers = picnic, pathlib.Path(work), []
        # Every interface on the path, for the kernel's drops there.
        self.links = (self.client, LINK), (self.middle, WIRE), (self.server, TAP)

    def close(self):
        super().close()
        subprocess.run(["ip", "netns", "del", self.middle], stderr=subprocess.DEVNULL)

    def build(self):
        for namespace in (self.client, self.middle, self.server):
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            self.run(namespace, "ip", "link", "set", "lo", "up")
        # Packets of the card's own kernel must not reach the wire.
        self.run(self.middle, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        self.connect()

    def connect(self, mtu=1500):
        """Makes the veth pair."""
        subprocess.run(["ip", "link", "add", LINK, "netns", self.client, "type", "veth", "peer",
                        "name", WIRE, "netns", self.middle], check=True)
        for address, prefix in zip(self.CLIENT, (24, 64)):
            self.run(self.client, "ip", "address", "add", f"{address}/{prefix}", "dev", LINK,
                     *(["nodad"] if ":" in address else []))
        self.set_mtu(mtu)
        for namespace, link in ((self.client, LINK), (self.middle, WIRE)):
            self.run(namespace, "ip", "link", "set", link, "up")
            self.order_arrivals(namespace, link)
        wait_for(lambda: self.flags(self.middle, WIRE) >= {"UP", "LOWER_UP"}, f"{WIRE} to be up")

    def order_arrivals(self, namespace, link):
        """Makes one core handle the packets that arrive at the end of a veth."""
        self.run(namespace, "sh", "-c",
                 f"echo {1 << RPS_CORE:x} > /sys/class/net/{link}/queues/rx-0/rps_cpus")

    def set_mtu(self, mtu):
        self.run(self.client, "ip", "link", "set", LINK, "mtu", str(mtu))
        self.run(self.middle, "ip", "link", "set", WIRE, "mtu", str(mtu))

    def link(self, namespace, name):
        """What `ip` tells of an interface; None if it is not there."""
        told = subprocess.run(["ip", "-n", namespace, "-d", "-s", "-j", "link", "show", name],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(told.stdout)[0] if told.returncode == 0 else None

    def flags(self, namespace, name):
        link = self.link(namespace, name)
        return set(link["flags"]) if link else set()

    def serve(self, *command, port):
        """Starts a server that ends with all its workers, and waits until it listens."""
        log = self.work / f"{pathlib.Path(command[0]).name}-{port}.log"
        with open(log, "wb") as output:
            server = self.start(self.server, "unshare", "--pid", "--fork", "--kill-child=KILL",
                                *command, stdout=output, stderr=output)

        def is_listening():
            if server.poll() is not None:
                raise RuntimeError(f"{command[0]} ended: {log.read_text(errors='replace')[-500:]}")
            return self.listens(server.pid, port)

        self.servers.append(server)
        wait_for(is_listening, f"port {port}")
        return server

    def end_children(self):
        # `unshare` would not get the signal to end, and would have to be waited for.
        for server in self.servers:
            self.end(server)
        self.servers.clear()
        super().end_children()

    @staticmethod
    def listens(process, port):
        """Whether somebody in the process's network namespace listens on a TCP port."""
        for family in ("tcp", "tcp6"):
            lines = pathlib.Path(f"/proc/{process}/net/{family}").read_text().splitlines()[1:]
            if any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
                   for line in lines):
                return True
        return False

    @staticmethod
    def programs(server):
        """The processes that a server started by `serve` consists of."""
        first = children(server.pid)
        return first + [process for parent in first for process in children(parent)]

    @staticmethod
    def end(child):
        """Ends a program started here, and all that it has started: their ports are free afterwards."""
        with contextlib.ExitStack() as stack:
            ends = []
            # The first process of a namespace ends after all others there.
            for process in children(child.pid) if child.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    ends.append(os.pidfd_open(process))
                    stack.callback(os.close, ends[-1])
            child.kill()
            child.wait(PATIENCE)
            for end in ends:
                if not select.select([end], [], [], PATIENCE)[0]:
                    raise RuntimeError(f"what {' '.join(child.args)} has started has not ended")

    def refused(self):
        """Packets that each interface on the path has dropped, in and out."""
        stats = [self.link(*link)["stats64"] for link in self.links]
        return [stat[way]["dropped"] for stat in stats for way in ("rx", "tx")]

    def counters(self, namespace):
        """The kernel's counters of a namespace, by nstat's names."""
        told = subprocess.run(["ip", "netns", "exec", namespace, "nstat", "-asz", "--json"],
                              stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(told.stdout)["kernel"]

    # ------------------------------------------------------------ the card

    def text(self, port, mtu, name=None, **host):
        """A card file."""
        keys = {"attachment": "tap", "queues": 2, "name": TAP, "mac": TAP_MAC, "mtu": mtu,
                "addresses": [f"{self.SERVER[0]}/24", f"{self.SERVER[1]}/64"],
                "namespace": self.server, **HOST_KEYS.get(port, {}), **host}
        sections = [
            ("[card]", {"name": name or self.client}),
            ("[[wire]]", {"port": port, "interface": WIRE, "namespace": self.middle,
                          **PORT_KEYS.get(port, {})}),
            ("[[rx]]", {"function": "rss"}),
            ("[host]", keys),
            ("[pool]", {"buffer_size": max(2048, mtu + 18), "buffers": 32768}),
        ]
        return as_toml(sections)

    def start_card(self, port, mtu=1500, **host):
        """Starts the card of one wire."""
        return self.launch("card", self.text(port, mtu, **host), self.server, TAP)

    def launch(self, name, text, namespace, tap, options=()):
        """Starts `picnic run` on this text; returns once its host's interface is up."""
        file = self.work / f"{name}.toml"
        file.write_text(text)
        output, errors = (open(self.work / f"{name}.{end}", "w+b") for end in ("json", "err"))
        with self.lock:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", self.picnic, "run", file, "--quiet", "--json",
                 *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
            self.children.append(process)
        card = Card(process, output, errors)

        def is_up():
            if process.poll() is not None:
                raise Wrong(f"the card has ended: {card.said()}")
            return self.is_at_work(namespace, tap)

        wait_for(is_up, f"{tap} to be up")
        return card

    def is_at_work(self, namespace, tap):
        """Whether the card that has just been started is: its host's interface is up."""
        return self.flags(namespace, tap) >= {"UP", "LOWER_UP"}

    @contextlib.contextmanager
    def card(self, port, mtu=1500, lossless=True, **host):
        """A card inside the `with`; at the end its ledger must balance."""
        card = self.start_card(port, mtu, **host)
        try:
            yield card
        except BaseException:
            card.abandon()
            raise
        card.stop(lossless)


class Card:
    """A card at work."""

    def __init__(self, process, output, errors):
        self.process, self.output, self.errors, self.report = process, output, errors, None

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:]

    def abandon(self):
        """Ctrl-C, so that the card undoes its changes; the report is discarded."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def stop(self, lossless=True):
        """Ctrl-C; the report."""
        if self.process.poll() is not None:
            raise Wrong(f"the card has ended on its own: {self.said()}")
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise Wrong(f"the card ends with exit code {code}: {self.said()}")
        self.output.seek(0)
        self.report = json.loads(self.output.read())
        ledger = self.report["ledger"]
        fates = sum(ledger[fate] for fate in ("delivered", "transmitted", "consumed", "dropped",
                                              "in_flight"))
        if not ledger["balanced"] or ledger["in"] != fates or ledger["in_flight"]:
            raise Wrong(f"the ledger does not balance: {ledger}")
        if self.report["buffers_missing"]:
            raise Wrong(f"{self.report['buffers_missing']} buffers have not come home")
        if lossless and ledger["dropped"]:
            raise Wrong(f"the card dropped: {self.report['drops_by_stage']}")
        return self.report


def children(process):
    """The processes that another has started and that have not ended."""
    try:
        return list(map(int, pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


def as_toml(sections):
    """A card file of these sections: heads, and keys with their values."""
    return "\n".join("\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in keys.items()),
                                ""]) for head, keys in sections)


def until(is_so, what):
    """Looks every 50 ms; `what` is wrong if it is never so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise Wrong(f"after {PATIENCE} s: {what}")
        time.sleep(0.05)
