"""Two hosts for traffic: network namespaces, joined by a veth pair.

    with Lab() as lab:
        lab.run(lab.client, "ping", "-c", "1", "198.51.100.2")
        with lab.capture("web.pcap"):
            ...

With IPv4, IPv6, 802.1Q and 802.1ad. Needs root.

Guarantees: at the end, also after Ctrl-C or an error, all started processes have ended and both
namespaces are removed. If this process is killed, the kernel ends its children, and the next Lab
removes its namespaces.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = ("ip", "tcpdump", "iperf3", "curl", "ping", "ethtool", "setpriv")
PREFIX = "picnic-e2e-"
LINK = "eth0"
# Name, its ends' IPv4 addresses less the last number, IPv6 the same, tags, bytes of an IP packet.
NETWORKS = (
    (LINK, "198.51.100.", "2001:db8:1::", None, 1500),
    ("vlan5", "198.51.101.", "2001:db8:2::", "8100:5", 1496),
    ("double", "198.51.102.", "2001:db8:3::", "88a8:7,8100:9", 1492),
)
# What any one command may take on a busy machine, in seconds; on an idle one all take under one.
PATIENCE = 300
# KiB of memory for packets before they reach a file.
CAPTURE_BUFFER = "16384"


def why_not():
    """Why there can be no traffic here; None if there can."""
    if os.geteuid() != 0:
        return "it needs root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def why_no_vlan():
    """Why there can be no VLANs here; None if there can."""
    return None if os.path.exists("/dev/net/tun") else "/dev/net/tun is not there"


class Lab:
    """A client and a server, both of them namespaces; use it by `with`."""

    def __init__(self):
        self.client, self.server = (f"{PREFIX}{os.getpid()}-{end}" for end in "ab")
        self.children, self.lock = [], threading.Lock()
        self.networks = [network for network in NETWORKS if not (network[3] and why_no_vlan())]

    def __enter__(self):
        try:
            remove_stale()
            self.build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends running programs and removes the namespaces; nothing may interrupt it."""
        handlers = {name: signal.signal(name, signal.SIG_IGN)
                    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self.end_children()
        for namespace in (self.client, self.server):
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)
        for name, handler in handlers.items():
            signal.signal(name, handler)

    def end_children(self):
        with self.lock:
            for child in self.children:
                if child.poll() is None:
                    child.terminate()
            for child in self.children:
                try:
                    child.wait(2)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            self.children.clear()

    def start(self, namespace, *command, **how):
        """Starts a program in a namespace; it ends with this process at the latest."""
        whole = ["ip", "netns", "exec", namespace, "setpriv", "--pdeathsig", "KILL", *command]
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **how}
        with self.lock:
            child = subprocess.Popen(whole, **how)
            self.children.append(child)
        return child

    def run(self, namespace, *command):
        """Runs a program to its end, which must be a good one."""
        self.wait(self.start(namespace, *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True))

    def wait(self, child):
        """Waits for a program to end, which must end well."""
        out, errors = child.communicate(timeout=PATIENCE)
        if child.returncode != 0:
            last = ((errors or "").strip() or (out or "").strip() or "no output").splitlines()[-1]
            raise RuntimeError(f"{' '.join(child.args)}: exit code {child.returncode}: {last}")

    def build(self):
        for namespace in (self.client, self.server):
            subprocess.run(["ip", "netns", "add", namespace], check=True)
        subprocess.run(["ip", "link", "add", LINK, "netns", self.client, "type", "veth", "peer",
                        "name", LINK, "netns", self.server], check=True)
        for number, namespace in enumerate((self.client, self.server), 1):
            self.run(namespace, "ip", "link", "set", "lo", "up")
            self.run(namespace, "ip", "link", "set", LINK, "up")
            taps = [f"{name}={tags}" for name, _, _, tags, _ in self.networks if tags]
            if taps:
                self.start(namespace, sys.executable, str(HERE / "vlan_relay.py"), LINK, *taps)
            for name, ipv4, ipv6, _, size in self.networks:
                wait_for(lambda: self.has_interface(namespace, name), f"interface {name}")
                self.run(namespace, "ip", "address", "add", f"{ipv4}{number}/24", "dev", name)
                self.run(namespace, "ip", "address", "add", f"{ipv6}{number}/64", "dev", name,
                         "nodad")
                # The queue holds all datagrams of a transfer: its first, of which one is sent, may be behind.
                self.run(namespace, "ip", "link", "set", name, "txqueuelen", "10000", "mtu", str(size),
                         "up")
        self.offloads("off")

    def has_interface(self, namespace, name):
        with contextlib.suppress(RuntimeError):
            self.run(namespace, "ip", "link", "show", name)
            return True
        return False

    def offloads(self, state):
        """Checksums, and packets of up to 64 KiB, left to the interface or not."""
        for namespace in (self.client, self.server):
            self.run(namespace, "ethtool", "-K", LINK, "tx", state, "tso", state, "gso", state,
                     "gro", state)

    def listen(self, port, *command):
        """Starts a server and waits until it listens; returns it."""
        server = self.start(self.server, *command, stderr=subprocess.DEVNULL)

        def is_listening():
            if server.poll() is not None:
                raise RuntimeError(f"{command[0]} for port {port} ended: {server.returncode}")
            with open(f"/proc/{server.pid}/net/tcp6", encoding="ascii") as sockets:
                return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
                           for line in sockets)

        wait_for(is_listening, f"port {port}")
        return server

    @contextlib.contextmanager
    def capture(self, path, *options, namespace=None, link=LINK):
        """Captures the client's end while in the `with`: pcap, or pcapng if `path` says so.

        With `namespace` and `link`, that of another client.
        """
        path = pathlib.Path(path)
        log = path.with_name(f"{path.name}.log")
        if path.suffix == ".pcapng":
            command = ["dumpcap", "-q", "-i", link, "-w", str(path)]
            ready = "File: "
        else:
            command = ["tcpdump", "-n", "-i", link, "-w", str(path), "-B", CAPTURE_BUFFER, "-U",
                       "-Z", "root", "--immediate-mode", *options]
            ready = "listening on"
        with open(log, "wb") as errors:
            child = self.start(namespace or self.client, *command, stderr=errors)

        def is_ready():
            if child.poll() is not None:
                raise RuntimeError(f"{' '.join(command)}: {log.read_text().strip()}")
            return ready in log.read_text()

        wait_for(is_ready, command[0])
        yield
        sizes = []
        # Arrived packets are in the file once it has stopped growing.
        wait_for(lambda: sizes.append(path.stat().st_size) or sizes[-4:] == sizes[-1:] * 4,
                 f"{path.name} to be still")

        def has_all():
            """tcpdump tells what it has written of what the kernel holds for it."""
            child.send_signal(signal.SIGUSR1)
            told = re.findall(r"(\d+) packets? captured, (\d+) packets? received by filter, (\d+)", log.read_text())
            captured, received, dropped = map(int, told[-1]) if told else (0, 1, 0)
            return captured + dropped >= received

        if command[0] == "tcpdump":
            with contextlib.suppress(RuntimeError):
                wait_for(has_all, f"{path.name} to have all packets")
        child.send_signal(signal.SIGINT)
        if child.wait(PATIENCE) != 0:
            raise RuntimeError(f"{' '.join(command)}: {log.read_text().strip()}")


def wait_for(is_so, what):
    """Looks every 50 ms."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {PATIENCE} s for {what}")
        time.sleep(0.05)


def is_alive(name):
    """Whether the process that something is named after is there, or one with its number."""
    return os.path.exists(f"/proc/{name.removeprefix(PREFIX).partition('-')[0]}")


def remove_stale():
    """Removes namespaces whose maker has been killed."""
    listed = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True)
    for line in listed.stdout.splitlines():
        namespace = line.split()[0]
        if namespace.startswith(PREFIX) and not is_alive(namespace):
            subprocess.run(["ip", "netns", "del", namespace], check=True)
