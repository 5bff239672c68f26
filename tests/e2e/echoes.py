"""Echo requests of several flows at a steady pace, each answer checked.

    with Echoes(address, sources) as echoes:
        echoes.go_on("after the restart")

Guarantees: an answer that comes twice, out of the order of its flow, or changed raises `Wrong`. Lost
answers are allowed, as what answers may be killed meanwhile.
"""

import select
import socket
import struct
import threading
import time

from check import Wrong

# Rounds per second, with one request of each flow.
PACE = 100
PATIENCE = 600
# Answers of each flow after which traffic is said to go on.
ENOUGH = 20


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def request(flow, number):
    body = struct.pack("!I", number) + bytes((flow * 7 + number + index) & 0xff for index in range(200))
    head = struct.pack("!BBHHH", 8, 0, 0, flow, number & 0xffff)
    return struct.pack("!BBHHH", 8, 0, checksum(head + body), flow, number & 0xffff) + body


class Echoes(threading.Thread):
    """The flows; each has an address of this host as its source."""

    def __init__(self, address, sources):
        super().__init__(daemon=True)
        self.address, self.wrong, self.is_over = address, None, False
        self.sockets = []
        for source in sources:
            flow = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            flow.bind((source, 0))
            flow.setblocking(False)
            self.sockets.append(flow)
        self.sent = 0
        self.last, self.count = [-1] * len(sources), [0] * len(sources)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        self.is_over = True
        self.join()
        for flow in self.sockets:
            flow.close()
        if self.wrong and not kind:
            raise Wrong(self.wrong)

    def run(self):
        while not self.is_over and not self.wrong:
            for flow, end in enumerate(self.sockets):
                try:
                    end.sendto(request(flow, self.sent), (self.address, 0))
                except OSError:
                    # The card's end of the wire has no address for it at the moment.
                    pass
            self.sent += 1
            wait = time.monotonic() + 1 / PACE
            while (left := wait - time.monotonic()) > 0:
                for end in select.select(self.sockets, [], [], left)[0]:
                    self.take(self.sockets.index(end), end.recv(2048)[20:])

    def take(self, flow, answer):
        kind, _, _, number, _ = struct.unpack_from("!BBHHH", answer)
        if kind != 0 or number != flow:
            return
        (number,) = struct.unpack_from("!I", answer, 8)
        if number <= self.last[flow]:
            self.wrong = f"flow {flow}: answer {number} after {self.last[flow]}"
        elif answer[8:] != request(flow, number)[8:]:
            self.wrong = f"flow {flow}: answer {number} is changed"
        self.last[flow] = number
        self.count[flow] += 1

    def go_on(self, when):
        """Waits until each flow has had more answers."""
        before, end = list(self.count), time.monotonic() + PATIENCE
        while any(now < was + ENOUGH for now, was in zip(self.count, before)):
            if self.wrong or time.monotonic() > end:
                raise Wrong(f"{when}: {self.wrong or 'no answers'}: {before}, {self.count}")
            time.sleep(0.02)
