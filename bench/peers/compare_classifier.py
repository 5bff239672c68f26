#!/usr/bin/env python3
"""The filters' classifier against DPDK's rte_acl: interleaved runs, ratios pair by pair.

    make -C bench/peers build/dpdk_acl && bench/peers/compare_classifier.py

Both draw the same rules and packets by the same numbers; fingerprints that
differ fail the run. Both are given five-tuples that are there already, so that
only the search is measured, in bursts of 32; and both check their answers
against a search from the top first. rte_acl is measured with every algorithm
that the processor has, and the fastest counts.

A pair is one run of each, back to back; which goes first alternates. The ratio
is rte_acl's time over PICNIC's, per packet: above 1, PICNIC is faster.

Exit codes: 0 measured, 1 a run failed or PICNIC is not there, 2 usage.
A missing DPDK program is no failure: its figures read "unavailable".
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

from compare import (HERE, ROOT, UNAVAILABLE, RunFailed, machine_facts, positive,
                     realtime)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--picnic", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "picnic"),
                        help="the picnic binary")
    parser.add_argument("--dpdk", metavar="PATH",
                        default=os.path.join(HERE, "build", "dpdk_acl"),
                        help="the DPDK program")
    parser.add_argument("--pairs", type=positive(int), default=5, metavar="N")
    parser.add_argument("--seconds", type=positive(float), default=0.05, metavar="S",
                        help="time of one repeat, of which there are five")
    parser.add_argument("--seed", type=positive(int), default=1, metavar="N")
    parser.add_argument("--realtime", action="store_true",
                        help="run both under SCHED_RR, for a machine that does "
                             "other work meanwhile (needs the privilege)")
    parser.add_argument("--json", action="store_true",
                        help="one JSON object on standard output")
    return parser.parse_args()


def run(name, command, options):
    core = os.cpu_count() - 1

    def prepare():
        os.sched_setaffinity(0, {core})
        if options.realtime:
            realtime()

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600,
                              check=False, preexec_fn=prepare)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFailed(f"{name} could not run: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"{name} ended with {done.returncode}: {last}")
    try:
        return {size["rules"]: size for size in json.loads(done.stdout)["sizes"]}
    except (ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{name} printed no such figures: {error!r}") from None


def summary(runs, rules):
    sizes = [run[rules] for run in runs]
    times = [size["ns_per_packet"] for size in sizes]
    result = {
        "ns_per_packet_median": statistics.median(times),
        "ns_per_packet_min": min(times),
        "ns_per_packet_max": max(times),
        "build_ms_median": statistics.median(size["build_ms"] for size in sizes),
    }
    if "change_us" in sizes[0]:
        result["change_us_median"] = statistics.median(size["change_us"] for size in sizes)
        result["max_change_us"] = max(size["max_change_us"] for size in sizes)
        result["tables"] = sizes[0]["tables"]
    else:
        result["algorithms"] = sorted({size["algorithm"] for size in sizes})
    return result


def measure(options, commands):
    runs = {name: [] for name in commands}
    for pair in range(options.pairs):
        order = list(commands)
        if pair % 2:
            order.reverse()
        for name in order:
            if sys.stderr.isatty():
                print(f"\r\033[K{pair + 1}/{options.pairs} {name}", end="",
                      file=sys.stderr, flush=True)
            runs[name].append(run(name, commands[name], options))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    sizes = []
    for rules in runs["picnic"][0]:
        size = {"rules": rules, "picnic": summary(runs["picnic"], rules),
                "dpdk": UNAVAILABLE, "ratio": UNAVAILABLE}
        if "dpdk" in runs:
            pairs = list(zip(runs["dpdk"], runs["picnic"]))
            for dpdk, picnic in pairs:
                if dpdk[rules]["fingerprint"] != picnic[rules]["fingerprint"]:
                    raise RunFailed(f"{rules} rules: the two did not draw the same")
            ratios = [dpdk[rules]["ns_per_packet"] / picnic[rules]["ns_per_packet"]
                      for dpdk, picnic in pairs]
            size["dpdk"] = summary(runs["dpdk"], rules)
            size["ratio"] = {"min": min(ratios), "median": statistics.median(ratios),
                             "max": max(ratios), "pairs": ratios}
        sizes.append(size)
    return sizes


def show(report):
    facts = report["machine"]
    changed = ", with changes" if facts["git_changed_files"] else ""
    print(f"machine    {facts['cpu_model']}, {facts['cores']} cores"
          f"{' (virtual)' if facts['hypervisor'] else ''}, "
          f"Linux {facts['kernel']}, load {facts['load_average_before']}")
    print(f"revision   {facts['git_revision']}{changed}")
    print(f"setting    bursts of 32, {report['pairs']} pairs, seed {report['seed']}")
    if report["dpdk_note"]:
        print(f"dpdk       {report['dpdk_note']}")
    print("\nrules   picnic ns/packet      rte_acl ns/packet     ratio (min to max)"
          "    change, longest   build  rte_acl's")
    for size in report["sizes"]:
        def times(side):
            if side == UNAVAILABLE:
                return UNAVAILABLE
            return (f"{side['ns_per_packet_median']:6.2f} "
                    f"({side['ns_per_packet_min']:.2f} to {side['ns_per_packet_max']:.2f})")
        ratio = size["ratio"]
        if ratio != UNAVAILABLE:
            ratio = f"{ratio['median']:5.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
        picnic, dpdk = size["picnic"], size["dpdk"]
        built = UNAVAILABLE if dpdk == UNAVAILABLE else f"{dpdk['build_ms_median']:.1f} ms"
        print(f"{size['rules']:5}   {times(picnic):20}  {times(dpdk):20}  {ratio:20}  "
              f"{picnic['change_us_median']:6.1f} us {picnic['max_change_us']:6.0f} us  "
              f"{picnic['build_ms_median']:5.1f} ms  {built}")


def main():
    options = arguments()
    common = ["--seconds", f"{options.seconds:g}", "--repeats", "5",
              "--seed", str(options.seed), "--json"]
    commands = {"picnic": [options.picnic, "bench", "classifier"] + common}
    note = None
    if os.access(options.dpdk, os.X_OK):
        commands["dpdk"] = [options.dpdk] + common
    else:
        note = (f"{UNAVAILABLE}: {options.dpdk} is not built "
                "(apt-get install libdpdk-dev; make -C bench/peers)")
    if not os.access(options.picnic, os.X_OK):
        print(f"{options.picnic} is not there: cargo build --release", file=sys.stderr)
        return 1
    report = {
        "machine": machine_facts(),
        "realtime": options.realtime,
        "pairs": options.pairs,
        "seed": options.seed,
        "commands": {name: shlex.join(c) for name, c in commands.items()},
        "dpdk_note": note,
    }
    try:
        report["sizes"] = measure(options, commands)
    except RunFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
