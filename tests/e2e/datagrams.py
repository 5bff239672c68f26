#!/usr/bin/env python3
"""Packets that the usual tools do not send: many ports, options, fragments, odd frames.

    datagrams.py INTERFACE IPV4 IPV6      to these addresses, on this interface

The kernel makes all but the last frames, with socket options. No listener is needed.

Source: ip(7), ipv6(7), packet(7); RFC 791, 3542.
"""

import socket
import sys

FLOWS = 300
PADDING_OPTION = bytes((1, 4, 0, 0, 0, 0))
ESP, SCTP, NO_NEXT_HEADER = 50, 132, 59


def send(family, address, options=(), ports=range(20000, 20000 + FLOWS), size=100):
    """One datagram from a new socket to each port."""
    for port in ports:
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            for option in options:
                datagrams.setsockopt(*option)
            try:
                datagrams.sendto(bytes(size), (address, port))
            except ConnectionRefusedError:
                pass


def raw(family, address, protocol, payload):
    with socket.socket(family, socket.SOCK_RAW, protocol) as packets:
        packets.sendto(payload, (address, 0))


def frames(interface):
    """Frames that are no IP, or hardly."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as packets:
        packets.bind((interface, 0))
        addresses = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02"
        ipv4 = bytes.fromhex("45000030000100004011000a0a0000010a000002") + bytes(28)
        tag = bytes.fromhex("81000007")
        for rest in (
            b"\x88\xcc" + bytes(46),  # LLDP
            b"\x00\x26\x42\x42\x03" + bytes(43),  # 802.3, a length in place of a type
            b"\x88\xb5",  # only the header
            b"\x08\x00" + bytes(46),  # IPv4 in name only
            b"\x86\xdd" + bytes(46),  # the same for IPv6
            b"\x08\x00" + ipv4 + b"padding not of the packet",
            tag * 3 + b"\x08\x00" + ipv4,  # one tag too many
            tag + b"\x08\x00" + ipv4,
            b"\x08\x00" + ipv4[:20],  # truncated after the header
            b"\x08\x00" + b"\x46" + ipv4[1:22],  # cut within its options
        ):
            packets.send(addresses + rest)


def main(interface, ipv4, ipv6):
    v4, v6 = socket.AF_INET, socket.AF_INET6
    few = range(30000, 30020)
    send(v4, ipv4)
    send(v6, ipv6)
    # Fragments.
    send(v4, ipv4, ports=few, size=5000)
    send(v6, ipv6, ports=few, size=5000)
    # Headers between IP and UDP.
    send(v4, ipv4, [(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x01\x01\x01\x00")], few)
    hop = (socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, b"\0\0" + PADDING_OPTION)
    end = (socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS,
           b"\0\1" + PADDING_OPTION + bytes((1, 6)) + bytes(6))
    send(v6, ipv6, [hop], few)
    send(v6, ipv6, [end], few)
    send(v6, ipv6, [hop, end], few)
    send(v6, ipv6, [hop, end], few, size=4000)
    # Neither TCP nor UDP.
    for family, address in ((v4, ipv4), (v6, ipv6)):
        for protocol in (ESP, SCTP):
            raw(family, address, protocol, bytes(64))
    raw(v6, ipv6, NO_NEXT_HEADER, b"")
    frames(interface)


if __name__ == "__main__":
    main(*sys.argv[1:])
