#!/usr/bin/env python3
"""A card's vhost-user against DPDK's rte_vhost: the same driver, runs in turn, ratios pair by pair.

    bench/peers/compare_vhost.py                 # builds ours, then about three minutes
    bench/peers/compare_vhost.py --rounds 5 --cases "64 bytes" --realtime

The device is one core: `vhost_peer` (the target core of a card, alone) or dpdk-testpmd
with net_vhost. The driver is another: dpdk-testpmd with virtio-user, which counts the
packets. To the driver, the device writes headers of 42 bytes and sends without pause,
and what finds no descriptor is lost; to the device, the driver does. Both devices
work in bursts of 32 and offer the same ring formats.

A ratio is PICNIC's rate over DPDK's: above 1, PICNIC is faster. In a round both run
back to back; which goes first alternates.

Exit codes: 0 measured, 1 a build or a run failed or DPDK is not there, 2 usage.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import pairs
from compare import RunFailed, positive, realtime
from compare_classifier import ROOT, built

# Bytes, and the pieces that testpmd makes a packet of.
SUPER_FRAME = (64_000, ",".join(["8000"] * 8))
CASES = [
    (f"{name}, {form}, {way}", size, pieces, packed, mergeable, way)
    for name, size, pieces, forms, mergeable in [
        ("64 bytes", 64, "64", (0, 1), 0),
        ("1518 bytes mergeable", 1518, "1518", (0, 1), 1),
        ("64000 bytes", *SUPER_FRAME, (0,), 1),
    ]
    for packed, form in enumerate(("split", "packed")) if packed in forms
    for way in ("to the driver", "to the device")
]
# Received packets may be in several mbufs: RTE_ETH_RX_OFFLOAD_SCATTER.
SCATTER = "0x2000"
WARM_UP_S = 1
PATIENCE_S = 30


def arguments():
    parser = pairs.parser(__doc__.splitlines()[0], 3, "vhost_peer")
    parser.add_argument("--seconds", type=positive(int), default=1, metavar="S",
                        help="measured seconds of a run")
    parser.add_argument("--cases", default="", metavar="WORDS",
                        help="only cases with these words in their name")
    return parser.parse_args()


def program_picnic(options):
    if not shutil.which("dpdk-testpmd"):
        raise RunFailed("DPDK is not installed: apt-get install dpdk-dev")
    if options.picnic is not None:
        return options.picnic
    built("vhost_peer", ["cargo", "build", "--release", "--quiet", "-p", "picnic-ports",
                         "--example", "vhost_peer"])
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(ROOT, target, "release", "examples", "vhost_peer")


def testpmd(core, name, device, mode, *more):
    # The main lcore sleeps between its lines of statistics.
    return ["dpdk-testpmd", f"--lcores=0@{core},1@{core}", "--no-pci", "--no-huge", "-m", "512",
            "--no-telemetry", f"--file-prefix={name}", "--force-max-simd-bitwidth=512",
            "--vdev", device, "--", "--auto-start", "--no-flush-rx", f"--forward-mode={mode}",
            "--burst=32", "--txd=1024", "--rxd=1024", "--total-num-mbufs=16384",
            "--stats-period=1", *more]


def start(command, core, options, log):
    def prepare():
        os.sched_setaffinity(0, {core})
        if options.realtime:
            realtime()

    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                            preexec_fn=prepare)


def wait_for(what, look, *logs):
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > end:
            said = "\n".join(log.read_text(errors="replace")[-1500:] for log in logs)
            raise RunFailed(f"not in {PATIENCE_S} s: {what}\n{said}")
        time.sleep(0.05)
    return found


def rate(device, case, picnic, options, folder):
    """The driver's packets per second in one run."""
    _, size, pieces, packed, mergeable, way = case
    sock, logs = folder / "vm.sock", [folder / "device.log", folder / "driver.log"]
    to_driver = way == "to the driver"
    # In this order: lengths are checked against the size of buffers.
    send = ["--mbuf-size=8320" if size > 9000 else "--mbuf-size=2176", "--txpkts=" + pieces]
    large = ["--rx-offloads=" + SCATTER] if size > 1518 else []
    if device == "picnic":
        command = [picnic, sock, "to-driver" if to_driver else "to-device", str(size)]
    else:
        vdev = f"net_vhost0,iface={sock},queues=1"
        mode = ["txonly", *send] if to_driver else ["rxonly"]
        command = testpmd(os.cpu_count() - 1, "device", vdev, *mode)
    keys = f"packed_vq={packed},mrg_rxbuf={mergeable},in_order=1,queue_size=1024"
    vdev = f"net_virtio_user0,path={sock},queues=1,{keys}"
    mode = ["rxonly", *large] if to_driver else ["txonly", *send]
    processes = []
    try:
        with open(logs[0], "w") as log, open(logs[1], "w") as other:
            processes.append(start(command, os.cpu_count() - 1, options, log))
            wait_for("the device's socket", sock.exists, *logs)
            processes.append(start(testpmd(0, "driver", vdev, *mode), 0, options, other))
            wanted = WARM_UP_S + options.seconds
            word = "Rx" if to_driver else "Tx"

            def rates():
                # Lines without traffic are from before the device was ready.
                found = re.findall(rf"{word}-pps: +(\d+) +{word}-bps: +(\d+)",
                                   logs[1].read_text(errors="replace"))
                moving = [(int(packets), int(bits)) for packets, bits in found if int(packets)]
                return moving if len(moving) >= wanted else None

            measured = wait_for("traffic", rates, *logs)[WARM_UP_S:wanted]
            packets, bits = (sum(column) for column in zip(*measured))
            if not 0.9 * size < bits / 8 / packets < 1.1 * size:
                raise RunFailed(f"{case[0]}: packets of {bits / 8 / packets:.0f} bytes passed")
            return packets / len(measured)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        sock.unlink(missing_ok=True)


def measure(options, picnic):
    cases = [case for case in CASES if options.cases in case[0]]
    if not cases:
        raise RunFailed(f"no case has {options.cases!r}: " + "; ".join(case[0] for case in CASES))
    found = {case[0]: {"picnic": [], "dpdk": []} for case in cases}
    with tempfile.TemporaryDirectory(prefix="picnic-vhost-") as folder:
        for turn in range(options.rounds):
            for case in cases:
                for device in sorted(("picnic", "dpdk"), reverse=turn % 2 == 0):
                    value = rate(device, case, picnic, options, pathlib.Path(folder))
                    found[case[0]][device].append(value / 1e6)
    return {
        name: (rates["picnic"], rates["dpdk"],
               [p / d for p, d in zip(rates["picnic"], rates["dpdk"])])
        for name, rates in found.items()
    }


def main():
    options = arguments()
    return pairs.main(options, "case", "million packets a second", 3,
                      lambda: program_picnic(options), lambda picnic: measure(options, picnic))


if __name__ == "__main__":
    sys.exit(main())
