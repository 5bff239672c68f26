#!/usr/bin/env -S python3 -B
"""A front end of vhost-user that means harm, until it is killed.

    hostile.py SOCKET

It connects again and again. It sends wrong messages in any order, or starts its rings as it should and
then writes any bytes to them while the card uses them, or takes away their memory.
"""

import os
import random
import socket
import struct
import sys
import time

MEMORY, USER = 0x40_0000, 0x7f00_0000_0000
# VERSION_1, protocol features, MRG_RXBUF, indirect descriptors; those of the protocol that the card has.
FEATURES, PROTOCOL = 1 << 32 | 1 << 30 | 1 << 15 | 1 << 28, 0x1_b01f
RING_PACKED = 1 << 34
# Bytes from a ring's descriptors to its available and used parts; to the next ring.
AVAILABLE, USED, RING = 0x1000, 0x2000, 0x4000
SIZE = 64


def main():
    # The same attack each time.
    chance, event = random.Random(5), os.eventfd(0)
    while True:
        memory = os.memfd_create("guest")
        os.truncate(memory, MEMORY)
        with socket.socket(socket.AF_UNIX) as card:
            card.settimeout(5)
            try:
                card.connect(sys.argv[1])
                if chance.random() < 0.5:
                    wrong_messages(card, chance, memory, event)
                else:
                    wrong_rings(card, chance, memory, event)
            except OSError:
                # The card has had enough, or has ended.
                time.sleep(0.01)
        os.close(memory)


def send(card, request, body=b"", files=(), flags=1):
    socket.send_fds(card, [struct.pack("<3I", request, flags, len(body)) + body], files)


def words(*values):
    return struct.pack(f"<{len(values)}Q", *(value & 0xffff_ffff_ffff_ffff for value in values))


def wrong_messages(card, chance, memory, event):
    if chance.random() < 0.8:
        send(card, 2, words(FEATURES))
        send(card, 16, words(PROTOCOL))
    for _ in range(40):
        request = chance.randrange(50)
        size = chance.choice([0, 1, 4096, MEMORY, 1 << 40, -1])
        region = (chance.choice([0, 4096, -4096]), size, USER + chance.choice([0, 4096, -4096]), 0)
        body = {5: words(chance.choice([0, 1, 9]), *region), 37: words(0, *region), 38: words(0, *region)}
        other = words(*(chance.choice([0, 1, 64 << 32, USER, -1]) for _ in range(chance.randrange(6))))
        files = chance.choices([memory, event, 0], k=chance.choice([0, 1, 1, 3]))
        send(card, request, body.get(request, other), files, chance.choice([1, 1, 1, 9, 5, 0]))
    card.send(os.urandom(20))


def wrong_rings(card, chance, memory, event):
    packed = chance.choice([0, RING_PACKED])
    send(card, 2, words(FEATURES | packed))
    send(card, 16, words(PROTOCOL))
    send(card, 5, words(1, 0, MEMORY, USER, 0), [memory])
    # Two pairs.
    for ring in range(4):
        at = USER + RING * ring
        send(card, 8, struct.pack("<II", ring, SIZE))
        send(card, 9, words(ring, at, at + USED, at + AVAILABLE, 0))
        send(card, 13, words(ring), [event])
        send(card, 12, words(ring), [event])
        send(card, 18, struct.pack("<II", ring, 1))
    for _ in range(200):
        at, place = RING * chance.randrange(4), chance.randrange(SIZE)
        flags = chance.choice([0, 1, 2, 3, 4, 0x80, 0x83, 0x8082])
        address, value = chance.choice([
            (at + 16 * place, words(chance.randrange(2 * MEMORY))),
            (at + 16 * place + 8, struct.pack("<IHH", chance.randrange(5000), flags, place)),
            (at + 16 * place + 8, struct.pack("<IHH", chance.randrange(5000), place, flags)),
            (at + AVAILABLE, struct.pack("<HH", 0, chance.randrange(80))),
            (at + AVAILABLE + 4, struct.pack("<H", chance.randrange(SIZE)) * SIZE),
            (chance.randrange(MEMORY - 8), os.urandom(8)),
        ])
        os.pwrite(memory, value, address)
        if chance.random() < 0.1:
            os.eventfd_write(event, 1)
            time.sleep(0.001)
    if chance.random() < 0.2:
        os.truncate(memory, chance.randrange(MEMORY))
        time.sleep(0.01)


if __name__ == "__main__":
    main()
