"""Snapshots of the guest, and the checks that several parts share.

Guarantees: no check relies on the program's own report alone. The cores of threads and interrupts come
from the guest's kernel; the expected moves are computed here, from the snapshot before.
"""

import json
import re

PF_NO_SETAFFINITY = 0x04000000
# Of the kernel's work queues: such a thread moves itself to where each work belongs.
PF_WQ_WORKER = 0x20
ALL = frozenset(range(8))
BORROWED = 7
# Cores kept off, by level: two packages of two cores of two SMT threads.
RESERVED = {"none": {7}, "smt": {6, 7}, "l2": {6, 7}, "llc": {4, 5, 6, 7}}
QUEUES, NICS = 6, 5
# The timer and the cascade of the old interrupt controller: the kernel refuses to move them.
FIXED = frozenset({0, 2})
# Clock ticks of 10 ms: an idle core still has its timers.
IDLE_TICKS = 25


class Wrong(Exception):
    """The state of the guest differs from the expected one."""


def want(is_so, message):
    if not is_so:
        raise Wrong(message)


def cores(text):
    found = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def mask(text):
    value = int(text.strip().replace(",", ""), 16)
    return frozenset(core for core in range(64) if value >> core & 1)


class Snapshot:
    """Settings and threads at one moment."""

    def __init__(self, sections, name):
        settings = sections[f"{name}/settings"][1].splitlines()
        self.settings = dict(line.split(":", 1) for line in settings if ":" in line)
        # Folders of control groups, and journals.
        self.names = {line for line in settings if ":" not in line}
        text = sections[f"{name}/threads"][1]
        self.bound, self.last_core, self.titles, started = set(), {}, {}, {}
        for line in re.findall(r"^\d+ \(.*\) [RSDTI] .*$", text, re.M):
            number, rest = line.split(" ", 1)
            title, fields = rest[1:].rsplit(")", 1)
            fields = fields.split()
            if int(fields[6]) & PF_WQ_WORKER:
                continue
            started[int(number)] = int(fields[19])
            who = (int(number), int(fields[19]))
            self.titles[who] = title
            self.last_core[who] = int(fields[36])
            if int(fields[6]) & PF_NO_SETAFFINITY:
                self.bound.add(who)
        found = re.findall(r"task/(\d+)/status:Cpus_allowed_list:\t(\S+)", text)
        self.cores = {(int(number), started[int(number)]): cores(allowed)
                      for number, allowed in found if int(number) in started}

    def interrupts(self):
        return {int(path.split("/")[3]): cores(value) for path, value in self.settings.items()
                if path.endswith("smp_affinity_list") and value.strip()}


def same(before, after, what):
    """All is as it was. Interrupts that have come or gone, threads too, are no matter."""
    for name, was in before.settings.items():
        want(after.settings.get(name, was) == was,
             f"{what}: {name} was {was} and is {after.settings.get(name)}")
    want(before.names == after.names, f"{what}: {before.names} became {after.names}")
    common = before.cores.keys() & after.cores.keys()
    want(len(common) > 30, f"{what}: only {len(common)} threads are the same")
    for who in common:
        want(before.cores[who] == after.cores[who],
             f"{what}: thread {who} ({before.titles[who]}) was on {sorted(before.cores[who])} "
             f"and is on {sorted(after.cores[who])}")
    return len(common)


def moved(before, during, reserved, what, wires=frozenset()):
    """Everything has left the reserved cores, and everything else is unchanged."""
    others = ALL - reserved
    elsewhere = lambda was: (was & others) or others
    threads = 0
    for who in before.cores.keys() & during.cores.keys():
        was, now = before.cores[who], during.cores[who]
        right = was if who in before.bound else elsewhere(was)
        want(now == right, f"{what}: thread {who} ({before.titles[who]}) was on {sorted(was)}, is "
             f"on {sorted(now)}, belongs on {sorted(right)}")
        threads += was != now
    for who, now in during.cores.items():
        title = during.titles[who]
        if who not in during.bound and title != "borrowed":
            want(not now & reserved, f"{what}: thread {who} ({title}) is on {sorted(now)}")
        if title == "borrowed":
            want(now == {BORROWED}, f"{what}: the borrowed core's thread is on {sorted(now)}")
    interrupts = 0
    was, now = before.interrupts(), during.interrupts()
    for number in was.keys() & now.keys():
        right = {BORROWED} if number in wires else elsewhere(was[number])
        if number in FIXED:
            right = was[number]
        want(now[number] == right, f"{what}: interrupt {number} was on {sorted(was[number])}, is "
             f"on {sorted(now[number])}, belongs on {sorted(right)}")
        interrupts += was[number] != now[number]
    for name in ("/proc/irq/default_smp_affinity", "/sys/devices/virtual/workqueue/cpumask"):
        want(mask(during.settings[name]) == others, f"{what}: {name} is {during.settings[name]}")
    want(threads > 10 and interrupts > 3, f"{what}: {threads} threads, {interrupts} interrupts")
    return threads, interrupts


def read_json(sections, name):
    code, text = sections[name]
    want(code == 0, f"{name}: exit code {code}: {text.strip()[-500:]}")
    try:
        return json.loads(text.split("\nstderr:")[0])
    except ValueError as error:
        raise Wrong(f"{name}: {error} in {text[:300]}") from error


def refused_interrupts(report):
    found = (re.match(r"interrupt (\d+) ", what) for what in report["refused"])
    return frozenset(int(match[1]) for match in found if match)


def restored_whole(journals, count, what):
    """Checks the number of journals, and that all of each was restored."""
    want(len(journals) == count, f"{what}: {journals}")
    for journal in journals:
        want(not journal["refused"] and not journal["failed"], f"{what}: {journal}")
    return journals


def no_failed_restore(report, what):
    """A run notes the changes that it could not restore, its own and those of killed runs."""
    told = [note for note in report["notes"]
            if "not restored" in note or re.search(r"\d+ (failed|refused) \(", note)]
    want(not told, f"{what}: {told}")
    return report


def has_partition(during, reserved, is_wanted, what):
    folder = "/sys/fs/cgroup/picnic"
    want((f"{folder}/" in during.names) == is_wanted, f"{what}: groups are {during.names}")
    if is_wanted:
        state = during.settings[f"{folder}/cpuset.cpus.partition"].strip()
        want(state == "isolated", f"{what}: the partition is \"{state}\"")
        held = cores(during.settings[f"{folder}/cpuset.cpus.effective"])
        want(held == reserved, f"{what}: the partition has cores {sorted(held)}")
