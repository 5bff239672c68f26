"""iperf3 between the client and the server of a lab."""

import json
import subprocess
import time

import lab
from check import Wrong

PORT = 5201
# The window of a stream, by the number of streams. Together they stay below the queues of the kernel's
# interfaces, whose drops would be blamed on the card.
WINDOWS = {1: "2M", 8: "256K", 64: "64K"}
# Seconds of one transfer; transfers take most of the test's time.
AMOUNT = ("-t", "1")


def transfer(hosts, streams, reverse, *options, family=0, window=None, amount=AMOUNT):
    """iperf3 from client to server or back; its complete result, without an error."""
    # Each on one core: threads that wander would hand a flow's packets to the veth from two.
    command = ["taskset", "-c", str(hosts.CLIENT_CORE), "iperf3", "-J", "-c", hosts.SERVER[family],
               "-p", str(PORT), *amount, "-P", str(streams), "-w", window or WINDOWS[streams],
               *(["-R"] if reverse else []), *options]
    end = time.monotonic() + lab.PATIENCE
    server = hosts.serve("taskset", "-c", str(hosts.SERVER_CORE), "iperf3", "-J", "-s", "-p", str(PORT),
                         port=PORT)
    while True:
        told = subprocess.run(["ip", "netns", "exec", hosts.client, *command], stdout=subprocess.PIPE,
                              text=True, timeout=lab.PATIENCE)
        result = json.loads(told.stdout)
        if "error" not in result:
            break
        if "busy" not in result["error"] or time.monotonic() > end:
            raise Wrong(f"{' '.join(command)}: {result['error']}")
        time.sleep(0.1)
    hosts.end(server)
    if told.returncode != 0:
        raise Wrong(f"{' '.join(command)}: exit code {told.returncode}")
    return result


def gigabits(result):
    """The receiver's rate of a TCP transfer, in Gbit/s."""
    return result["end"]["sum_received"]["bits_per_second"] / 1e9


def all_arrived(hosts, streams, reverse, rate=200, **how):
    """A UDP transfer at this many Mbit/s, without loss or reordering; returns the datagrams."""
    receiver = hosts.client if reverse else hosts.server
    before, refused = hosts.counters(receiver), sum(hosts.refused())
    result = transfer(hosts, streams, reverse, "-u", "-b", f"{rate // streams}M", "-l", "1400",
                      "--get-server-output", **how)
    after = hosts.counters(receiver)
    # Datagrams that find the receiver's buffer full have passed the card; those that an interface of the
    # kernel drops, its queue full, have not come to it, or have left it. Its own drops are in its ledger.
    full = sum(after[name] - before[name] for name in ("UdpRcvbufErrors", "Udp6RcvbufErrors"))
    full += sum(hosts.refused()) - refused
    lost = result["end"]["sum"]["lost_packets"]
    # The sender does not know; a duplicate counts, too.
    told = result if reverse else result["server_output_json"]
    late = sum(stream["udp"]["out_of_order"] for stream in told["end"]["streams"])
    if lost > full or late:
        raise Wrong(f"{streams} streams, reverse {reverse}: {lost} lost, {full} for lack of room in "
                    f"the kernel, {late} out of order")
    return result["end"]["sum"]["packets"]
