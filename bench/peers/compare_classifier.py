#!/usr/bin/env python3
"""The filters' classifier against DPDK's rte_acl: runs in turn, ratios pair by pair.

    bench/peers/compare_classifier.py            # builds both, then under two minutes
    bench/peers/compare_classifier.py --rules 4096 --families random --rounds 9

Both draw the same rules and packets by the same numbers, and classify them in
bursts of 32, on the highest-numbered core, at the same scheduling priority.
Both are given five-tuples that are there already, so that only the search is
measured. Each compares its answers with a search from the top first; a hash of
rules and packets and one of all verdicts must agree, or the run fails.
rte_acl tries every algorithm that the processor has, and the fastest counts.

In a round every set of rules is measured by both, back to back; which goes
first alternates. The ratio is rte_acl's time over PICNIC's, per packet: above
1, PICNIC is faster. The families of rules are described in five_tuple.h.

Exit codes: 0 measured, 1 a build or a run failed or DPDK is not there, 2 usage.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

from compare import HERE, ROOT, RunFailed, machine_facts, positive, realtime

FAMILIES = ["random", "access-list", "firewall", "wide-ports", "ports-only"]
MOST_RULES = 4096
DPDK_PACKAGES = "libdpdk-dev pkg-config make gcc"


def comma_list(convert):
    def split(text):
        return [convert(part) for part in text.split(",")]
    split.__name__ = "list"
    return split


def rule_count(text):
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RULES:
        raise argparse.ArgumentTypeError(f"{text}: allowed: 1 to {MOST_RULES}")
    return int(text)


def family(text):
    if text not in FAMILIES:
        raise argparse.ArgumentTypeError(f"{text}: allowed: {', '.join(FAMILIES)}")
    return text


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N",
                        help="runs of each program for each set of rules")
    parser.add_argument("--rules", type=comma_list(rule_count), metavar="N,N",
                        default="16,64,256,1024,4096", help="numbers of rules")
    parser.add_argument("--families", type=comma_list(family), metavar="W,W",
                        default=",".join(FAMILIES), help="families of rules")
    parser.add_argument("--seconds", type=positive(float), default=0.02, metavar="S",
                        help="time of one repeat, of which a run has five")
    parser.add_argument("--seed", type=positive(int), default=1, metavar="N")
    parser.add_argument("--realtime", action="store_true",
                        help="run both under SCHED_RR, for a machine that does "
                             "other work meanwhile (needs the privilege)")
    parser.add_argument("--picnic", metavar="PATH",
                        help="this picnic binary, instead of building one")
    parser.add_argument("--dpdk", metavar="PATH",
                        help="this DPDK program, instead of building it")
    parser.add_argument("--json", action="store_true",
                        help="one JSON object on standard output")
    return parser.parse_args()


def built(name, command):
    """Runs a build; its output goes to standard error."""
    print(f"building {name}: {shlex.join(command)}", file=sys.stderr)
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    except OSError as error:
        raise RunFailed(f"{name} could not be built: {error}") from None
    if done.returncode != 0:
        raise RunFailed(f"{name} could not be built: {shlex.join(command)} "
                        f"ended with {done.returncode}")


def program_picnic(options):
    if options.picnic is None:
        built("picnic", ["cargo", "build", "--release", "--quiet", "-p", "picnic-micro"])
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        return os.path.join(ROOT, target, "release", "picnic-micro")
    return options.picnic


def has_dpdk():
    try:
        return subprocess.run(["pkg-config", "--exists", "libdpdk"],
                              check=False).returncode == 0
    except OSError:
        return False


def program_dpdk(options):
    if options.dpdk is not None:
        return options.dpdk
    if not has_dpdk() or not shutil.which("make") or not shutil.which("cc"):
        raise RunFailed("DPDK's library or a C compiler is not installed; on Debian "
                        f"and Ubuntu: apt-get install {DPDK_PACKAGES}")
    built("dpdk_acl", ["make", "--silent", "-C", HERE, "build/dpdk_acl"])
    return os.path.join(HERE, "build", "dpdk_acl")


def run(name, command, options):
    """One set of rules, measured by one program."""
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
        (size,) = json.loads(done.stdout)["sizes"]
        for key in ("family", "rules", "ns_per_packet", "fingerprint", "verdicts"):
            size[key]
        return size
    except (ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{name} printed no such figures: {error!r}") from None


def check(name, rules, picnic, dpdk):
    for key, what in (("fingerprint", "draw the same rules and packets"),
                      ("verdicts", "give the same verdicts")):
        if picnic[key] != dpdk[key]:
            raise RunFailed(f"{name}, {rules} rules: the two did not {what}")


def summary(runs):
    times = [run["ns_per_packet"] for run in runs]
    result = {
        "ns_per_packet_median": statistics.median(times),
        "ns_per_packet_min": min(times),
        "ns_per_packet_max": max(times),
        "build_ms_median": statistics.median(run["build_ms"] for run in runs),
    }
    if "change_us" in runs[0]:
        result["change_us_median"] = statistics.median(run["change_us"] for run in runs)
        result["change_us_max"] = max(run["max_change_us"] for run in runs)
        # Of each change the shortest time: what interrupted it is left out.
        result["change_us_least_max"] = max(run["max_least_change_us"] for run in runs)
        result["tables"] = runs[0]["tables"]
        result["in_vectors"] = runs[0].get("in_vectors", 0)
    else:
        result["algorithms"] = sorted({run["algorithm"] for run in runs})
    return result


def measure(options, programs):
    sets = [(name, rules) for name in options.families for rules in options.rules]
    runs = {which: {"picnic": [], "dpdk": []} for which in sets}
    common = ["--seconds", f"{options.seconds:g}", "--repeats", "5",
              "--seed", str(options.seed), "--json"]
    for turn in range(options.rounds):
        order = ["picnic", "dpdk"] if turn % 2 == 0 else ["dpdk", "picnic"]
        for name, rules in sets:
            words = {"picnic": ["classifier", "--families", name],
                     "dpdk": ["--family", name]}
            for side in order:
                if sys.stderr.isatty():
                    print(f"\r\033[K{turn + 1}/{options.rounds} {name} {rules} {side}",
                          end="", file=sys.stderr, flush=True)
                command = [programs[side], *words[side], "--rules", str(rules), *common]
                runs[name, rules][side].append(run(side, command, options))
            check(name, rules, runs[name, rules]["picnic"][-1], runs[name, rules]["dpdk"][-1])
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return [result(name, rules, sides) for (name, rules), sides in runs.items()]


def result(name, rules, sides):
    pairs = zip(sides["dpdk"], sides["picnic"])
    ratios = [dpdk["ns_per_packet"] / picnic["ns_per_packet"] for dpdk, picnic in pairs]
    return {
        "family": name,
        "rules": rules,
        "matching_fraction": sides["picnic"][0]["matching_fraction"],
        "picnic": summary(sides["picnic"]),
        "dpdk": summary(sides["dpdk"]),
        "ratio": {"median": statistics.median(ratios), "min": min(ratios),
                  "max": max(ratios), "rounds": ratios},
    }


def show(report):
    facts = report["machine"]
    changed = ", with changes" if facts["git_changed_files"] else ""
    print(f"machine    {facts['cpu_model']}, {facts['cores']} cores"
          f"{' (virtual)' if facts['hypervisor'] else ''}, "
          f"Linux {facts['kernel']}, load {facts['load_average_before']} before")
    print(f"revision   {facts['git_revision']}{changed}")
    print(f"setting    bursts of 32, {report['rounds']} rounds, seed {report['seed']}, "
          f"both {report['scheduling']} on core {report['core']}; medians (least to most)")
    columns = "{:12} {:>5}  {:>23}  {:>24}  {:>21}  {:>22}  {:>7}  {:>9}"
    print("\n" + columns.format("family", "rules", "picnic, ns a packet",
                               "rte_acl, ns a packet", "ratio",
                               "change, longest*, most", "build", "rte_acl's"))

    def spread(of, key):
        return (f"{of[key + 'median']:.2f} ({of[key + 'min']:.2f} to {of[key + 'max']:.2f})")

    for size in report["sizes"]:
        picnic, dpdk = size["picnic"], size["dpdk"]
        print(columns.format(
            size["family"], size["rules"], spread(picnic, "ns_per_packet_"),
            spread(dpdk, "ns_per_packet_"), spread(size["ratio"], ""),
            f"{picnic['change_us_median']:.1f} {picnic['change_us_least_max']:5.0f} "
            f"{picnic['change_us_max']:6.0f} us",
            f"{picnic['build_ms_median']:.2f} ms", f"{dpdk['build_ms_median']:.0f} ms"))
    print("\n* the longest of the changes, each at the shortest of three times; then the longest of all")


def main():
    options = arguments()
    try:
        programs = {"dpdk": program_dpdk(options), "picnic": program_picnic(options)}
        report = {
            "machine": machine_facts(),
            "core": os.cpu_count() - 1,
            "scheduling": "SCHED_RR" if options.realtime else "SCHED_OTHER",
            "rounds": options.rounds,
            "seconds": options.seconds,
            "seed": options.seed,
            "sizes": measure(options, programs),
        }
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
