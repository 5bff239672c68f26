"""Judges the report of the guest, part by part."""

import re

from judge import (ALL, BORROWED, FIXED, IDLE_TICKS, NICS, QUEUES, RESERVED, Snapshot, Wrong,
                   cores, has_partition, moved, no_failed_restore, read_json, refused_interrupts,
                   restored_whole, same, want)

# Of the part "steered": flows, the cores they belong to, the key by which they do.
FLOWS, STRIDE, TARGETS = 8, 5, (1, 2, 3, 4)
TOEPLITZ_KEY = bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c"
                             "6a42b73bbeac01fa")


def levels(sections, _):
    for method, level in re.findall(r"(\w+)/(\w+)/plan\n", "\n".join(sections) + "\n"):
        name = f"{method}/{level}"
        reserved = RESERVED[level]
        plan = read_json(sections, f"{name}/plan")
        want(plan["borrowed_core"] == BORROWED and set(plan["target_cores"]) == ALL - reserved
             and plan["level"] == level and plan["method"] == method, f"{name}: {plan}")
        before, during, after = (Snapshot(sections, f"{name}/{when}")
                                 for when in ("before", "during", "after"))
        report = read_json(sections, f"{name}/apply")
        threads, interrupts = moved(before, during, reserved, name)
        want(refused_interrupts(report) <= FIXED, f"{name}: {report['refused']}")
        planned = {(thread["thread"], thread["was"]) for thread in plan["threads"]}
        want(len(planned) >= threads, f"{name}: {threads} moved, {len(planned)} planned")
        has_partition(during, reserved, method == "cpuset", name)
        again = read_json(sections, f"{name}/again")
        want(again["is_applied"], f"{name}: applied twice, the second time is {again}")
        restored_whole(read_json(sections, f"{name}/restore")["journals"], 1, name)
        count = same(before, after, f"{name} restored")
        late = [who for who in after.cores.keys() - before.cores.keys()
                if after.titles[who] == "sleep"]
        want(late and all(after.cores[who] == ALL for who in late),
             f"{name}: started meanwhile: {[sorted(after.cores[who]) for who in late]}")
        yield (f"{name:15} {threads} threads and {interrupts} interrupts moved, "
               f"{len(report['refused'])} refused, {count} threads as before")
    want(read_json(sections, "restore-twice") == {"journals": []}, "restored twice")


def killed(sections, _):
    for method in ("cpuset", "affinity"):
        name = f"killed/{method}"
        before, during, left, after = (Snapshot(sections, f"{name}/{when}")
                                       for when in ("before", "during", "left", "after"))
        reserved = RESERVED["l2"]
        moved(before, during, reserved, name)
        has_partition(during, reserved, method == "cpuset", name)
        want("borrowed" in during.titles.values(), f"{name}: no card ran")
        # Whoever kills it leaves it so.
        moved(before, left, reserved, f"{name} left")
        want(any(".journal" in journal for journal in left.names), f"{name}: no journal is left")
        cleaned = restored_whole(read_json(sections, f"{name}/cleanup")["journals"], 1, name)
        same(before, after, f"{name} cleaned")
        want(read_json(sections, f"{name}/again") == {"journals": [], "sockets": []},
             f"{name}: cleaned twice")
        yield f"{name:15} {cleaned[0]['restored']} changes restored by cleanup"
        name = f"halfway/{method}"
        states = [text for title, (_, text) in sections.items() if title.startswith(f"{name}/st")]
        counts = [int(count) for text in states for count in re.findall(r"(\d+)\n", text)]
        want(counts, f"{name}: never killed with a journal")
        no_failed_restore(read_json(sections, f"{name}/run"), name)
        same(Snapshot(sections, f"{name}/before"), Snapshot(sections, f"{name}/after"), name)
        yield f"{name:15} killed {len(states)} times, journals of {sorted(counts)} lines"


def held(sections, _):
    for method in ("cpuset", "affinity"):
        name = f"held/{method}"
        during = Snapshot(sections, f"{name}/during")
        has_partition(during, RESERVED["l2"], method == "cpuset", name)
        card = {title: sorted(during.cores[who]) for who, title in during.titles.items()
                if title == "borrowed" or title.startswith("target-")}
        want(card.get("borrowed") == [BORROWED], f"{name}: {card}")
        report = read_json(sections, f"{name}/run")
        want(report["borrowed_core"]["core"] == BORROWED and not report["notes"],
             f"{name}: {report['borrowed_core']}, {report['notes']}")
        want({queue["core"] for queue in report["queues"]} <= ALL - RESERVED["l2"],
             f"{name}: {report['queues']}")
        restored_whole(read_json(sections, f"{name}/restore")["journals"], 1, name)
        yield f"{name:15} a card ran on cores {sorted(card)}"


def interrupt_counts(text):
    """By handler: what each core has counted."""
    rows = {}
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0].rstrip(":").isdigit() and len(fields) > 9:
            rows[(int(fields[0][:-1]), fields[-1])] = [int(count) for count in fields[1:9]]
    return rows


def ticks(text):
    """By core: clock ticks of user and system time."""
    found = re.findall(r"^cpu(\d+) (\d+) (\d+) (\d+)", text, re.M)
    return {int(core): sum(map(int, rest)) for core, *rest in found}


def nics(sections, packets):
    before, during = (Snapshot(sections, f"nics/{when}") for when in ("before", "during"))
    report = no_failed_restore(read_json(sections, "nics/report"), "nics")
    reserved = RESERVED["l2"]
    told = " ".join(report["notes"])
    counts = [interrupt_counts(sections[f"nics/work-{when}"][1])
              for when in ("before", "settled", "after")]
    common = counts[0].keys() & counts[1].keys() & counts[2].keys()
    settling, done = ({row: [b - a for a, b in zip(first[row], last[row])] for row in common}
                      for first, last in zip(counts, counts[1:]))
    # The kernel changes an interrupt's way at the first one after the setting, which comes the old
    # way, or at a later one while the change before that is not complete.
    strays = {row: 0 if any(settling[row]) else 1 for row in common}
    # The wires' interrupts that only the borrowed core has counted.
    wires = {number for number, allowed in during.interrupts().items() if allowed == {BORROWED}}
    want(len(wires) >= 2 * NICS, f"nics: interrupts {sorted(wires)} go to the borrowed core")
    moved(before, during, reserved, "nics", wires=wires)
    want("no interrupts of its own" not in told, f"nics: {told}")
    received = {row: per_core for row, per_core in done.items()
                if row[0] in wires and "input" in row[1]}
    want(len(received) == NICS, f"nics: {received}")
    for row, per_core in received.items():
        want(per_core[BORROWED] > 0 and sum(per_core) <= per_core[BORROWED] + strays[row],
             f"nics: interrupt {row} came to cores {per_core}, first {settling[row]}")
    others = [(row, settling[row], per_core) for row, per_core in done.items()
              if row[0] not in wires and sum(per_core[core] for core in reserved) > strays[row]]
    want(not others, f"nics: interrupts {others} came to the reserved cores")
    parts = [[int(count) for count in re.findall(r"pkts-sofar: (\d+)", sections[f"nics/{name}"][1])]
             for name in ("pktgen-settling", "pktgen")]
    sent = [sum(counts) for counts in zip(*parts)]
    want(sent == [packets] * NICS, f"nics: sent {parts}")
    for number, wire in enumerate(report["wires"]):
        name, text = f"a{number}", sections[f"nics/a{number}"][1]
        by_kernel = int(re.search(r"rx_packets:(\d+)", text)[1])
        by_card = wire["rx_packets"] + wire["rx_shed"]
        want(by_card == by_kernel == packets,
             f"nics: {name} was sent {packets}, its kernel counts {by_kernel}, the card {by_card}")
    total = packets * NICS
    ledger = report["ledger"]
    want(ledger["balanced"] and ledger["in"] == total and ledger["in_flight"] == 0,
         f"nics: {ledger}")
    want(ledger["delivered"] + ledger["dropped"] == total, f"nics: {ledger}")
    want(ledger["delivered"] > total / 2, f"nics: {ledger}")
    queues = report["queues"]
    want(sum(queue["packets"] for queue in queues) == ledger["delivered"], f"nics: {queues}")
    want({queue["core"] for queue in queues} == ALL - reserved, f"nics: {queues}")
    want(all(queue["packets"] > total / QUEUES / 3 for queue in queues), f"nics: {queues}")
    # Now that threads are there which a partition would unbind.
    plan = read_json(sections, "nics/plan")
    want(plan["method"] == "affinity" and "kpktgend" in plan["method_reason"],
         f"nics: {plan['method']}: {plan['method_reason']}")
    first, last = (ticks(sections[f"nics/work-{when}"][1]) for when in ("before", "after"))
    work = {core: last[core] - first[core] for core in first}
    least = min(work[core] for core in ALL - reserved)
    want(least > 3 * IDLE_TICKS, f"nics: work {work}")
    # The longer it takes, the more timers an idle core has.
    want(work[6] <= max(IDLE_TICKS, least / 4), f"nics: core 6 was left out and worked {work}")
    same(before, Snapshot(sections, "nics/after"), "nics restored")
    yield (f"five NICs       {total} packets sent and counted, {ledger['delivered']} delivered, "
           f"{ledger['dropped']} dropped; by target core "
           f"{[queue['packets'] for queue in queues]}")
    yield f"                ticks of work by core {[work[core] for core in sorted(work)]}"


def lost(text):
    """Pings sent and not answered."""
    found = re.search(r"(\d+) packets transmitted, (\d+) packets received", text)
    want(found, f"no pings: {text[-300:]}")
    return int(found[1]) - int(found[2])


def same_files(sections, name, clients=1):
    """Of each client: a file, what came of it there, and what came back."""
    sums = [line.split()[0] for line in sections[f"{name}/files"][1].splitlines()]
    want(len(sums) == 3 * clients and len(set(sums)) == 1, f"{name}: {sums}")


# The rate of each of two wires, in bits per second, and the connections over them, in words.
LINK_BPS = 2e6
CONNECTIONS = {"balance-rr": "one connection", "balance-xor": "sixteen"}


def longest_pause(text):
    """Of a transfer whose progress was looked at again and again: seconds in which nothing came."""
    looks = [(float(time), int(size)) for time, size in map(str.split, text.splitlines())]
    longest, last, (since, before) = 0, looks[-1][1], looks[0]
    for time, size in looks:
        if size != before:
            longest, since, before = max(longest, time - since), time, size
        if size == last:
            break
    return longest


def bonded(sections, _packets):
    told, speeds, pauses = [], [], []
    for mode in ("balance-rr", "balance-xor", "active-backup"):
        name = f"bonded/{mode}"
        state = sections[f"{name}/state"][1]
        want(state.count("Slave Interface:") == 2, f"{name}: {state}")
        want(lost(sections[f"{name}/ping"][1]) == 0, f"{name}: {sections[f'{name}/ping'][1]}")
        same_files(sections, name)
        want(lost(sections[f"{name}/afterwards"][1]) == 0,
             f"{name}, afterwards: {sections[f'{name}/afterwards'][1]}")
        report = read_json(sections, f"{name}/report")
        want(report["ledger"]["balanced"] and report["buffers_missing"] == 0,
             f"{name}: {report['ledger']}")
        sent = [wire["tx_packets"] for wire in report["wires"]]
        if mode == "balance-rr":
            want(min(sent) > max(sent) / 3, f"{name}: sent by wire {sent}")
        if mode in CONNECTIONS:
            found = list(map(float, sections[f"{name}/speed"][1].split()))
            size, seconds, segments, again = (later - earlier for earlier, later in zip(found, found[4:]))
            share = size * 8 / seconds / LINK_BPS
            speeds.append(f"{CONNECTIONS[mode]} {share:.2f} with {mode} ({size / max(1, segments):.0f} bytes a segment, {again / max(1, segments):.1%} sent twice)")
        report = read_json(sections, f"{name}/held-report")
        want(report["ledger"]["balanced"] and report["buffers_missing"] == 0,
             f"{name}: {report['ledger']}")
        received = [wire["rx_bytes"] for wire in report["wires"]]
        if mode in CONNECTIONS:
            want(min(received) > size / 4, f"{name}: received by wire {received}, of {size}")
        # Neither end has seen an error, though each wire was pulled in turn.
        for end in ("sender", "whole"):
            code, text = sections[f"{name}/{end}"]
            want(code == 0, f"{name}: {end} under load while wires were pulled: {code}, {text}")
        pauses.append(f"{mode} {longest_pause(sections[f'{name}/progress'][1]):.1f}")
        told.append(f"{mode} {lost(sections[f'{name}/pulled'][1])}")
    yield (f"bonding         Linux's at the other end: 2 MiB there and back by one connection, whole; of 60 "
           f"pings 50 ms apart, lost while a wire was pulled: {', '.join(told)}")
    # A timing is no test, of a machine that is emulated least of all.
    yield f"                payload, in rates of one of two wires: {', '.join(speeds)}"
    yield (f"                1 MiB by one connection while each wire was pulled, whole; its longest pause: "
           f"{', '.join(pauses)} s")


# Packets of a file of 512 KiB, even if the device has merged them in fours.
PACKETS = 512 * 1024 // 1400 // 4


def tunnels(sections, _packets):
    told = []
    for kind in ("geneve", "gre", "gretap", "ipip"):
        name = f"tunnels/{kind}"
        want(kind in sections[f"{name}/link"][1], f"{name}: {sections[f'{name}/link'][1]}")
        want(lost(sections[f"{name}/ping"][1]) == 0, f"{name}: {sections[f'{name}/ping'][1]}")
        same_files(sections, name)
        report = read_json(sections, f"{name}/report")
        want(report["ledger"]["balanced"] and report["buffers_missing"] == 0
             and "malformed@wire" not in report["drops_by_stage"],
             f"{name}: {report['ledger']}, {report['drops_by_stage']}")
        # By the counts of the kernel's device: all of it went through the tunnel, and well formed.
        (device,) = read_json(sections, f"{name}/device")
        received, sent = device["stats64"]["rx"], device["stats64"]["tx"]
        want(min(received["packets"], sent["packets"]) > PACKETS, f"{name}: {device['stats64']}")
        bad = {key: received[key] for key in ("errors", "length_errors", "frame_errors", "crc_errors")
               if received.get(key)}
        want(not bad and sent["errors"] == 0, f"{name}: {device['stats64']}")
        told.append(f"{kind} {received['packets']} in, {sent['packets']} out")
    yield (f"tunnels         Linux's at the other end: 512 KiB there and back by one connection each, "
           f"whole; packets of its device: {', '.join(told)}")


# Frames of a file of 512 KiB; and such as are of no file: ARP, and what passes while counts are read.
FRAMES, ASIDE = 512 * 1024 // 1460, 10


def passed_clients(sections, when):
    """Of each client's NIC: frames received, frames sent, IP packets that were for the client."""
    text = sections[f"clients/{when}"][1]
    device = re.findall(r"^ *b\d: *\d+ +(\d+) +(?:\d+ +){7}(\d+)", text, re.M)
    own = re.findall(r"^Ip: \d+ \d+ (\d+) ", text, re.M)
    want(len(device) == len(own) == NICS + 1, f"clients, {when}: {text}")
    return [(int(rx), int(tx), int(ip)) for (rx, tx), ip in zip(device, own)]


def clients(sections, _packets):
    report = read_json(sections, "clients/report")
    wires = report["wires"]
    want(len(wires) == NICS + 1, f"clients: {wires}")
    same_files(sections, "clients", len(wires))
    want(report["ledger"]["balanced"] and report["buffers_missing"] == 0,
         f"clients: {report['ledger']}")
    before, after = (passed_clients(sections, when) for when in ("before", "after"))
    for number, wire in enumerate(wires):
        received, sent, own = (b - a for a, b in zip(before[number], after[number]))
        what = f"clients: {wire}, whose client received {received}, {own} for itself, sent {sent}"
        want(min(own, sent) > FRAMES, what)
        # Each is alone at its wire: other packets belong to another card.
        want(0 <= received - own <= ASIDE, what)
        want(0 <= wire["tx_packets"] - received <= ASIDE, what)
        want(0 <= wire["rx_packets"] + wire["rx_shed"] - sent <= ASIDE, what)
    queues = [queue["packets"] for queue in report["queues"]]
    yield (f"clients         of the ready card of five wires and one more: 512 KiB there and back by each "
           f"at once, whole; each answered on its own wire {[wire['tx_packets'] for wire in wires]}, "
           f"by queue {queues}, {report['ledger']['dropped']} dropped")


def processed(text):
    """By core: packets that its network stack has received."""
    return [int(line.split()[0], 16) for line in text.splitlines()]


def in_order(sections, name, packets):
    """The report of a card in the kernel, and what each core's network stack has received: of what was
    sent nothing is lost, and the interfaces are as before."""
    before, after = sections["kernel/before"][1], sections[f"{name}/after"][1]
    # The kernel keeps the threads, but not where they belong.
    left = re.sub(r"^napi/.*:\s+0-7\n", "", after, flags=re.M)
    want(left == before, f"{name}: was\n{before}\nafter\n{after}")
    during = sections[f"{name}/during"][1]
    polled = re.findall(r"napi/(a\d)\S* Cpus_allowed_list:\s+(\S+)", during)
    want({wire for wire, _ in polled} == {f"a{number}" for number in range(NICS)}
         and {cores for _, cores in polled} == {str(BORROWED)}, f"{name}: {during}")
    report = read_json(sections, f"{name}/report")
    total = packets * NICS
    sent = [int(count) for count in re.findall(r"pkts-sofar: (\d+)", sections[f"{name}/pktgen"][1])]
    want(sent == [packets] * NICS, f"{name}: sent {sent}")
    want([wire["rx_packets"] for wire in report["wires"]] == sent, f"{name}: {report['wires']}")
    ledger, queues = report["ledger"], report["queues"]
    want(ledger["balanced"] and ledger["in"] == ledger["delivered"] == total
         and ledger["in_flight"] == 0, f"{name}: {ledger}")
    want([queue["packets"] for queue in queues] == sent, f"{name}: {queues}")
    by_core = {queue["core"]: queue["packets"] for queue in queues}
    want(len(by_core) == NICS and not by_core.keys() & RESERVED["smt"], f"{name}: {by_core}")
    first, last = (processed(sections[f"{name}/work-{when}"][1]) for when in ("before", "after"))
    work = [b - a for a, b in zip(first, last)]
    # By each core's own count: packets of its NIC and no others, and none where they came in.
    want(all(work[core] <= by_core.get(core, 0) for core in sorted(ALL)), f"{name}: {work}, {by_core}")
    return report, work


def kernel(sections, packets):
    release = sections["kernel/release"][1].strip()
    version = tuple(map(int, re.match(r"(\d+)\.(\d+)", release).groups()))
    found = {finding["name"]: finding for finding in read_json(sections, "kernel/doctor")["findings"]}
    cpumap, skb = found["kernel-cpumap"], found["kernel-skb"]
    want(cpumap["available"], f"kernel: {release}: {cpumap}")
    if version < (6, 6):
        want(not skb["available"] and "Linux 6.6" in skb["mend"], f"kernel: {release}: {skb}")
    report, work = in_order(sections, "kernel", packets)
    total, queues = report["ledger"]["in"], report["queues"]
    want(sum(work) == total, f"kernel: {work}")
    during = sections["kernel/during"][1]
    want(during.count("gro_flush_timeout:500000") == NICS, f"kernel: {during}")
    want(read_json(sections, "kernel/again")["ledger"]["balanced"], "kernel: started again")
    by_interrupt = [queue["packets"] / queue["interrupts"] for queue in queues]
    want(min(by_interrupt) >= 1, f"kernel: {queues}")
    yield (f"in the kernel   Linux {release}: {total} packets, {report['ledger']['delivered']} delivered; "
           f"received by core {work}")
    yield f"                packets for each wake-up {[round(each, 1) for each in by_interrupt]}"
    # Shared with the poll engine: what is not its own has been received by a core's network stack.
    report, work = in_order(sections, "hybrid", packets)
    poll = report["poll"]
    want(0 < poll["packets"] < total, f"hybrid: {poll}")
    want(poll["lost"] == 0 and poll["packets"] == poll["taken"] == poll["delivered"]
         == total - sum(work), f"hybrid: {poll}, {work}")
    want(all(wire["stamp"] == "arrival" for wire in report["wires"])
         and not any("had no arrival time" in note for note in report["notes"]), f"hybrid: {report}")
    yield (f"                shared with the poll engine: {poll['delivered']} there, received by core "
           f"{work}")


def toeplitz(data):
    """The hash of Microsoft's verification suite, bit by bit as defined."""
    key, bits = int.from_bytes(TOEPLITZ_KEY, "big"), 8 * len(TOEPLITZ_KEY)
    value = 0
    for number in range(8 * len(data)):
        if data[number // 8] << number % 8 & 0x80:
            value ^= key >> bits - 32 - number & 0xffffffff
    return value


def flows():
    """Of each flow the number of its wire, its port at both ends, and the core it belongs to."""
    for number in range(FLOWS):
        wire, port = number % 2, 20000 + STRIDE * number
        addresses = bytes([10, 9, wire, 2, 10, 9, wire, 1])
        entry = toeplitz(addresses + 2 * port.to_bytes(2, "big")) % 128
        yield wire, port, TARGETS[entry % len(TARGETS)]


def flows_for_guest():
    return " ".join(":".join(map(str, flow)) for flow in flows())


def affinities(sections, name):
    """By interrupt: where it may go. The timer's own and such are never moved."""
    found = re.findall(r"/proc/irq/(\d+)/smp_affinity_list:(\S+)", sections[name][1])
    return {int(number): cores(value) for number, value in found}


class Work:
    """What each core has done for the network by one moment."""

    def __init__(self, text):
        self.received = [int(count, 16) for count in re.findall(r"^softnet (\S+)", text, re.M)]
        self.softirqs = list(map(int, re.search(r"NET_RX:(.*)", text)[1].split()))
        # By core: how often its thread had something to do.
        self.turns = {int(core): int(turns) for core, turns in
                      re.findall(r"^cpumap/(\d+)/\S+ \d+ \d+ (\d+)$", text, re.M)}
        self.wires = [int(count) for count in re.findall(r"rx_packets:(\d+)", text)]
        self.interrupts = interrupt_counts(text)


def since(before, after):
    return [b - a for a, b in zip(before, after)]


def steered(sections, _):
    wires = {}
    for wire, number in re.findall(r"^a(\d) (\d+)$", sections["steered/wires"][1], re.M):
        wires.setdefault(int(wire), set()).add(int(number))
    numbers = set().union(*wires.values())
    want(set(wires) == {0, 1} and all(len(each) >= 2 for each in wires.values()), f"steered: {wires}")
    before = affinities(sections, "steered/before")
    want(any(before[number] != {BORROWED} for number in numbers), f"steered: {before}")
    # Those that have handlers; a device may have more than its driver asked for.
    numbers &= before.keys()
    for name in ("during", "again", "left"):
        now = affinities(sections, f"steered/{name}")
        right = {number: {BORROWED} if number in numbers else was for number, was in before.items()}
        want(now == right, f"steered: {name}: interrupts {now} instead of {right}")
    for name in ("after", "cleaned"):
        now = affinities(sections, f"steered/{name}")
        want(now == before, f"steered: {name}: interrupts {now} instead of {before}")
    restored_whole(read_json(sections, "steered/cleanup")["journals"], 1, "steered: cleanup")
    report = no_failed_restore(read_json(sections, "steered/report"), "steered")
    want(not any("interrupt" in note for note in report["notes"]), f"steered: {report['notes']}")
    works = [Work(sections[f"steered/work-{name}"][1]) for name in ("start", *range(FLOWS))]
    by_core, by_interrupt = dict.fromkeys(TARGETS, 0), 0
    for number, (wire, port, core) in enumerate(flows()):
        what = f"steered: flow {number} (a{wire}, port {port}, core {core})"
        code, text = sections[f"steered/flow-{number}"]
        want(code == 0 and not text.strip(), f"{what}: {text}")
        first, last = works[number], works[number + 1]
        packets = since(first.wires, last.wires)
        want(packets[1 - wire] == 0 and packets[wire] > 40, f"{what}: packets {packets}")
        by_core[core] += packets[wire]
        turns = {other: turns - first.turns[other] for other, turns in last.turns.items()}
        want(turns.keys() == set(TARGETS) and turns[core] > 0
             and not any(turns[other] for other in turns if other != core), f"{what}: turns {turns}")
        # In the first quarter interrupts may come the old way still: the senders', too.
        if number < FLOWS // 4:
            continue
        # Its packets went through the network stack of its own core; core 0 is the sender's.
        received = since(first.received, last.received)
        want(received[core] == packets[wire] and received[0] > 0
             and sum(received) == received[core] + received[0], f"{what}: {packets}, {received}")
        # A thread polls the wires, and no softirq.
        softirqs = since(first.softirqs, last.softirqs)
        want(not any(softirqs[1:]), f"{what}: softirqs {softirqs}")
        for row in first.interrupts.keys() & last.interrupts.keys():
            came = since(first.interrupts[row], last.interrupts[row])
            if row[0] not in numbers:
                continue
            # The kernel changes an interrupt's way at the first one after the setting.
            settled = since(works[0].interrupts[row], first.interrupts[row])
            strays = 0 if any(settled) else 1
            want(sum(came) <= came[BORROWED] + strays, f"{what}: interrupt {row} came to {came}")
            by_interrupt += came[BORROWED]
            if row[0] in wires[wire] and "input" in row[1]:
                want(came[BORROWED] > 0, f"{what}: interrupt {row} came to {came}")
    want(all(by_core.values()), f"steered: {by_core}")
    queues = {queue["core"]: queue["packets"] for queue in report["queues"]}
    want(queues == by_core, f"steered: {queues}, by the cores {by_core}")
    ledger = report["ledger"]
    want(ledger["balanced"] and ledger["in"] == ledger["delivered"] == sum(by_core.values()),
         f"steered: {ledger}")
    yield (f"steered         {FLOWS} TCP flows by two NICs, received by core {by_core}, each flow on its own "
           f"alone; {by_interrupt} interrupts of the NICs, on core {BORROWED} alone")


# In the order the guest does them.
PARTS = {"levels": levels, "killed": killed, "held": held, "nics": nics, "kernel": kernel,
         "steered": steered, "bonded": bonded, "tunnels": tunnels, "clients": clients}


def check(sections, parts, packets):
    """Lines to print; raises Wrong at the first that is not as it should be."""
    topology = sections["topology"][1]
    want("online:0-7" in topology, f"the guest has other cores: {topology[:300]}")
    for part in parts:
        yield from PARTS[part](sections, packets)
