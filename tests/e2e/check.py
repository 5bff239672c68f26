"""Compares a card's output with that of the oracle.

    expected = check.expected(card, packets_by_capture)
    check.same(card, expected, got)             # raises Wrong at the first difference
    check.figures(card, expected, got, report)

`expected` has the packets of each wire and queue in order, `got` the packets of each queue in
order.

Guarantees: without allowance for loss, `same` detects each packet that is missing, duplicated,
changed, on another queue or out of order. Packets of one wire that reach a queue by the same path
(with a hash, or without) must be in order, and so must each flow. The two paths may overtake each
other, since picnic keeps order within a flow only. Packets of two wires may interleave.
"""

import collections

import oracle


class Wrong(Exception):
    """A result differs from the expected one."""


def expected(card, packets):
    """Each wire's packets by queue. `packets`: for each wire, the packets of its capture."""
    rss = oracle_of(card)
    wires = []
    for wire in packets:
        queues = [[] for _ in range(card.queues)]
        for packet in wire:
            queues[rss.queue(packet)].append(packet)
        wires.append([queue * card.loops for queue in queues])
    return wires


def oracle_of(card):
    room = card.pool.get("headroom", 128) + card.pool.get("buffer_size", 2048)
    keys = {"default_queue": card.card.get("default_queue", 0), "seen": room, **card.rss}
    return oracle.Rss(card.queues, **keys)


def same(card, wires, got):
    """Whether each queue got the expected packets."""
    if len(got) != card.queues:
        raise Wrong(f"{len(got)} queues in the trace, {card.queues} on the card")
    rss = oracle_of(card)
    for queue, packets in enumerate(got):
        for place, packet in enumerate(packets):
            if rss.queue(packet) != queue:
                raise Wrong(f"queue {queue}, packet {place} belongs on queue "
                            f"{rss.queue(packet)}: {shown(packet)}")
        if card.damages:
            continue
        for is_hashed in (True, False):
            *should, came = ([packet for packet in way if rss.is_hashed(packet) == is_hashed]
                             for way in (*(wire[queue] for wire in wires), packets))
            if card.lossy:
                subsequence(queue, *should, came)
            elif len(should) == 1:
                equal(queue, *should, came)
            else:
                interleaved(queue, *should, came)


def equal(queue, should, packets):
    if packets == should:
        return
    for place, (one, other) in enumerate(zip(should, packets)):
        if one != other:
            raise Wrong(f"queue {queue}, packet {place} is {shown(other)} and should be "
                        f"{shown(one)}")
    raise Wrong(f"queue {queue} got {len(packets)} packets, should have got {len(should)}")


def subsequence(queue, should, packets):
    rest = iter(should)
    for place, packet in enumerate(packets):
        if packet not in rest:  # moves `rest` on to behind it
            raise Wrong(f"queue {queue}, packet {place} is not one still to come: "
                        f"{shown(packet)}")


def interleaved(queue, first, second, packets):
    if len(packets) != len(first) + len(second):
        raise Wrong(f"queue {queue} got {len(packets)} packets, should have got {len(first)} and "
                    f"{len(second)}")
    # All counts of packets that may have come from the first wire by now.
    counts = {0}
    for place, packet in enumerate(packets):
        then = set()
        for count in counts:
            if count < len(first) and first[count] == packet:
                then.add(count + 1)
            if place - count < len(second) and second[place - count] == packet:
                then.add(count)
        counts = then
        if not counts:
            raise Wrong(f"queue {queue}, packet {place} is the next of neither wire: "
                        f"{shown(packet)}")


def figures(card, wires, got, report):
    """Whether the counts of a run's JSON are right and its ledger balances."""
    def must(is_so, what):
        if not is_so:
            raise Wrong(f"{what}, in {report['ledger']}, drops {report['drops_by_stage']}")

    ledger, trace = report["ledger"], report["trace"]
    fates = sum(ledger[fate] for fate in ("delivered", "transmitted", "consumed", "dropped"))
    must(ledger["balanced"] and ledger["in"] == fates, "the ledger does not balance")
    must(ledger["in_flight"] == 0 and report["buffers_missing"] == 0, "something stayed inside")
    must(ledger["transmitted"] == ledger["consumed"] == 0, "fates that no packet can have")
    must(ledger["dropped"] == sum(report["drops"].values()), "drops without a reason")
    must(trace["packets_lost"] == 0 and trace["error"] is None, "the trace is not whole")
    must(len(report["queues"]) == card.queues, "another number of queues")
    must(ledger["delivered"] == sum(len(packets) for packets in got), "deliveries miscounted")
    for queue, packets in zip(report["queues"], got):
        counted = (queue["packets"], queue["bytes"])
        must(counted == (len(packets), sum(map(len, packets))), f"queue {queue} miscounted")
    shed = [wire["rx_shed"] for wire in report["wires"]]
    came_in = [(wire["rx_packets"], wire["rx_bytes"]) for wire in report["wires"]]
    must(ledger["in"] == sum(count for count, _ in came_in) + sum(shed), "wires miscounted")
    if card.damages:
        must(ledger["dropped"] == report["drops"].get("fault", 0), "other drops than by faults")
        return
    should = [(sum(map(len, queues)), sum(len(packet) for queue in queues for packet in queue))
              for queues in wires]
    if card.lossy:
        # Bytes of packets that are dropped at the wire are not counted.
        came_in = [packets + lost for (packets, _), lost in zip(came_in, shed)]
        should = [packets for packets, _ in should]
    must(came_in == should, f"wires should have {should}")
    must(card.lossy or ledger["dropped"] == 0, "packets were dropped")


def shown(packet):
    return f"{len(packet)} bytes {packet[:80].hex()}"


def symmetric(packets, rss):
    """Both ways of each flow go to one queue; returns the number of flows."""
    queues, ways = {}, collections.Counter()
    for found in map(oracle.layers, packets):
        if found.ports is None:
            continue
        half = len(found.addresses) // 2
        ends = [found.addresses[:half] + found.ports[:2], found.addresses[half:] + found.ports[2:]]
        flow = (found.protocol, *sorted(ends))
        ways[flow] |= 1 if ends == sorted(ends) else 2
        if queues.setdefault(flow, rss.queue_of(found)) != rss.queue_of(found):
            raise Wrong(f"a flow's two ways are on queues {queues[flow]} and {rss.queue_of(found)}")
    both = sum(way == 3 for way in ways.values())
    if not both:
        raise Wrong("no flow has packets both ways")
    return both


def self_test(card, wires, got):
    """Whether `same` finds every planted error; returns the number of errors."""
    queue = max(range(len(got)), key=lambda number: len(got[number]))
    packets = got[queue]
    # A place where two packets differ, so that changing their order changes something.
    place = next(place for place in range(len(packets) // 2, len(packets) - 1)
                 if packets[place] != packets[place + 1])
    one, other = packets[place:place + 2]
    before, after = packets[:place], packets[place + 2:]
    elsewhere = (queue + 1) % len(got)
    wrongs = [
        {queue: before + [other, one] + after},
        {queue: before + [one] + after},
        {queue: before + [one, one, other] + after},
        {queue: before + [one[:-1] + bytes([one[-1] ^ 1]), other] + after},
        {queue: before + [other] + after, elsewhere: got[elsewhere] + [one]},
        {queue: packets[:-1]},
    ]
    for number, wrong in enumerate(wrongs):
        try:
            same(card, wires, [wrong.get(at, packets) for at, packets in enumerate(got)])
        except Wrong:
            continue
        raise Wrong(f"the check does not see wrong {number}")
    return len(wrongs)
