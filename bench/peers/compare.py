#!/usr/bin/env python3
"""Packet dispatch, PICNIC against DPDK: interleaved runs, ratios pair by pair.

    make -C bench/peers && bench/peers/compare.py

A pair is one run of each, back to back; which goes first alternates, so that
what drifts on the machine falls on both. The ratio is PICNIC over DPDK in
delivered packets per second: above 1, PICNIC delivers more. Nothing is
written but standard output (and progress on a terminal's standard error).

Before and after every run the distance between the cores is measured. A pair
during which it changed by half or more compares two machines, not two
programs: it is shown, and a second median leaves it out.

Exit codes: 0 measured, 1 a run failed or PICNIC is not there, 2 usage.
A missing DPDK program is no failure: its figures read "unavailable".
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
UNAVAILABLE = "unavailable"


class RunFailed(Exception):
    pass


def positive(kind):
    def convert(text):
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value
    convert.__name__ = kind.__name__  # what argparse calls it in an error
    return convert


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--picnic", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "picnic-micro"),
                        help="the picnic binary")
    parser.add_argument("--dpdk", metavar="PATH",
                        default=os.path.join(HERE, "build", "dpdk_dispatch"),
                        help="the DPDK program")
    parser.add_argument("--distance", metavar="PATH",
                        default=os.path.join(HERE, "build", "core_distance"),
                        help="the program that measures the distance of the cores")
    parser.add_argument("--pairs", type=positive(int), default=9, metavar="N",
                        help="pairs per setting of --frames")
    parser.add_argument("--frames", choices=["fresh", "reuse", "both"],
                        default="both", help="frames written anew, or left as they are")
    parser.add_argument("--queues", type=positive(int), default=4, metavar="N")
    parser.add_argument("--seconds", type=positive(float), default=2.0,
                        metavar="S", help="measured time of one run")
    parser.add_argument("--picnic-args", default="", metavar="TEXT",
                        help="more arguments for picnic, in one word")
    parser.add_argument("--dpdk-args", default="", metavar="TEXT",
                        help="more arguments for the DPDK program, in one word")
    parser.add_argument("--realtime", action="store_true",
                        help="run both under SCHED_RR, for a machine that does "
                             "other work meanwhile (needs the privilege)")
    parser.add_argument("--json", action="store_true",
                        help="one JSON object on standard output")
    return parser.parse_args()


def output_of(command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def file_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def machine_facts():
    model = None
    for line in (file_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    revision = output_of(["git", "rev-parse", "HEAD"])
    # Files that git does not track do not affect the measured code.
    changed = output_of(["git", "status", "--porcelain", "--untracked-files=no"])
    transparent = file_text("/sys/kernel/mm/transparent_hugepage/enabled")
    load = os.getloadavg()[0]
    return {
        "cpu_model": model or UNAVAILABLE,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "hypervisor": "hypervisor" in (file_text("/proc/cpuinfo") or ""),
        "huge_pages": int(file_text("/proc/sys/vm/nr_hugepages") or 0),
        "transparent_huge_pages": transparent or UNAVAILABLE,
        "load_average_before": round(load, 2),
        "git_revision": revision or UNAVAILABLE,
        "git_changed_files": None if changed is None else bool(changed),
    }


def realtime():
    # Round robin, not FIFO: a thread that only waits to end the run must get
    # its turn on a core that another one never leaves.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def distance_ns(options):
    """One-way time between the two cores, or None without the program."""
    if not os.access(options.distance, os.X_OK):
        return None
    try:
        done = subprocess.run([options.distance], capture_output=True, text=True,
                              timeout=60, check=True,
                              preexec_fn=realtime if options.realtime else None)
        return float(json.loads(done.stdout)["one_way_ns"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def run(name, command, options):
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=60 + 3 * options.seconds, check=False,
                              preexec_fn=realtime if options.realtime else None)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{name} did not end: {shlex.join(command)}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFailed(f"{name} could not start: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"{name} ended with {done.returncode}: {last}")
    try:
        result = json.loads(done.stdout)
        pps = float(result["delivered_pps"])
        result["borrowed_core_ns_per_packet"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{name} printed no such figure: {error!r}") from None
    if not pps > 0:
        raise RunFailed(f"{name} delivered nothing")
    return result


def median_of(runs, key):
    values = [r[key] for r in runs if isinstance(r.get(key), (int, float))]
    return statistics.median(values) if values else None


def side_summary(runs):
    if not runs:
        return UNAVAILABLE
    rates = [r["delivered_pps"] for r in runs]
    return {
        "delivered_pps_median": statistics.median(rates),
        "delivered_pps_min": min(rates),
        "delivered_pps_max": max(rates),
        "borrowed_core_ns_per_packet_median":
            median_of(runs, "borrowed_core_ns_per_packet"),
        "runs": runs,
    }


def is_steady(distances):
    return None not in distances and max(distances) < 1.5 * min(distances)


def compare(options, frames, commands):
    runs = {name: [] for name in commands}
    distances = []
    last = distance_ns(options)
    for pair in range(options.pairs):
        order = list(commands)
        if pair % 2:
            order.reverse()
        seen = [last]
        for name in order:
            if sys.stderr.isatty():
                print(f"\r\033[K{frames} {pair + 1}/{options.pairs} {name}",
                      end="", file=sys.stderr, flush=True)
            runs[name].append(run(name, commands[name] + ["--frames", frames],
                                  options))
            last = distance_ns(options)
            seen.append(last)
        distances.append(seen)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    result = {name: side_summary(runs.get(name)) for name in ("picnic", "dpdk")}
    ratio = UNAVAILABLE
    if runs.get("picnic") and runs.get("dpdk"):
        pairs = [a["delivered_pps"] / b["delivered_pps"]
                 for a, b in zip(runs["picnic"], runs["dpdk"])]
        steady = [r for r, seen in zip(pairs, distances) if is_steady(seen)]
        ratio = {"min": min(pairs), "median": statistics.median(pairs),
                 "max": max(pairs), "pairs": pairs,
                 "steady_pairs": len(steady),
                 "steady_median": statistics.median(steady) if steady
                                  else UNAVAILABLE}
    result["ratio"] = ratio
    result["core_distance_ns"] = distances
    return result


def distance_text(seen):
    known = [d for d in seen if d is not None]
    if not known:
        return UNAVAILABLE
    low, high = min(known), max(known)
    return f"{low:.0f}" if is_steady(seen) else f"{low:.0f}..{high:.0f}"


def show(report):
    facts = report["machine"]
    changed = ", with changes" if facts["git_changed_files"] else ""
    print(f"machine    {facts['cpu_model']}, {facts['cores']} cores"
          f"{' (virtual)' if facts['hypervisor'] else ''}, "
          f"Linux {facts['kernel']}, load {facts['load_average_before']}")
    print(f"revision   {facts['git_revision']}{changed}")
    print(f"setting    {report['queues']} queues, {report['pairs']} pairs "
          f"of {report['seconds']:g} s, 60-byte TCP frames")
    if report["dpdk_note"]:
        print(f"dpdk       {report['dpdk_note']}")
    for frames, result in report["frames"].items():
        print(f"\n{frames}")
        for name in ("picnic", "dpdk"):
            side = result[name]
            if side == UNAVAILABLE:
                print(f"  {name:7} {UNAVAILABLE}")
                continue
            ns = side["borrowed_core_ns_per_packet_median"]
            spent = UNAVAILABLE if ns is None else f"{ns:.2f} ns"
            print(f"  {name:7} {side['delivered_pps_median'] / 1e6:7.2f} Mpps median "
                  f"({side['delivered_pps_min'] / 1e6:.2f} to "
                  f"{side['delivered_pps_max'] / 1e6:.2f}), borrowed core "
                  f"{spent} per packet")
        ratio = result["ratio"]
        if ratio == UNAVAILABLE:
            print(f"  ratio   {UNAVAILABLE}")
            continue
        print("  ratio   " + " ".join(f"{r:.3f}" for r in ratio["pairs"]))
        print(f"          min {ratio['min']:.3f}  median {ratio['median']:.3f}  "
              f"max {ratio['max']:.3f}  (picnic / dpdk, delivered)")
        middle = ratio["steady_median"]
        if middle != UNAVAILABLE:
            middle = f"median {middle:.3f}"
        print(f"          {ratio['steady_pairs']} pairs at a steady core "
              f"distance: {middle}")
        print("  cores   " + " ".join(distance_text(d) for d in
                                      result["core_distance_ns"]) + " ns one way")


def main():
    options = arguments()
    common = ["--queues", str(options.queues), "--seconds", f"{options.seconds:g}"]
    commands = {"picnic": [options.picnic, "dispatch", "--json"] + common
                + shlex.split(options.picnic_args)}
    note = None
    if os.access(options.dpdk, os.X_OK):
        commands["dpdk"] = [options.dpdk] + common + shlex.split(options.dpdk_args)
    else:
        note = (f"{UNAVAILABLE}: {options.dpdk} is not built "
                "(apt-get install libdpdk-dev; make -C bench/peers)")
    if not os.access(options.picnic, os.X_OK):
        print(f"{options.picnic} is not there: cargo build --release -p picnic-micro",
              file=sys.stderr)
        return 1
    report = {
        "machine": machine_facts(),
        "realtime": options.realtime,
        "queues": options.queues,
        "seconds": options.seconds,
        "pairs": options.pairs,
        "commands": {name: shlex.join(c) for name, c in commands.items()},
        "dpdk_note": note,
        "frames": {},
    }
    settings = ["fresh", "reuse"] if options.frames == "both" else [options.frames]
    try:
        for frames in settings:
            report["frames"][frames] = compare(options, frames, commands)
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
