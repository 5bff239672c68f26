"""Two wires, one of them to a bridge with a ring: the ring is found, blocked, and unblocked once cut.

    client :c0 ═ veth ═ w0 ┐
                           ├ card ─ tap h0 :server
    switch :p1 ═ veth ═ w1 ┘
           └ bridge br0 ┬ q0 ┐
                        └ q1 ┘ ring.py
"""

import contextlib
import json
import subprocess
import sys

from behind import HOST_KEYS, TAP, TAP_MAC, WIRE, until
from check import Wrong
from lab import HERE, PATIENCE, wait_for

BRIDGE, SWITCHED, NOBODY = "br0", "10.88.0.3", "10.88.0.77"


def card_text(hosts, wire):
    keys = {"attachment": "tap", "queues": 2, "name": TAP, "mac": TAP_MAC,
            "addresses": [f"{hosts.SERVER[0]}/24"], "namespace": hosts.server, **HOST_KEYS.get(wire, {})}
    wires = "".join(f'[[wire]]\nport = "{wire}"\ninterface = "{name}"\nnamespace = "{hosts.middle}"\n'
                    for name in (WIRE, "w1"))
    bond = 'function = "bond"\nbreak_loops = true\n'
    host = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return (f'[card]\nname = "{hosts.client}-looped"\n{wires}[[rx]]\n{bond}[[rx]]\nfunction = "rss"\n'
            f"[[tx]]\n{bond}[host]\n{host}\n[pool]\nbuffers = 32768\n")


@contextlib.contextmanager
def switch(hosts):
    """The namespace with the bridge, while in the `with`."""
    name = f"{hosts.client}s"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        hosts.run(name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        hosts.run(name, "ip", "link", "add", BRIDGE, "type", "bridge")
        subprocess.run(["ip", "link", "add", "p1", "netns", name, "type", "veth", "peer", "name", "w1",
                        "netns", hosts.middle], check=True)
        hosts.run(name, "ip", "address", "add", f"{SWITCHED}/24", "dev", BRIDGE)
        hosts.run(name, "ip", "link", "set", "p1", "master", BRIDGE)
        for place, link in ((name, BRIDGE), (name, "p1"), (hosts.middle, "w1")):
            hosts.run(place, "ip", "link", "set", link, "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def close_ring(hosts, name):
    """Joins two ports of the bridge."""
    ring = hosts.start(name, sys.executable, "-B", str(HERE / "ring.py"), "q0", "q1")
    for port in ("q0", "q1"):
        wait_for(lambda: hosts.link(name, port) is not None, f"interface {port}")
        hosts.run(name, "ip", "link", "set", port, "master", BRIDGE)
        hosts.run(name, "ip", "link", "set", port, "up")
    return ring


def answers(hosts, address, seconds=1):
    """Whether a host answers one ping of the server's; asking, the server tells all wires its address."""
    told = subprocess.run(["ip", "netns", "exec", hosts.server, "ping", "-q", "-c", "1", "-W", str(seconds), address],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return told.returncode == 0


def looped(hosts, wire):
    """A ring behind one of two wires."""
    with switch(hosts) as name:
        card = hosts.launch("looped", card_text(hosts, wire), hosts.server, TAP)

        def bond():
            told = []

            def has_told():
                told.append(subprocess.run([hosts.picnic, "ctl", "bond", "--json", "--card",
                                            f"{hosts.client}-looped"], stdout=subprocess.PIPE))
                return told[-1].returncode == 0

            # A core that is kept from its work does not answer in time.
            until(has_told, "the card does not tell of its bond")
            return json.loads(told[-1].stdout)

        for address in (hosts.CLIENT[0], SWITCHED):
            until(lambda: answers(hosts, address), f"no answer of {address}")
        if bond()["loops"]:
            raise Wrong(f"a loop is reported, but there is none: {bond()}")
        ring = close_ring(hosts, name)
        # Asks for an address that is nobody's, so that a broadcast goes round.
        until(lambda: bond()["wires_blocked"] == 1 or answers(hosts, NOBODY), "the loop was not found")
        # The other wire's host is as near as before.
        lost = [number for number in range(10) if not answers(hosts, hosts.CLIENT[0], PATIENCE)]
        if lost:
            raise Wrong(f"the client behind the other wire has not answered pings {lost} of 10")
        sent = hosts.link(name, "p1")["stats64"]["rx"]["packets"]
        answers(hosts, NOBODY)
        more = hosts.link(name, "p1")["stats64"]["rx"]["packets"] - sent
        if more:
            raise Wrong(f"{more} frames were sent by the blocked wire")
        hosts.end(ring)
        # Once is enough: no port has a part in it.
        if wire == "packet":
            until(lambda: not bond()["wires_blocked"], "the wire is still blocked")
            until(lambda: answers(hosts, SWITCHED), "no answer after the loop was cut")
        found = bond()
        report = card.stop(lossless=False)
    # Frames that the blocked wire brought are dropped, and nothing else is.
    (blocked,) = [one["counters"]["blocked"] for one in report["functions"] if one["name"] == "bond"]
    if report["ledger"]["dropped"] != blocked:
        raise Wrong(f"{report['drops_by_stage']}, but blocked: {blocked}")
    return f"a ring behind one of two wires, found {found['loops']} time, {blocked:,} frames dropped"
