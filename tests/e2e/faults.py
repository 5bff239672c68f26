"""Faults of a running card: interfaces removed, servers stopped, SIGKILL.

After each: a clear message or counted drops, a balanced ledger, and traffic that continues.
"""

import os
import random
import signal
import subprocess
import time

import lab
import web
from behind import LINK, TAP, WIRE, until
from check import Wrong

KILLS = 4


def answers(hosts):
    """Whether the server answers one ping."""
    told = subprocess.run(["ip", "netns", "exec", hosts.client, "ping", "-q", "-c", "1", "-W", "1",
                           hosts.SERVER[0]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return told.returncode == 0


def load(hosts):
    """Traffic both ways, until it is stopped."""
    return [hosts.start(namespace, "ping", "-q", "-f", "-s", "1000", address)
            for namespace, address in ((hosts.client, hosts.SERVER[0]), (hosts.server, hosts.CLIENT[0]))]


def ended(hosts, children):
    for child in children:
        hosts.end(child)


def wire_removed(hosts, wire):
    """The wire's interface is deleted under load, and another of its name made."""
    with hosts.card(wire, lossless=False) as card:
        lab.wait_for(lambda: answers(hosts), "an answer")
        traffic = load(hosts)
        time.sleep(0.5)
        subprocess.run(["ip", "-n", hosts.middle, "link", "delete", WIRE], check=True)
        time.sleep(0.5)
        hosts.connect()
        until(lambda: answers(hosts), "the card has not taken the interface up again")
        ended(hosts, traffic)
    notes = " ".join(card.report["notes"])
    if f"{WIRE}: was deleted" not in notes:
        raise Wrong(f"the report says of it: {notes!r}")
    return f"reattached, {card.report['ledger']['dropped']:,} dropped and counted"


def server_stopped(hosts, wire):
    """nginx is stopped (SIGSTOP) under load, and continues."""
    with hosts.card(wire) as card:
        server = web.serve_nginx(hosts)
        lab.wait_for(lambda: len(hosts.programs(server)) == 1 + web.WORKERS, "the server's workers")
        asking = web.start_asking(hosts, "/file", 100, 3)
        time.sleep(0.5)
        programs = hosts.programs(server)
        for program in programs:
            os.kill(program, signal.SIGSTOP)
        time.sleep(1)
        for program in programs:
            os.kill(program, signal.SIGCONT)
        requests = web.judged(asking.communicate(timeout=lab.PATIENCE)[0])
        afterwards = web.loaded(hosts, "/file")
    return f"{len(programs)} processes stopped for 1 s, {requests:,} requests, no error; afterwards {afterwards}; " \
           f"{card.report['ledger']['in']:,} packets"


def second_card(hosts, wire):
    """A second card on the same wire is refused, and the first continues."""
    with hosts.card(wire):
        lab.wait_for(lambda: answers(hosts), "an answer")
        file = hosts.work / "second.toml"
        text = hosts.text(wire, 1500, name=f"{hosts.client}-2", addresses=[])
        file.write_text(text.replace(f'"{TAP}"', '"h9"'))
        second = subprocess.run([hosts.picnic, "run", file, "--duration", "5"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=lab.PATIENCE)
        said = second.stderr.strip()
        if second.returncode != 2 or f"{WIRE}" not in said or "second.toml" not in said:
            raise Wrong(f"exit code {second.returncode}: {said!r}")
        if hosts.link(hosts.server, "h9"):
            raise Wrong("the second card has left its interface behind")
        until(lambda: answers(hosts), "the first card does not go on")
    return said.partition("second.toml")[2].lstrip(":")


def killed(hosts, wire):
    """SIGKILL at random moments under load; the machine is as it was, a new card starts."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    found = (hosts.link(hosts.middle, WIRE)["promiscuity"], hosts.link(hosts.server, TAP))
    for _ in range(KILLS):
        card = hosts.start_card(wire)
        traffic = load(hosts)
        time.sleep(draw.random() * 0.5)
        card.process.send_signal(signal.SIGKILL)
        card.process.wait(lab.PATIENCE)

        def is_as_found():
            link = hosts.link(hosts.middle, WIRE)
            return (link["promiscuity"], hosts.link(hosts.server, TAP)) == found and "xdp" not in link

        until(is_as_found, f"{WIRE} or {TAP} is not as it was, seed {seed}")
        ended(hosts, traffic)
    # In between, too: no interface yet, or half of it.
    for _ in range(KILLS):
        process = subprocess.Popen([hosts.picnic, "run", hosts.work / "card.toml", "--json"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.random() * 0.1)
        process.kill()
        process.wait(lab.PATIENCE)
    with hosts.card(wire):
        until(lambda: answers(hosts), f"no answer after {KILLS} kills, seed {seed}")
    until(lambda: hosts.link(hosts.client, LINK) is not None, f"{LINK} has gone")
    return f"{2 * KILLS} times, seed {seed}"
