"""The captures that the cards replay, made anew each time.

    with Lab() as lab:
        traffic.record(lab, folder)

Guarantees: bounded, some 30,000 packets and 20 MB in about five seconds.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import sys

from lab import HERE, LINK

HTTP_PORT = 8000
FIRST_IPERF_PORT = 5201
FILE_BYTES = {"small": 100, "middle": 10_000, "large": 100_000}


def record(lab, folder):
    """Makes the captures; returns the paths by name.

    plain.pcap, plain.pcapng    frames as on a wire: none above 1518 bytes
    snap40.pcap, snap60.pcap    the same traffic, frames cut; the second with nanoseconds
    offload.pcap                other traffic, packets of up to 64 KiB as the kernel hands them
                                to an interface that cuts them; nanoseconds
    """
    folder = pathlib.Path(folder)
    serve(lab, folder)
    has_dumpcap = shutil.which("dumpcap") is not None
    with contextlib.ExitStack() as captures:
        captures.enter_context(lab.capture(folder / "plain.pcap"))
        captures.enter_context(lab.capture(folder / "snap40.pcap", "-s", "40"))
        captures.enter_context(lab.capture(folder / "snap60.pcap", "-s", "60", "--nano"))
        if has_dumpcap:
            captures.enter_context(lab.capture(folder / "plain.pcapng"))
        together(lab, [commands for place, network in enumerate(lab.networks)
                       for commands in plain(*network, FIRST_IPERF_PORT + 2 * place)])
    lab.offloads("on")
    with lab.capture(folder / "offload.pcap", "--nano"):
        together(lab, offloaded(lab.networks[0]))
    shutil.rmtree(folder / "served")
    return {path.name: path for path in sorted(folder.glob("*.pcap*")) if path.suffix != ".log"}


def serve(lab, folder):
    """Starts the web server."""
    served = folder / "served"
    served.mkdir(exist_ok=True)
    for name, size in FILE_BYTES.items():
        (served / name).write_bytes(os.urandom(size))
    lab.listen(HTTP_PORT, sys.executable, "-m", "http.server", str(HTTP_PORT), "--bind", "::",
               "--directory", str(served))


def together(lab, lists):
    """Runs lists of commands side by side on the client, each in its order."""
    def one_by_one(commands):
        for command in commands:
            if command[0] == "iperf3":
                transfer(lab, command)
            else:
                lab.run(lab.client, *command)

    with concurrent.futures.ThreadPoolExecutor(len(lists)) as pool:
        try:
            running = [pool.submit(one_by_one, commands) for commands in lists]
            for future in concurrent.futures.as_completed(running):
                future.result()
        except BaseException:
            lab.end_children()
            raise


def transfer(lab, command):
    """Runs a client of iperf3 against a new server.

    A server that has had a client closes its socket and opens another: who comes in between is
    refused or reset.
    """
    port = command[command.index("-p") + 1]
    server = lab.listen(int(port), "iperf3", "-s", "-1", "-p", port)
    lab.run(lab.client, *command)
    lab.wait(server)


def plain(name, ipv4, ipv6, tags, _, port):
    """Two lists, IPv4 and IPv6, with a port for iperf3 each."""
    small = bool(tags)
    size = "300K" if small else "1M"
    for place, address in enumerate((f"{ipv4}2", f"{ipv6}2")):
        iperf = ["iperf3", "-c", address, "-p", str(port + place), "-n", size]
        udp = [*iperf, "-u", "-b", "100M", "-l", "400"]
        commands = [
            ["ping", "-q", "-c", "20", "-i", "0.01", address],
            ["ping", "-q", "-c", "10", "-i", "0.01", "-s", "3000", address],
            iperf,
            [*iperf, "-P", "8", "-R"],
            udp,
            [*udp, "-P", "8"],
            fetch(address, 5 if small else 30),
        ]
        if place == 0:
            commands.append(["ping", "-q", "-c", "3", "-i", "0.01", "-R", address])
            if name == LINK:
                commands.append([sys.executable, str(HERE / "datagrams.py"), name, address,
                                 f"{ipv6}2"])
        yield commands


def offloaded(network):
    """Little else than TCP, in few packets."""
    _, ipv4, ipv6, _, _ = network
    return [[["iperf3", "-c", f"{prefix}2", "-p", str(FIRST_IPERF_PORT + place), "-n", "8M", "-P",
              streams],
             fetch(f"{prefix}2", 5)]
            for place, (prefix, streams) in enumerate(((ipv4, "1"), (ipv6, "8")))]


def fetch(address, times):
    """curl: each file this many times, with a new connection each time."""
    host = f"[{address}]" if ":" in address else address
    return ["curl", "-s", "-f", "-g", *(
        part for name in FILE_BYTES for _ in range(times)
        for part in ("-o", "/dev/null", f"http://{host}:{HTTP_PORT}/{name}"))]
