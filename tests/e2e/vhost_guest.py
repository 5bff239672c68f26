#!/usr/bin/env -S python3 -B
"""Guests under QEMU whose NIC is a card, over vhost-user: Linux's own driver, real programs.

    vhost_guest.py                       all of it, as root
    vhost_guest.py --only NAME [NAME...] some of it
    vhost_guest.py --inside FOLDER [NAME...]   the part within the namespaces

    client: peer0 ── veth ── wire0, wire ── card ── vhost-user ── QEMU ── guest

Tests:
    alone      one guest with four queues: ping, iperf3 both ways, a file there and back, offloads
               on and off, MTU 9000, every queue at work
    pair       two guests behind `vmdq`: iperf3 and a file to each other, switched on the card; neither
               may send from the other's address
    restarts   under load, the driver is unbound and bound, the guest resets, QEMU is killed and
               started again: the same card goes on
    killed     under load, the card is killed and started again, and connects to QEMU, or QEMU to it:
               the guest goes on; nothing is left behind
    moved      under load, a guest migrates to another QEMU: its memory is the same page by page, and
               traffic goes on there
    held       two guests with a `rate-limit`: each gets its own rate, whatever the other sends
    packed, restarts-packed, killed-packed, moved-packed
               as `alone`, `restarts`, `killed` and `moved`, with packed rings

The ledger balances after each. QEMU emulates the guest's processors, so
nothing is timed but the rate of `rate-limit`.

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import virtual
from check import Wrong
from echoes import Echoes
from virtual import Guest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICNIC = pathlib.Path(os.environ.get("PICNIC", ROOT / "target/debug/picnic"))
CLIENT = "10.77.0.9"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
MACS = ("02:00:00:00:77:01", "02:00:00:00:77:02")
# Sources of echo requests, which `rss` spreads over the queues.
SOURCES = [f"10.77.0.{number}" for number in range(20, 28)]
# What any one step may take on a busy machine, in seconds.
PATIENCE = virtual.PATIENCE
# Types of frames.
ARP, RARP = 0x0806, 0x8035
FILE_BYTES = 8 << 20
CARD = """
[card]
name = "guests"
idle = "block"

[[wire]]
port = "packet"
interface = "wire0"

{chain}

[host]
attachment = "vhost-user"
queues = {queues}
"""
RSS = '[[rx]]\nfunction = "rss"\n'
MAC_KEYS = """pools = [
    {{ macs = ["{0}"], queues = {1} }},
    {{ macs = ["{2}"], queues = {3} }},
]
"""
SWITCH = """
[[rx]]
function = "vmdq"
{0}
[[tx]]
function = "vmdq"
{0}
"""
# Restarts, in `restarts` and `killed`; a guest needs seconds to boot.
REBINDS, QEMU_KILLS, CARD_KILLS = 5, 2, 10
# Bytes per second that each guest may send, far less than it can; its burst; the least seconds to look.
RATE, BURST, SECONDS = 50_000, 40_000, 4
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
HOLD = f"""
[[tx]]
function = "rate-limit"
per = "tx-queue"
bytes_per_second = {RATE}
burst_bytes = {BURST}
"""


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--inside"]:
        return inside(pathlib.Path(arguments[1]), arguments[2:])
    names = arguments[1:] if arguments[:1] == ["--only"] else []
    unknown = [name for name in names if name not in TESTS]
    if unknown:
        print(f"found {', '.join(unknown)}, allowed: {', '.join(TESTS)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("it needs root")
        return 77
    reason = virtual.why_not()
    if reason:
        print(reason)
        return 77
    if not PICNIC.exists():
        print(f"failed: {PICNIC} is not there; cargo build")
        return 1
    try:
        virtual.packaged.kernel(virtual.CACHE)
    except virtual.packaged.Unavailable as error:
        print(error)
        return 77
    with tempfile.TemporaryDirectory(prefix="picnic-vm-") as folder:
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc",
                   "--kill-child", sys.executable, "-B", __file__, "--inside", folder, *names]
        return subprocess.run(command).returncode


def inside(folder, names):
    # Other cards of this machine have other sockets and journals: from here, their processes cannot be
    # seen, so that their journals look left behind.
    os.environ["PICNIC_RUNTIME_DIR"] = str(folder / "run")
    os.environ["PICNIC_STATE_DIR"] = str(folder / "state")
    image, kernel = virtual.build(folder)
    # The interfaces of this namespace.
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    failed = False
    for name, (test, packed) in TESTS.items():
        if names and name not in names:
            continue
        work = folder / name
        work.mkdir()
        started = time.monotonic()
        try:
            told = test(Lab(work, image, kernel, packed))
            print(f"{name:15} {told}, in {time.monotonic() - started:.0f} s", flush=True)
        except (Wrong, TimeoutError, subprocess.TimeoutExpired) as error:
            print(f"failed: {name}: {error}", flush=True)
            failed = True
    return int(failed)


class Lab:
    """The client's network, and cards and guests on it."""

    def __init__(self, work, image, kernel, packed):
        self.work, self.image, self.kernel, self.packed = work, image, kernel, packed
        self.mtu = 9000
        subprocess.run(["ip", "link", "del", "wire0"], stderr=subprocess.DEVNULL, check=False)
        run("ip", "link", "add", "wire0", "mtu", "9000", "type", "veth", "peer", "name", "peer0", "mtu", "9000")
        for link in ("wire0", "peer0"):
            pathlib.Path(f"/proc/sys/net/ipv6/conf/{link}/disable_ipv6").write_text("1")
            # A sender that moves to another core would overtake its own packets.
            pathlib.Path(f"/sys/class/net/{link}/queues/rx-0/rps_cpus").write_text("1")
            run("ip", "link", "set", link, "up")
        run("ip", "address", "add", f"{CLIENT}/24", "dev", "peer0")

    def card(self, chain, queues, guests):
        (self.work / "card.toml").write_text(CARD.format(chain=chain, queues=queues) + guests)
        return Card(self)

    def section(self, number, keys=""):
        """A guest's section of the card file."""
        return (f'[[host.guest]]\nsocket = "{self.work}/vm{number}.sock"\n'
                f'packed = {str(self.packed).lower()}\n{keys}')

    def guest(self, number, queues, is_server=False, extra=(), mac=None, mtu=1500, nic=""):
        path = self.work / f"vm{number}.sock"
        device = f"path={path}" + (",server=on,wait=off" if is_server else ",reconnect=1")
        return Guest(self.work, f"vm{number}", self.kernel, self.image, device, queues,
                     mac or MACS[number], mtu, extra, nic + (",packed=on" if self.packed else ""))


class Card:
    """A running card; its report is checked at the end."""

    def __init__(self, lab):
        self.packed = lab.packed
        self.process = subprocess.Popen(
            [PICNIC, "run", "--json", "--quiet", lab.work / "card.toml"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.report = None

    def __enter__(self):
        end = time.monotonic() + PATIENCE
        while self.ctl("info", fails=True) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise Wrong(f"the card does not run: {self.process.communicate()[1]}")
            time.sleep(0.05)
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            told, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Wrong("the card does not stop") from None
        if kind:
            print(f"the card: {told[-3000:]} {errors[-1000:]}", flush=True)
            return
        self.report = json.loads(told)
        ledger, drops = self.report["ledger"], self.report["drops"]
        if not ledger["balanced"] or drops.get("bad_descriptor"):
            raise Wrong(f"{ledger}, {drops}")
        for guest in self.report["guests"]:
            if guest["rings"] and (guest["rings"] == "packed") != self.packed:
                raise Wrong(f"packed rings wanted: {self.packed}, {guest}")

    def ctl(self, *words, fails=False):
        told = subprocess.run([PICNIC, "ctl", "--card", "guests", "--json", *words], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if told.returncode:
            if fails:
                return None
            raise Wrong(f"ctl {words}: {told.stderr}")
        return json.loads(told.stdout)


def run(*command, timeout=PATIENCE, **keys):
    """Output of a command of the client."""
    told = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=timeout, check=False, **keys)
    if told.returncode:
        raise Wrong(f"{' '.join(map(str, command))}: exit code {told.returncode}: {told.stdout[-1500:]}")
    return told.stdout


def dress(guest, number, mtu=1500, neighbours=()):
    """A guest's address. Before that, its neighbours: a guest of two processors may send past the packets
    that wait for one."""
    guest.run(f"ip link set eth0 mtu {mtu} up")
    if neighbours:
        mac = pathlib.Path("/sys/class/net/peer0/address").read_text().strip()
        guest.run(f"for address in {' '.join(neighbours)}; do "
                  f"/tools/ip neighbour replace $address lladdr {mac} dev eth0 nud permanent || exit 1; done")
    guest.run(f"ip address add {ADDRESSES[number]}/24 dev eth0")


def reaches(address, *keys):
    """Pings until the first answer, then five at once, none of which may be lost."""
    end = time.monotonic() + PATIENCE
    while subprocess.run(["ping", "-q", "-c", "1", "-W", "5", address], stdout=subprocess.DEVNULL,
                         check=False).returncode:
        if time.monotonic() > end:
            raise Wrong(f"no answer from {address} in {PATIENCE} s")
    # Once it has had an answer, ping waits an interval for the others, however slow.
    told = run("ping", "-q", "-c", "5", "-l", "5", "-i", str(PATIENCE / 2), *keys, address)
    if " 0% packet loss" not in told or "duplicates" in told:
        raise Wrong(told)


def streams(guest, address, amount="32M"):
    """iperf3 both ways with eight streams; megabytes that arrived."""
    total = 0
    # A server for each way: one that goes on closes its socket in between.
    for port, way in ((5201, []), (5202, ["-R"])):
        guest.run(f"iperf3 -s -1 -p {port} -D && while ! netstat -ltn | grep -q :{port}; do sleep 0.1; done")
        total += received(run("iperf3", "-J", "-c", address, "-p", port, "-n", amount, "-P", "8", *way))
        guest.run(f"while netstat -ltn | grep -q :{port}; do sleep 0.1; done")
    return total / 1e6


def received(told):
    """Bytes that iperf3 has received, by its JSON."""
    result = json.loads(told)
    arrived = result["end"].get("sum_received", {}).get("bytes", 0)
    if "error" in result or not arrived:
        raise Wrong(f"iperf3: {result.get('error')}, {arrived} bytes")
    return arrived


def there_and_back(guest, work, address):
    """A file to the guest and back: the same bytes at all three places."""
    data = work / "data"
    data.write_bytes(os.urandom(FILE_BYTES))
    guest.run("rm -f /tmp/data /tmp/done; (nc -l -p 7000 > /tmp/data < /dev/null; touch /tmp/done) & "
              "while ! netstat -ltn | grep -q :7000; do sleep 0.1; done")
    send = ("import socket, sys, shutil; s = socket.create_connection((sys.argv[1], 7000)); "
            "s.sendall(open(sys.argv[2], 'rb').read()); s.shutdown(1); s.recv(1)")
    run(sys.executable, "-c", send, address, data)
    guest.run("while ! [ -e /tmp/done ]; do sleep 0.1; done")
    digest = run("sha256sum", data).split()[0]
    if guest.run("sha256sum /tmp/data").split()[0] != digest:
        raise Wrong("the file differs in the guest")
    guest.run("nc -l -p 7001 < /tmp/data > /dev/null & "
              "while ! netstat -ltn | grep -q :7001; do sleep 0.1; done")
    take = ("import hashlib, socket, sys; s = socket.create_connection((sys.argv[1], 7001)); "
            "h = hashlib.sha256(); n = 0\n"
            "while n < int(sys.argv[2]):\n"
            "    part = s.recv(1 << 16); n += len(part); h.update(part)\n"
            "    if not part: break\n"
            "print(h.hexdigest())")
    if run(sys.executable, "-c", take, address, FILE_BYTES).strip() != digest:
        raise Wrong("the file differs at the client")


def rx_packets(guest):
    """Packets of each receive queue, as its driver counts them."""
    return [int(count) for count in
            re.findall(r"rx_queue_\d+_packets: (\d+)", guest.run("ethtool -S eth0"))]


def every_queue(guest, queues, address):
    """Packets of each receive queue. Which queues connections belong to is chance: more are made until
    each queue has had some."""
    for _ in range(200):
        counts = rx_packets(guest)
        if len(counts) == queues and all(counts):
            return counts
        with socket.socket() as connection:
            connection.settimeout(PATIENCE)
            # Nobody listens there: the guest refuses it.
            connection.connect_ex((address, 9))
    raise Wrong(f"packets by queue: {counts}")


def alone(lab):
    queues, address = 4, ADDRESSES[0]
    with lab.card(RSS, queues, lab.section(0, "mtu = 9000\n")) as card, lab.guest(0, queues, mtu=9000) as guest:
        guest.connect()
        dress(guest, 0)
        reaches(address)
        moved = []
        for offloads in ("on", "off"):
            for key in ("tx", "sg", "tso", "gro"):
                guest.ask(f"ethtool -K eth0 {key} {offloads}")
            shown = guest.run("ethtool -k eth0")
            for feature in ("tx-checksumming", "tcp-segmentation-offload"):
                if f"{feature}: {offloads}" not in shown:
                    raise Wrong(f"{feature} is not {offloads}:\n{shown[:1500]}")
            moved.append(f"{streams(guest, address):.0f} MB with offloads {offloads}")
            there_and_back(guest, lab.work, address)
        counts = every_queue(guest, queues, address)
        guest.run("ip link set eth0 mtu 9000")
        reaches(address, "-M", "do", "-s", "8972")
        moved.append(f"{streams(guest, address, amount='16M'):.0f} MB in jumbo frames")
    delivered = card.report["ledger"]["delivered"]
    return f"{', '.join(moved)}; {delivered:,} packets to queues {counts}"


def two_guests(lab, queues):
    """Two guests that have booted, with `queues` queues each."""
    guests = [lab.guest(number, queues) for number in (0, 1)]
    for number, guest in enumerate(guests):
        guest.connect()
        dress(guest, number)
    return guests


def switch(queues):
    first = list(range(queues))
    return SWITCH.format(MAC_KEYS.format(MACS[0], first, MACS[1], [queues + one for one in first]))


def sections(lab):
    return "".join(map(lab.section, (0, 1)))


def pair(lab):
    with lab.card(switch(2), 4, sections(lab)) as card, contextlib.ExitStack() as stack:
        first, second = map(stack.enter_context, two_guests(lab, 2))
        for address in ADDRESSES:
            reaches(address)
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        seen.bind(("peer0", 0))
        moved = 0
        for port, way in ((5201, ""), (5202, "-R")):
            second.run(f"iperf3 -s -1 -p {port} -D && while ! netstat -ltn | grep -q :{port}; do sleep 0.1; done")
            moved += received(first.run(f"iperf3 -J -c {ADDRESSES[1]} -p {port} -n 8M -P 4 {way}"))
        first.run(f"dd if=/dev/urandom of=/tmp/data bs=1M count={FILE_BYTES >> 20} 2> /dev/null")
        # Busybox's `nc` ends at once when the other has nothing to say.
        second.run("mkfifo /tmp/quiet; (sleep 10000 > /tmp/quiet &); "
                   "(nc -l -p 7000 > /tmp/data < /tmp/quiet; touch /tmp/done) & "
                   "while ! netstat -ltn | grep -q :7000; do sleep 0.1; done")
        first.run(f"nc {ADDRESSES[1]} 7000 < /tmp/data")
        second.run("while ! [ -e /tmp/done ]; do sleep 0.1; done")
        digests = {guest.run("sha256sum /tmp/data").split()[0] for guest in (first, second)}
        if len(digests) != 1 or not moved:
            raise Wrong(f"between the guests: {digests}, {moved} bytes")
        macs = [bytes.fromhex(mac.replace(":", "")) for mac in MACS]
        while select.select([seen], [], [], 0)[0]:
            frame = seen.recv(65_536)
            if frame[:6] in macs and frame[6:12] in macs:
                raise Wrong("the wire carries a frame from one guest to the other")
        seen.close()
        # A guest that takes the other's address is not heard.
        second.run(f"ip link set eth0 address {MACS[0]}")
        told, code = second.ask(f"ping -c 3 -W 1 {CLIENT}")
        if code == 0:
            raise Wrong(f"a guest sends from the other's address: {told}")
        reaches(ADDRESSES[0])
        second.run(f"ip link set eth0 address {MACS[1]}")
        second.run(f"ping -c 3 -W {PATIENCE // 2} {CLIENT}")
    spoofed = card.report["drops"].get("spoofed", 0)
    if not spoofed:
        raise Wrong(f"no spoofed frame was dropped: {card.report['drops']}")
    return f"{moved / 1e6:.0f} MB and a file between the guests, {spoofed} spoofed frames dropped"


def held(lab):
    with lab.card(switch(1) + HOLD, 2, sections(lab)) as card, contextlib.ExitStack() as stack:
        guests = list(map(stack.enter_context, two_guests(lab, 1)))
        for guest, address, load in zip(guests, ADDRESSES, ("8M", "16M")):
            reaches(address)
            guest.run("iperf3 -s -1 -D && while ! netstat -ltn | grep -q :5201; do sleep 0.1; done")
            client = subprocess.Popen(["iperf3", "-c", address, "-u", "-R", "-b", load, "-l", "1200",
                                       "-t", "3600"], stdout=subprocess.DEVNULL)
            stack.callback(client.wait)
            stack.callback(client.kill)
        rates = by_second(RATE * 0.7)
        end = time.monotonic() + PATIENCE
        while not (drops := card.ctl("stats")["drops"]).get("rate_limited"):
            if time.monotonic() > end:
                raise Wrong(f"nothing was held: {drops}")
            time.sleep(0.1)
    return f"{' and '.join(f'{rate / 1e3:.0f}' for rate in rates)} kB/s, {RATE / 1e3:.0f} allowed to each"


def by_second(enough):
    """Bytes per second of each guest, until both have sent enough in one second: a busy machine may let
    neither send for a while."""
    macs, end = [bytes.fromhex(mac.replace(":", "")) for mac in MACS], time.monotonic() + PATIENCE
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        wire.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        wire.bind(("peer0", 0))
        wire.settimeout(PATIENCE)
        seconds, total, first = {}, [0, 0], None
        while time.monotonic() < end:
            # The kernel tells when a frame came, however late it is read.
            frame, ((_, _, stamp), *_), _, _ = wire.recvmsg(2048, 64)
            if frame[6:12] not in macs:
                continue
            whole, nanoseconds = struct.unpack("qq", stamp)
            now = whole + nanoseconds / 1e9
            first, guest = first or now, macs.index(frame[6:12])
            second = int(now - first)
            # Not in the first seconds, which have a burst.
            if any(min(sent) > enough for at, sent in seconds.items() if SECONDS <= at < second):
                return [sent / (now - first) for sent in total]
            seconds.setdefault(second, [0, 0])[guest] += len(frame)
            total[guest] += len(frame)
            # What was let through before a stop may come after it, beside all that has been saved.
            if total[guest] > RATE * (now - first) + 2 * BURST:
                raise Wrong(f"{total[guest]} bytes in {now - first:.1f} s, allowed: {RATE} in each")
    raise Wrong(f"bytes in each second: {seconds}, allowed to each: {RATE}")


def load():
    """Echoes of flows of the first guest, whose neighbours know each other."""
    for source in SOURCES:
        run("ip", "address", "replace", f"{source}/24", "dev", "peer0")
    run("ip", "neighbour", "replace", ADDRESSES[0], "lladdr", MACS[0], "dev", "peer0", "nud", "permanent")
    return Echoes(ADDRESSES[0], SOURCES)


def restarts(lab):
    with lab.card(RSS, 2, lab.section(0)) as card:
        guest = lab.guest(0, 2).connect()
        try:
            dress(guest, 0, neighbours=SOURCES)
            with load() as echoes:
                echoes.go_on("at first")
                name = guest.run("basename $(readlink /sys/class/net/eth0/device)").strip()
                for _ in range(REBINDS):
                    for action in ("unbind", "bind"):
                        guest.run(f"echo {name} > /sys/bus/virtio/drivers/virtio_net/{action}")
                    dress(guest, 0, neighbours=SOURCES)
                    echoes.go_on("after the driver's restart")
                guest.order("system_reset")
                guest.run("true")
                dress(guest, 0, neighbours=SOURCES)
                echoes.go_on("after the guest's reset")
                for _ in range(kills(QEMU_KILLS)):
                    guest.kill()
                    guest = lab.guest(0, 2).connect()
                    dress(guest, 0, neighbours=SOURCES)
                    echoes.go_on("after a kill of QEMU")
        finally:
            guest.kill()
    guest = card.report["guests"][0]
    if guest["connections"] != kills(QEMU_KILLS) + 1:
        raise Wrong(guest)
    return f"{REBINDS} of the driver, 1 of the guest, {kills(QEMU_KILLS)} of QEMU; {sum(echoes.count)} echoes"


def killed(lab):
    told = []
    for mode in ("client", "server"):
        card = lab.card(RSS, 2, lab.section(0, f'mode = "{mode}"\n'))
        with contextlib.ExitStack() as stack:
            # The last one, if anything fails: it would answer for the next test's.
            stack.callback(lambda: card.process.kill())
            if mode == "server":
                card.__enter__()
            # QEMU starts its guest when the card is there.
            guest = stack.enter_context(lab.guest(0, 2, is_server=mode == "client"))
            if mode == "client":
                card.__enter__()
            guest.connect()
            dress(guest, 0, neighbours=SOURCES)
            moments = random.Random(1)
            echoes = stack.enter_context(load())
            for _ in range(kills(CARD_KILLS)):
                echoes.go_on("before a kill of the card")
                time.sleep(moments.random() * 0.05)
                card.process.kill()
                card.process.communicate()
                card = Card(lab).__enter__()
            echoes.go_on("after the last kill")
            card.__exit__(None)
        told.append(f"{kills(CARD_KILLS)} kills as {mode}, {sum(echoes.count)} echoes in order")
    left = json.loads(run(PICNIC, "cleanup", "--all", "--json"))
    if any(left.values()):
        raise Wrong(f"left behind: {left}")
    return "; ".join(told)


def moved(lab):
    chain = SWITCH.format(f'pools = [{{ macs = ["{MACS[0]}"], queues = [0, 1] }}]')
    incoming = ["-incoming", f"unix:{lab.work}/migration", "-S"]
    # One guest announces itself, the other cannot, so that QEMU asks the card.
    nic, kind = (",guest_announce=off", RARP) if lab.packed else ("", ARP)
    with lab.card(chain, 4, sections(lab)) as card, contextlib.ExitStack() as stack:
        source = stack.enter_context(lab.guest(0, 2, nic=nic)).connect()
        dress(source, 0, neighbours=SOURCES)
        target = stack.enter_context(lab.guest(1, 2, extra=incoming, mac=MACS[0], nic=nic))
        source.run("head -c 20000000 /dev/urandom > /tmp/kept")
        source.run("iperf3 -s -D && while ! netstat -ltn | grep -q :5201; do sleep 0.1; done")
        digest = source.run("sha256sum /tmp/kept")
        echoes = stack.enter_context(load())
        echoes.go_on("at first")
        flood = stack.enter_context(subprocess.Popen(
            ["iperf3", "-u", "-c", ADDRESSES[0], "-b", "20M", "-t", "3600"], stdout=subprocess.DEVNULL))
        stack.callback(flood.kill)
        source.order("migrate_set_parameter max-bandwidth 1G")
        source.order("migrate_set_parameter downtime-limit 1000")
        source.order(f"migrate -d unix:{lab.work}/migration")
        began, downtime_s = time.monotonic(), 1
        while "status: completed" not in (state := source.order("info migrate")):
            waited_s = time.monotonic() - began
            if "failed" in state or waited_s > PATIENCE:
                raise Wrong(f"{state}\n{source.state()}\n{target.state()}")
            # A machine may be too busy to send in a second what the guest changes meanwhile.
            if waited_s > 20 * downtime_s:
                downtime_s *= 2
                source.order(f"migrate_set_parameter downtime-limit {1000 * downtime_s}")
            time.sleep(0.1)
        # Both are stopped, and the card writes to neither.
        dumps = []
        for guest in (source, target):
            dumps.append(lab.work / f"{guest.name}-memory")
            guest.order(f'pmemsave 0 {virtual.MEMORY_MIB << 20:#x} "{dumps[-1]}"')
        pages = differing(*dumps)
        if pages:
            raise Wrong(f"{len(pages)} pages differ: {pages[:8]}")
        card.ctl("vmdq", "replace", "--pools", json.dumps([{"macs": [MACS[0]], "queues": [2, 3]}]))
        wire = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind)))
        wire.bind(("peer0", kind))
        target.order("cont")
        target.connect()
        echoes.go_on("after the migration")
        hear(wire)
        if target.run("sha256sum /tmp/kept") != digest:
            raise Wrong("a file of the guest differs")
        told = re.search(r"duplicate: (\d+) pages.*?normal: (\d+) pages", state, re.S)
    return (f"{virtual.MEMORY_MIB} MiB equal, {told[2]} pages sent; "
            f"{sum(echoes.count)} echoes in order")


def hear(wire):
    """Waits for the broadcast that says where the guest is: the sender's and the target's address are
    the same."""
    mac, address = bytes.fromhex(MACS[0].replace(":", "")), socket.inet_aton(ADDRESSES[0])
    wire.settimeout(PATIENCE)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        frame = wire.recv(2048)
        is_own = frame[28:32] == frame[38:42] == address or frame[22:28] == frame[32:38] == mac
        if frame[:12] == b"\xff" * 6 + mac and is_own:
            return
    raise Wrong(f"no announcement in {PATIENCE} s")


def differing(one, other):
    """Addresses of the pages that differ."""
    found = []
    with open(one, "rb") as first, open(other, "rb") as second:
        for address in range(0, virtual.MEMORY_MIB << 20, 4096):
            page = first.read(4096)
            if len(page) != 4096 or page != second.read(4096):
                found.append(hex(address))
    return found


def kills(few):
    """How often to kill: a few times, or as often as the caller says."""
    return int(os.environ.get("PICNIC_KILLS", few))


# Each with its rings: split, or packed.
TESTS = {"alone": (alone, False), "packed": (alone, True), "pair": (pair, False), "held": (held, False)}
for test in (restarts, killed, moved):
    TESTS |= {test.__name__: (test, False), f"{test.__name__}-packed": (test, True)}

if __name__ == "__main__":
    sys.exit(main())
