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

import argparse
import json
import os
import statistics
import subprocess
import sys

from compare import HERE, RunFailed, machine_facts, positive, realtime
from compare_classifier import DPDK_PACKAGES, built, has_dpdk, program_picnic

PAIRS = [
    ("lro / rte_gro", "lro_segment_ns", "gro_segment_ns"),
    ("tso / rte_gso", "tso_segment_ns", "gso_segment_ns"),
    ("tso / rte_gso and checksums", "tso_segment_ns", "gso_with_checksums_segment_ns"),
]


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=positive(int), default=5, metavar="N",
                        help="runs of each program")
    parser.add_argument("--repeats", type=positive(int), default=5, metavar="N",
                        help="repeats of each figure in a run, of which the median counts")
    parser.add_argument("--realtime", action="store_true",
                        help="run both under SCHED_RR, for a machine that does "
                             "other work meanwhile (needs the privilege)")
    parser.add_argument("--picnic", metavar="PATH",
                        help="this picnic binary, instead of building one")
    parser.add_argument("--json", action="store_true",
                        help="one JSON object on standard output")
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


def show(report):
    facts = report["machine"]
    print(f"machine    {facts['cpu_model']}, {facts['cores']} cores"
          f"{' (virtual)' if facts['hypervisor'] else ''}, "
          f"load {facts['load_average_before']} before, {report['scheduling']}, "
          f"{report['rounds']} rounds; medians (least to most), ns a segment\n")
    for pair in report["pairs"]:
        def spread(key):
            return "{median:.2f} ({min:.2f} to {max:.2f})".format(**pair[key])
        print(f"{pair['pair']:28} {spread('picnic'):24} {spread('dpdk'):24} "
              f"ratio {spread('ratio')}")


def spread_of(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "rounds": values}


def main():
    options = arguments()
    try:
        if not has_dpdk():
            raise RunFailed(f"DPDK is not installed: apt-get install {DPDK_PACKAGES}")
        built("dpdk_offloads", ["make", "--silent", "-C", HERE, "build/dpdk_offloads"])
        dpdk = os.path.join(HERE, "build", "dpdk_offloads")
        picnic = program_picnic(options)
        facts = machine_facts()
        times = measure(options, picnic, dpdk)
    except RunFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    report = {
        "machine": facts,
        "scheduling": "SCHED_RR" if options.realtime else "SCHED_OTHER",
        "rounds": options.rounds,
        "pairs": [
            {"pair": name, "picnic": spread_of(times[ours]), "dpdk": spread_of(times[theirs]),
             "ratio": spread_of([d / p for p, d in zip(times[ours], times[theirs])])}
            for name, ours, theirs in PAIRS
        ],
    }
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
