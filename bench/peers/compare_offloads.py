#!/usr/bin/env python3
"""`lro` and `tso` against DPDK's rte_gro and rte_gso: runs in turn, ratios pair by pair.

    bench/peers/compare_offloads.py              # builds both, then about a minute
    bench/peers/compare_offloads.py --rounds 9 --realtime

Both merge the same bursts (64 full TCP segments, eight of each of eight flows in
turn) and cut the same super-frame (45 segments, in buffers of 2048 bytes), on the
highest-numbered core. rte_gso's segments point into the super-frame, without
checksums; those of `tso` have bytes and checksums of their own, as a wire without
offloads needs them. So there are two ratios for it: to rte_gso as it is, and
to rte_gso with DPDK's software checksums behind it.

A ratio is DPDK's time over PICNIC's, per segment: above 1, PICNIC is faster. In
a round both run back to back; which goes first alternates.

Exit codes: 0 measured, 1 a build or a run failed or DPDK is not there, 2 usage.
"""

import json
import os
import statistics
import subprocess
import sys

import pairs
from compare import HERE, RunFailed, positive, realtime
from compare_classifier import DPDK_PACKAGES, built, has_dpdk, program_picnic

PAIRS = [
    ("lro / rte_gro", "lro_segment_ns", "gro_segment_ns"),
    ("tso / rte_gso", "tso_segment_ns", "gso_segment_ns"),
    ("tso / rte_gso and checksums", "tso_segment_ns", "gso_with_checksums_segment_ns"),
]


def arguments():
    parser = pairs.parser(__doc__.splitlines()[0], 5, "picnic binary")
    parser.add_argument("--repeats", type=positive(int), default=5, metavar="N",
                        help="repeats of each figure in a run, of which the median counts")
    return parser.parse_args()


def run(name, command, options):
    def prepare():
        os.sched_setaffinity(0, {os.cpu_count() - 1})
        if options.realtime:
            realtime()

    done = subprocess.run(command, capture_output=True, text=True, timeout=600,
                          check=False, preexec_fn=prepare)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"{name} ended with {done.returncode}: {last}")
    return json.loads(done.stdout)


def median_of(value):
    return statistics.median(value) if isinstance(value, list) else value


def measure(options, picnic, dpdk):
    times = {key: [] for _, *keys in PAIRS for key in keys}
    commands = {
        "picnic": [picnic, "functions", "--repeats", str(options.repeats), "--json"],
        "dpdk": [dpdk, "--repeats", str(options.repeats)],
    }
    for turn in range(options.rounds):
        for name in sorted(commands, reverse=turn % 2 == 0):
            figures = run(name, commands[name], options)
            for key, values in times.items():
                if key in figures:
                    values.append(median_of(figures[key]))
    return times


def programs(options):
    if not has_dpdk():
        raise RunFailed(f"DPDK is not installed: apt-get install {DPDK_PACKAGES}")
    built("dpdk_offloads", ["make", "--silent", "-C", HERE, "build/dpdk_offloads"])
    return program_picnic(options), os.path.join(HERE, "build", "dpdk_offloads")


def main():
    options = arguments()

    def measured(built_programs):
        times = measure(options, *built_programs)
        return {
            name: (times[ours], times[theirs],
                   [d / p for p, d in zip(times[ours], times[theirs])])
            for name, ours, theirs in PAIRS
        }

    return pairs.main(options, "pair", "ns a segment", 2, lambda: programs(options), measured)


if __name__ == "__main__":
    sys.exit(main())
