#!/usr/bin/env -S python3 -B
"""DPDK as the guest of a card: every path of its virtio driver, all bytes checked.

    vhost.py            all of it, as root
    vhost.py --only WORDS   only paths with these words in their name
    vhost.py --inside FOLDER [WORDS]   the part within the namespaces

    this program ── veth ── wire ── card ── vhost-user ── virtio-user ── dpdk-testpmd, which echoes

Frames of all lengths go out in bursts; the next burst waits for the echo of the one before, so no
frame may be lost. Each frame must return once, unchanged, in the order of its flow. At the end the
ledger balances. One path runs with the engine `hybrid`, too, and one beside a guest that means harm
(hostile.py).

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import contextlib
import json
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICNIC = ROOT / "target/debug/picnic"
# Keys of virtio-user.
PATHS = {
    f"{form} {name}": f"packed_vq={packed},{keys}"
    for packed, form in enumerate(("split", "packed"))
    for name, keys in {
        "mergeable": "mrg_rxbuf=1,in_order=0",
        "mergeable in order": "mrg_rxbuf=1,in_order=1",
        "plain": "mrg_rxbuf=0,in_order=0",
        "in order": "mrg_rxbuf=0,in_order=1",
        # For packed rings, this path is for drivers in order.
        "vectorised": f"mrg_rxbuf=0,in_order={packed},vectorized=1",
    }.items()
}
# With the kernel engine in front, which passes on what a filter selects.
HYBRID = "hybrid engine"
PATHS[HYBRID] = PATHS["split mergeable"]
# Another guest of the card does what it should not.
HOSTILE = "beside a hostile guest"
PATHS[HOSTILE] = PATHS["packed mergeable"]
QUEUES = 2
FLOWS = 16
# Marks the flows of frames that wait for the guest.
PROBE = 0x8000
BURSTS = 40
BURST = 32
# What any one step may take on a busy machine, in seconds.
PATIENCE = 300
CARD = """
[card]
name = "guests"
idle = "block"
engine = "{engine}"

[[wire]]
port = "{port}"
interface = "wire0"
{filter}
[[rx]]
{rx}

[host]
attachment = "vhost-user"
queues = {queues}

[[host.guest]]
socket = "vm0.sock"
packed = true
"""
RSS = """
function = "rss"
types = ["ipv4", "udp-ipv4"]
"""
# All frames are for the first guest; those of the other do not reach the wire.
POOLS = """
function = "vmdq"
pools = [{ macs = ["02:00:00:00:00:01"], queues = [0, 1] }]

[[tx]]
function = "vmdq"
pools = [
    { macs = ["02:00:00:00:00:02"], queues = [0, 1] },
    { macs = ["02:00:00:00:00:03"], queues = [2, 3] },
]
"""
OTHER = """
[[host.guest]]
socket = "vm1.sock"
packed = true
"""
# The kernel's own path takes what this filter leaves.
FILTER = """
[[filter]]
name = "guests"
protocol = "udp"
action = "poll"
"""


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--inside"]:
        return inside(pathlib.Path(arguments[1]), " ".join(arguments[2:]))
    words = " ".join(arguments[1:]) if arguments[:1] == ["--only"] else ""
    return run_inside(__file__, [], words)


def run_inside(program, namespaces, *arguments):
    """Runs a program's part within namespaces, in a folder of its own; the exit code."""
    if os.geteuid() != 0:
        print("it needs root")
        return 77
    absent = [tool for tool in ("ip", "unshare", "dpdk-testpmd") if shutil.which(tool) is None]
    if absent:
        print(f"{', '.join(absent)} not installed")
        return 77
    if not PICNIC.exists():
        print(f"failed: {PICNIC} is not there; cargo build")
        return 1
    with tempfile.TemporaryDirectory(prefix="picnic-vhost-") as folder:
        command = ["unshare", "--net", "--mount", *namespaces, "--fork", "--kill-child",
                   sys.executable, "-B", program, "--inside", folder, *arguments]
        code = subprocess.run(command).returncode
        # Guests that were killed leave their files.
        shutil.rmtree(f"/run/dpdk/{pathlib.Path(folder).name}", ignore_errors=True)
        return code


def add_wire():
    """The wire of a card, and its other end, which are silent by themselves."""
    # Interfaces of this namespace; the kernel engine reads them there, too.
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    subprocess.run(["ip", "link", "add", "wire0", "type", "veth", "peer", "peer0"], check=True)
    for name in ("wire0", "peer0"):
        pathlib.Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        # A sender that moves to another core would overtake its own frames.
        pathlib.Path(f"/sys/class/net/{name}/queues/rx-0/rps_cpus").write_text("1")
        subprocess.run(["ip", "link", "set", name, "up"], check=True)


def start_guest(folder, queues, keys, log, megabytes, mbufs, *options):
    """DPDK's driver with these keys, which echoes."""
    device = f"net_virtio_user0,path={folder / 'vm0.sock'},queues={queues},queue_size=256,{keys}"
    return subprocess.Popen(
        ["dpdk-testpmd", "-l", "0,1", "--no-pci", "--no-huge", "-m", str(megabytes), "--no-telemetry",
         # Beside other programs of DPDK.
         f"--file-prefix={folder.name}", "--vdev", device, *options, "--", "--auto-start",
         "--no-flush-rx", "--forward-mode=io", f"--rxq={queues}", f"--txq={queues}",
         f"--total-num-mbufs={mbufs}", "--txd=256", "--rxd=256"],
        stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)


def wait_for(what, look):
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not in {PATIENCE} s: {what}")
        time.sleep(0.02)
    return found


def frame(flow, number, length, mark=0):
    """A UDP frame of `length` bytes: its flow, its number in it, and bytes that depend on both."""
    payload = struct.pack("!HI", mark | flow, number)
    payload += random.Random(flow << 32 | number).randbytes(length - 42 - len(payload))
    udp = struct.pack("!HHHH", 1000 + flow, 9, 8 + len(payload), 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(payload), number & 0xffff, 0,
                     64, 17, 0, bytes([10, 0, 0, flow]), bytes([10, 0, 1, 1]))
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xffff) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xffff) + ip[12:]
    return bytes.fromhex("020000000001 020000000002 0800") + ip + udp + payload


def wait_for_guest(wire):
    """Until the guest echoes every flow, so that all its queues are at work, and no frame is left in
    them: each flow keeps its order, so the echo of its last frame is the last."""
    last, number, pause = {}, 0, 0.2

    def look():
        nonlocal number, pause
        number += 1
        for flow in range(FLOWS):
            wire.send(frame(flow, number, 60, PROBE))
        # Longer each time, or a busy machine would always be a round behind.
        end, pause = time.monotonic() + pause, pause * 1.2
        while (left := end - time.monotonic()) > 0 and list(last.values()) != [number] * FLOWS:
            if select.select([wire], [], [], left)[0]:
                got, address = wire.recvfrom(65_536)
                if address[2] != socket.PACKET_OUTGOING:
                    flow, echoed = struct.unpack_from("!HI", got, 42)
                    last[flow] = echoed
        return list(last.values()) == [number] * FLOWS

    wait_for("the guest echoes every flow", look)


def exchange(seed):
    """Sends bursts and compares what returns; frames that passed."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind(("peer0", 0))
    wire.settimeout(PATIENCE)
    wait_for_guest(wire)
    lengths = random.Random(seed)
    numbers = [0] * FLOWS
    for _ in range(BURSTS):
        waiting = {flow: [] for flow in range(FLOWS)}
        for _ in range(BURST):
            flow = lengths.randrange(FLOWS)
            sent = frame(flow, numbers[flow], lengths.choice([60, 61, 127, 590, 1024, 1513, 1514]))
            numbers[flow] += 1
            waiting[flow].append(sent)
            wire.send(sent)
        left = BURST
        while left:
            got, address = wire.recvfrom(65_536)
            flow = struct.unpack_from("!H", got, 42)[0]
            if address[2] == socket.PACKET_OUTGOING or flow & PROBE:
                continue
            if not waiting.get(flow) or got != waiting[flow].pop(0):
                raise AssertionError(f"flow {flow}: a frame twice, out of order or changed")
            left -= 1
    wire.close()
    return sum(numbers)


def stop(process):
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE)[0]


@contextlib.contextmanager
def ended(process):
    """The process, which does not outlive this block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def path(name, folder):
    """One path of the driver: a card, a guest, all frames."""
    # The kernel engine has one queue for each target core; here, one.
    queues = 1 if name == HYBRID else QUEUES
    if name == HYBRID:
        text = CARD.format(queues=queues, engine="hybrid", port="xdp", filter=FILTER, rx=RSS)
    elif name == HOSTILE:
        text = CARD.format(queues=2 * queues, engine="poll", port="packet", filter="", rx=POOLS) + OTHER
    else:
        text = CARD.format(queues=queues, engine="poll", port="packet", filter="", rx=RSS)
    (folder / "card.toml").write_text(text, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        card = stack.enter_context(ended(subprocess.Popen(
            [PICNIC, "run", "--json", "--quiet", folder / "card.toml"], stdout=subprocess.PIPE, text=True)))
        if name == HOSTILE:
            program = pathlib.Path(__file__).with_name("hostile.py")
            stack.enter_context(ended(subprocess.Popen([program, folder / "vm1.sock"])))
        wait_for("the card's socket", (folder / "vm0.sock").exists)
        with open(folder / "testpmd.log", "w+", encoding="utf-8") as log:
            guest = start_guest(folder, queues, PATHS[name], log, 256, 16384, "--force-max-simd-bitwidth=512")
            with ended(guest):
                try:
                    frames = exchange(name)
                    if name == HOSTILE:
                        wait_for("the other guest does harm", harmed)
                    wrong = None
                except (AssertionError, TimeoutError) as error:
                    wrong = f"{error}\n{log_of(log)[-3000:]}"
        report = json.loads(stop(card))
    if wrong:
        raise AssertionError(f"{wrong}\n{report}")
    is_bad = bool(report["drops"].get("bad_descriptor"))
    if not report["ledger"]["balanced"] or is_bad != (name == HOSTILE):
        raise AssertionError(f"{report['ledger']}, {report['drops']}")
    check_features(name, report["guests"][0])
    return frames, report


def harmed():
    """Whether the running card has found a bad descriptor."""
    told = subprocess.run([PICNIC, "ctl", "stats", "--card", "guests", "--json"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return told.returncode == 0 and json.loads(told.stdout)["drops"].get("bad_descriptor")


def check_features(name, guest):
    """A path that was not negotiated would be another one."""
    wanted = dict(pair.split("=") for pair in PATHS[name].split(","))
    for key, feature in {"packed_vq": "ring_packed", "in_order": "in_order", "mrg_rxbuf": "mrg_rxbuf"}.items():
        if (feature in guest["features"]) != (wanted[key] == "1"):
            raise AssertionError(f"{key} is not {wanted[key]} in {guest}")


def falls_back(name):
    """For packed rings, DPDK has only vectors of AVX-512."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return name == "packed vectorised" and "avx512f" not in flags


def log_of(log):
    log.seek(0)
    return log.read()


def inside(folder, words):
    # Other cards of this machine have other sockets.
    os.environ["PICNIC_RUNTIME_DIR"] = str(folder / "run")
    add_wire()
    failed = False
    for name in PATHS:
        if words not in name:
            continue
        try:
            frames, report = path(name, folder)
            drops = report["drops"]
            how = ", by the path in order, as this processor lacks AVX-512" if falls_back(name) else ""
            print(f"{name}: {frames} frames returned{how}, {drops or 'none lost'}", flush=True)
        except AssertionError as error:
            print(f"failed: {name}: {error}", flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
