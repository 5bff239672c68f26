"""Four clients, each on its own wire, and one server behind a card that bonds the wires.

    client 0: c0 ═ veth ═ v0 :middle ┐
       ...                           ├ card ─ tap h0 :server
    client 3: c0 ═ veth ═ v3 :middle ┘

Tested with one network per client, and with a single network. Every wire is captured at its client's
end; the expected packets are computed from the captures alone.
"""

import collections
import contextlib
import ipaddress
import json
import subprocess

import captures
import lab
import web
from behind import HOST_KEYS, LINK, TAP, TAP_MAC
from check import Wrong
from order import Witness

CLIENTS = range(4)
# Of each transfer, each way: little enough for two cores that carry, capture and count it all.
RATE, WINDOW, AMOUNT = "40M", "128K", "4M"
PORT = 5210
# Of each client's requests: all, and how many at a time, on a connection each.
REQUESTS, CONNECTIONS = 1000, 50
# Bytes of a packet that are captured: its headers.
SNAP = "128"
GROUP = 1
ICMP, TCP, ICMP6 = 1, 6, 58
ECHO = {ICMP: (8, 0), ICMP6: (128, 129)}
SYN, ACK = 2, 16


class Network:
    """The addresses of all hosts: a network for each client, or one for all."""

    def __init__(self, shared):
        self.name = "one network" if shared else "a network each"
        self.shared = shared

    def client(self, number):
        return ((f"10.92.0.{2 + number}", f"2001:db8:92::{2 + number}") if self.shared else
                (f"10.91.{number}.2", f"2001:db8:91:{number}::2"))

    def server(self, number):
        return ((("10.92.0.1", "2001:db8:92::1")) if self.shared else
                (f"10.91.{number}.1", f"2001:db8:91:{number}::1"))

    def of_server(self):
        """The server's addresses, with their lengths."""
        pairs = {self.server(number) for number in CLIENTS}
        return sorted(f"{address}/{24 if '.' in address else 64}" for pair in pairs for address in pair)


class Clients:
    """The four namespaces while in the `with`, joined to the middle one."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.names = [f"{hosts.client}{number}" for number in CLIENTS]
        self.macs = []

    def __enter__(self):
        hosts = self.hosts
        for number, name in enumerate(self.names):
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "link", "add", LINK, "netns", name, "type", "veth", "peer", "name",
                            f"v{number}", "netns", hosts.middle], check=True)
            for place, link in ((name, LINK), (hosts.middle, f"v{number}")):
                hosts.run(place, "ip", "link", "set", link, "up")
                hosts.order_arrivals(place, link)
            self.macs.append(hosts.link(name, LINK)["address"])
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def join(self, network):
        """Gives each client its addresses, and no others."""
        for number, name in enumerate(self.names):
            self.hosts.run(name, "ip", "-4", "address", "flush", "dev", LINK)
            self.hosts.run(name, "ip", "-6", "address", "flush", "dev", LINK, "scope", "global")
            for address, length in zip(network.client(number), (24, 64)):
                self.hosts.run(name, "ip", "address", "add", f"{address}/{length}", "dev", LINK,
                               *(["nodad"] if ":" in address else []))

    def links(self):
        """Every interface on the path, for the kernel's drops there."""
        hosts = self.hosts
        return [(name, LINK) for name in self.names] + [(hosts.server, TAP)] + [
            (hosts.middle, f"v{number}") for number in CLIENTS]


def card_text(hosts, wire, network):
    keys = {"attachment": "tap", "queues": 2, "name": TAP, "mac": TAP_MAC,
            "addresses": network.of_server(), "namespace": hosts.server, **HOST_KEYS.get(wire, {})}
    wires = "".join(f'[[wire]]\nport = "{wire}"\ninterface = "v{number}"\n'
                    f'namespace = "{hosts.middle}"\n' for number in CLIENTS)
    host = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return (f'[card]\nname = "{hosts.client}-four"\n{wires}[[rx]]\nfunction = "bond"\n[[rx]]\n'
            f'function = "rss"\n[[tx]]\nfunction = "bond"\n[host]\n{host}\n[pool]\nbuffers = 32768\n')


def four_clients(hosts, wire):
    """Ping, ARP, neighbour discovery, iperf3 and nginx from four clients: each on its own wire."""
    told = []
    with Clients(hosts) as clients:
        for network in (Network(False), Network(True)):
            clients.join(network)
            told.append(f"{network.name}: {once(hosts, wire, clients, network)}")
    return "; ".join(told)


def once(hosts, wire, clients, network):
    card = hosts.launch("four", card_text(hosts, wire, network), hosts.server, TAP)
    files = [hosts.work / f"wire{number}.pcap" for number in CLIENTS]
    with contextlib.ExitStack() as stack:
        for name, file in zip(clients.names, files):
            stack.enter_context(hosts.capture(file, "-s", SNAP, namespace=name, link=LINK))
        reach(hosts, clients, network)
        witness = Witness(hosts, [*clients.names, hosts.server], clients.links())
        requests = load(hosts, clients, network)
        lab.wait_for(lambda: all_closed(hosts, clients, network), "every connection to be closed")
        # A neighbour that is known is asked for now and then, and the card stops before captures do.
        forget_neighbours(hosts, clients)
        again = witness.judge(f"four clients, {network.name}")
    report = card.stop()
    found = [Wire(captures.read(file), number, clients.macs, network)
             for number, file in enumerate(files)]
    judge(found)
    for number, counts in enumerate(report["wires"]):
        if min(counts["rx_packets"], counts["tx_packets"]) < len(found[number].flows):
            raise Wrong(f"wire {number} has carried {counts}")
    flows, echoes = (sum(len(part) for part in parts) for parts in
                     zip(*((wire.flows, wire.answers) for wire in found)))
    return (f"{flows:,} connections and {echoes} answers to ping, ARP and discovery on their wires, "
            f"{requests:,} requests, {again} segments sent again by timers")


def together(children):
    """The outputs of programs that run at the same time; all must succeed."""
    outputs = [child.communicate(timeout=lab.PATIENCE)[0] for child in children]
    for child, output in zip(children, outputs):
        if child.returncode != 0:
            raise Wrong(f"{child.args[-1]}: exit code {child.returncode}: {output[-300:]}")
    return outputs


def forget_neighbours(hosts, clients):
    for name in (*clients.names, hosts.server):
        hosts.run(name, "ip", "neigh", "flush", "all")


def reach(hosts, clients, network):
    """Pings both ways, each time with empty neighbour tables."""
    ping = ("ping", "-q", "-c", "5", "-i", "0.02", "-W", "10")
    there = [(name, address) for number, name in enumerate(clients.names)
             for address in network.server(number)]
    back = [(hosts.server, address) for number in CLIENTS for address in network.client(number)]
    for pairs in (there, back):
        forget_neighbours(hosts, clients)
        # One answer makes a good end, and soon after it ping waits no longer: whether all have come,
        # and come once, is for the captures to say.
        together([hosts.start(name, *ping, address, stdout=subprocess.PIPE, text=True)
                  for name, address in pairs])


def load(hosts, clients, network):
    """iperf3 both ways and curl, from all at once; the requests that were answered."""
    servers, transfers, asking = [web.serve_nginx(hosts)], [], []
    for number, name in enumerate(clients.names):
        address = network.server(number)[0]
        for port, way in ((PORT + 2 * number, []), (PORT + 2 * number + 1, ["-R"])):
            servers.append(hosts.serve("iperf3", "-s", "-p", str(port), port=port))
            transfers.append((name, ["iperf3", "-J", "-c", address, "-p", str(port), "-n", AMOUNT, "-b",
                                     RATE, "-w", WINDOW, *way]))
        # A fixed number of requests, not a fixed time: every connection is opened, used and closed.
        asking.append((name, ["curl", "-s", "-f", "--no-progress-meter", "-w", "%{http_code}\n", "-o",
                              "/dev/null", "-Z", "--parallel-immediate", "--parallel-max",
                              str(CONNECTIONS), f"http://{address}:{web.PORT}/file?[1-{REQUESTS}]"]))
    outputs = together([hosts.start(name, *command, stdout=subprocess.PIPE, text=True)
                        for name, command in transfers + asking])
    for output in outputs[:len(transfers)]:
        end = json.loads(output)["end"]
        if not end["sum_received"]["bytes"]:
            raise Wrong(f"iperf3: nothing has come: {end}")
    answered = sum(output.split().count("200") for output in outputs[len(transfers):])
    if answered != REQUESTS * len(asking):
        raise Wrong(f"{answered} answers to {REQUESTS * len(asking)} requests")
    for server in servers:
        hosts.end(server)
    return answered


def all_closed(hosts, clients, network):
    """Whether neither end of any connection has anything left to send."""
    ends = [end for number in CLIENTS for address in network.client(number)
            for end in (f"{address}:", f"{address}]:")]
    told = [subprocess.run(
        ["ip", "netns", "exec", name, "ss", "-Htn", "state", "connected", "exclude", "time-wait"],
        stdout=subprocess.PIPE, check=True, text=True).stdout
        for name in (hosts.server, *clients.names)]
    return not any(end in "".join(told) for end in ends)


# ---------------------------------------------------------------- the captures


class Wire:
    """The content of one wire's capture: answers, flows, and packets that belong elsewhere."""

    def __init__(self, frames, number, macs, network):
        self.mac, self.number = mac_bytes(macs[number]), number
        self.own = {packed(address) for address in network.client(number)}
        self.server = {packed(address) for address in network.server(number)}
        # Requests from and to the client, and answers, each with its number of occurrences.
        self.asked, self.answers = collections.Counter(), collections.Counter()
        # Of TCP: client's port, server's port, and which flags each side has sent.
        self.flows = collections.defaultdict(set)
        for frame in frames:
            self.look(frame)

    def look(self, frame):
        to, source, kind = frame[:6], frame[6:12], int.from_bytes(frame[12:14], "big")
        from_card = source != self.mac
        if from_card and source != mac_bytes(TAP_MAC):
            raise Wrong(f"wire {self.number} has a frame from {source.hex(':')}")
        if from_card and not to[0] & GROUP and to != self.mac:
            raise Wrong(f"wire {self.number} has a frame for {to.hex(':')}, who is on another")
        if kind == 0x0806:
            self.arp(frame[14:], from_card)
        elif kind == 0x0800:
            begin = 14 + (frame[14] & 15) * 4
            self.ip(frame[23], frame[26:30], frame[30:34], frame[begin:], to, from_card)
        elif kind == 0x86DD:
            self.ip(frame[20], frame[22:38], frame[38:54], frame[54:], to, from_card)

    def arp(self, packet, from_card):
        operation, sender, target = packet[7], packet[14:18], packet[24:28]
        if operation == 1 and sender != target:  # An announcement has no answer.
            self.asked["arp", sender, target, from_card] += 1
        elif operation == 2:
            self.answers["arp", target, sender, not from_card] += 1

    def ip(self, protocol, source, destination, rest, to, from_card):
        near, far = (destination, source) if from_card else (source, destination)
        if from_card and not to[0] & GROUP and not is_link_local(near) and (
                near not in self.own or far not in self.server):
            raise Wrong(f"wire {self.number} has a packet from {far.hex()} to {near.hex()}")
        if protocol in ECHO and rest[0] in ECHO[protocol]:
            key = ("echo", protocol, near, far, rest[4:8])
            if rest[0] == ECHO[protocol][0]:
                self.asked[*key, from_card] += 1
            else:
                self.answers[*key, not from_card] += 1
        elif protocol == ICMP6 and rest[0] == 135 and any(source):
            self.asked["nd", source, rest[8:24], from_card] += 1
        elif protocol == ICMP6 and rest[0] == 136 and not to[0] & GROUP:
            self.answers["nd", destination, rest[8:24], not from_card] += 1
        elif protocol == TCP:
            ports = (rest[2:4], rest[:2]) if from_card else (rest[:2], rest[2:4])
            self.flows[near, far, *ports].add((from_card, rest[13] & (SYN | ACK)))


def judge(wires):
    """Whether all was answered, once, on the wire on which it was asked."""
    for wire in wires:
        # One wire answers the requests that a server sends to all wires.
        for question, times in wire.asked.items():
            answers = [other.answers[question] for other in wires]
            elsewhere = sum(answers) - answers[wire.number]
            from_card, to_all = question[-1], question[0] in ("arp", "nd")
            if elsewhere and not (from_card and to_all):
                raise Wrong(f"asked on wire {wire.number}, answered on another: {question}")
            if not sum(answers) or sum(answers) > max(other.asked[question] for other in wires):
                raise Wrong(f"asked {times} times on wire {wire.number}, {answers} answers: {question}")
        for flow, seen in wire.flows.items():
            if any(flow in other.flows for other in wires if other is not wire):
                raise Wrong(f"the connection {flow} is on two wires")
            # Opened by the client, answered by the server, and gone on with by both.
            if not seen >= {(False, SYN), (True, SYN | ACK), (False, ACK), (True, ACK)}:
                raise Wrong(f"the connection {flow} on wire {wire.number} has no two sides: {seen}")
        kinds = {(question[0], question[-1]) for question in wire.answers}
        absent = {(kind, way) for kind in ("arp", "nd", "echo") for way in (False, True)} - kinds
        if absent or len(wire.flows) < CONNECTIONS:
            raise Wrong(f"wire {wire.number} has no answers of {absent}, {len(wire.flows)} connections")


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def packed(address):
    return ipaddress.ip_address(address).packed


def is_link_local(address):
    return len(address) == 16 and address[:2] == b"\xfe\x80"
