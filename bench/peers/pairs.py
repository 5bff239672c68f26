"""PICNIC's figures beside DPDK's: what the comparisons by pairs have in common."""

import argparse
import json
import signal
import statistics
import sys

from compare import RunFailed, machine_facts, positive


def parser(description, rounds, program):
    """The arguments of all of them."""
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--rounds", type=positive(int), default=rounds, metavar="N",
                      help="runs of each program")
    made.add_argument("--realtime", action="store_true",
                      help="run both under SCHED_RR, for a machine that does "
                           "other work meanwhile (needs the privilege)")
    made.add_argument("--picnic", metavar="PATH",
                      help=f"this {program}, instead of building one")
    made.add_argument("--json", action="store_true",
                      help="one JSON object on standard output")
    return made


def spread_of(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "rounds": values}


def show(report, kind, unit, digits):
    facts = report["machine"]
    print(f"machine    {facts['cpu_model']}, {facts['cores']} cores"
          f"{' (virtual)' if facts['hypervisor'] else ''}, "
          f"load {facts['load_average_before']} before, {report['scheduling']}, "
          f"{report['rounds']} rounds; medians (least to most), {unit}\n")
    for row in report[f"{kind}s"]:
        def spread(key):
            values = row[key]
            low, middle, high = (f"{values[part]:.{digits}f}" for part in ("min", "median", "max"))
            return f"{middle} ({low} to {high})"
        print(f"{row[kind]:38} {spread('picnic'):26} {spread('dpdk'):26} ratio {spread('ratio')}")


def main(options, kind, unit, digits, prepare, measure):
    """Prepares, measures and prints; the exit code. `measure` gives, by name, PICNIC's figures,
    DPDK's and the ratios."""
    # So that what it started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        programs = prepare()
        facts = machine_facts()
        found = measure(programs)
    except RunFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    columns = ("picnic", "dpdk", "ratio")
    report = {
        "machine": facts,
        "scheduling": "SCHED_RR" if options.realtime else "SCHED_OTHER",
        "rounds": options.rounds,
        f"{kind}s": [{kind: name, **dict(zip(columns, map(spread_of, values)))}
                     for name, values in found.items()],
    }
    if options.json:
        print(json.dumps(report))
    else:
        show(report, kind, unit, digits)
    return 0
