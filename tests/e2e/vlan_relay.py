#!/usr/bin/env python3
"""VLAN subinterfaces over TAP, for kernels without 802.1Q.

    vlan_relay.py LOWER NAME=TYPE:ID[,TYPE:ID] ...
    vlan_relay.py veth0 vlan5=8100:5 double=88a8:7,8100:9

Creates TAP interfaces in its own network namespace. Packets that the kernel sends to one leave LOWER
with its tags, the outer one first; packets that LOWER receives with exactly these tags arrive on it
without them. The interfaces end with the program.

Source: IEEE 802.1Q; packet(7), PACKET_AUXDATA; the kernel's tuntap.rst.
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
ETH_P_ALL = 3
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
VLAN_VALID, VLAN_TPID_VALID = 1 << 4, 1 << 6
FRAME_BYTES = 65536


def tap(name):
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return file


def lower(name):
    """A socket that gets what arrives with a VLAN tag."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # ldb [vlan tag present]; jeq 0: no packet, else all of it
    steps = ((0x20, 0, 0, 0xFFFFF000 + 48), (0x15, 0, 1, 0), (6, 0, 0, 0), (6, 0, 0, 0xFFFFFFFF))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    packets.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                       struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program)))
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    packets.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    packets.bind((name, ETH_P_ALL))
    return packets


def receive(packets):
    """A frame with its outer tag put back, which the kernel has taken out; None if it was sent."""
    frame, ancillary, _, address = packets.recvmsg(FRAME_BYTES, socket.CMSG_SPACE(20))
    if address[2] == PACKET_OUTGOING:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, control, protocol = struct.unpack("3I4H", data[:20])
            if status & VLAN_VALID:
                protocol = protocol if status & VLAN_TPID_VALID else 0x8100
                return frame[:12] + struct.pack(">2H", protocol, control) + frame[12:]
    return frame


def forward(packets, taps):
    """Moves frames both ways for ever. `taps`: file by tags."""
    tags = {file: own for own, file in taps.items()}
    while True:
        for ready in select.select([packets, *tags], [], [])[0]:
            try:
                if ready is packets:
                    frame = receive(packets)
                    for own, file in taps.items():
                        if frame and frame[12:12 + len(own)] == own:
                            os.write(file, frame[:12] + frame[12 + len(own):])
                else:
                    frame = os.read(ready, FRAME_BYTES)
                    packets.send(frame[:12] + tags[ready] + frame[12:])
            except OSError:
                pass  # Not up yet, or a queue is full: a network may lose packets.


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    taps = {}
    for argument in arguments[1:]:
        name, _, tags = argument.partition("=")
        own = b"".join(struct.pack(">2H", int(kind, 16), int(number)) for kind, number in
                       (tag.split(":") for tag in tags.split(",")))
        taps[own] = tap(name)
    forward(lower(arguments[0]), taps)


if __name__ == "__main__":
    main(sys.argv[1:])
