"""Reads captures (pcap, pcapng) into lists of packets, and writes pcap.

    packets = captures.read("web.pcap")             # [bytes, ...], as captured
    by_name = captures.by_interface("trace.pcapng")   # {"queue0": [bytes, ...], ...}

Violations of the formats raise ValueError.

Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
"""

import pathlib
import struct

MICROSECONDS, NANOSECONDS = 0xA1B2C3D4, 0xA1B23C4D
ETHERNET = 1
SECTION, INTERFACE, ENHANCED = 0x0A0D0D0A, 1, 6


def read(path, is_cut_off=False):
    """The packets of a capture, in its order. `is_cut_off`: the last one may be."""
    data = pathlib.Path(path).read_bytes()
    if data[:4] == SECTION.to_bytes(4, "big"):
        return [packet for _, packet in pcapng(data)]
    return list(pcap(data, is_cut_off))


def by_interface(path):
    """The packets of a pcapng file by interface name; those without packets are there too."""
    packets, names = {}, []
    for name, packet in pcapng(pathlib.Path(path).read_bytes(), names):
        packets.setdefault(name, []).append(packet)
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two interfaces have one name: {names}")
    return {name: packets.get(name, []) for name in names}


def pcap(data, is_cut_off=False):
    for order in "<>":
        if struct.unpack_from(order + "I", data)[0] in (MICROSECONDS, NANOSECONDS):
            break
    else:
        raise ValueError("neither pcap nor pcapng")
    if struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF != ETHERNET:
        raise ValueError("not of Ethernet")
    record, at = struct.Struct(order + "4I"), 24
    while at < len(data):
        captured = record.unpack_from(data, at)[2]
        at += record.size
        if at + captured > len(data):
            if is_cut_off:
                return
            raise ValueError("the last packet is cut off")
        yield data[at:at + captured]
        at += captured


def pcapng(data, names=None):
    """Pairs of interface name and packet; all names are put into `names`."""
    names, at, order = [] if names is None else names, 0, "<"
    while at < len(data):
        if data[at:at + 4] == SECTION.to_bytes(4, "big"):
            order = "<" if data[at + 8:at + 12] == bytes.fromhex("4d3c2b1a") else ">"
            names.clear()
        kind, length = struct.unpack_from(order + "2I", data, at)
        block = data[at + 8:at + length - 4]
        if length % 4 or length < 12 or at + length > len(data) \
                or struct.unpack_from(order + "I", data, at + length - 4)[0] != length:
            raise ValueError(f"a block of {length} bytes at {at} of {len(data)}")
        if kind == INTERFACE:
            if struct.unpack_from(order + "H", block)[0] != ETHERNET:
                raise ValueError("not of Ethernet")
            names.append(option(block[8:], 2, order).decode())
        elif kind == ENHANCED:
            interface, _, _, captured, _ = struct.unpack_from(order + "5I", block)
            if 20 + captured > len(block):
                raise ValueError("a packet longer than its block")
            yield names[interface], block[20:20 + captured]
        elif kind in (2, 3):
            raise ValueError("packet blocks of a kind that nothing here writes")
        at += length


def option(data, wanted, order):
    """An option's value; empty if it is not there."""
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "2H", data, at)
        if code == wanted:
            return data[at + 4:at + 4 + length]
        if code == 0:
            break
        at += 4 + (length + 3) // 4 * 4
    return b""


def write_pcap(path, packets, order="<"):
    """Writes packets a microsecond apart; `order` is the byte order of the file's numbers."""
    with open(path, "wb") as file:
        file.write(struct.pack(order + "I2H4I", MICROSECONDS, 2, 4, 0, 0, 262144, ETHERNET))
        for index, packet in enumerate(packets):
            times = divmod(index, 1000000)
            file.write(struct.pack(order + "4I", *times, len(packet), len(packet)) + packet)
