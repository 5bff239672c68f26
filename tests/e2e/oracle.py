"""The queue of a packet, computed independently of picnic.

    from oracle import Rss
    Rss(queues=4, hash="jhash").queue(frame)    # 0 to 3

Follows the specifications below and the help of `picnic functions rss`, slowly and plainly: Toeplitz
is computed bit by bit. `self_test` compares the hashes with published values,
crates/hash/tests/vectors.

Where the specifications leave a choice, it follows picnic's documentation:

- A packet has a hash type if the fields for it were captured: the fixed IP header, the ports. Bytes
  after the IP length are padding; an IP length of 0 means the frame's length.
- Fragments, including the first, are hashed over addresses; an atomic IPv6 fragment (RFC 6946) counts
  as a whole packet.
- At most two VLAN tags and eight IPv6 extension headers are parsed.
- The hash over addresses alone equals the hash with ports of zero.
- Headers are read up to the end of a packet's first buffer, including headroom: `seen` bytes.

Source: IEEE 802.3, 802.1Q; RFC 791, 8200, 4302, 6946; IANA, "IPv6 Extension
Header Types"; Microsoft, "RSS Hashing Functions" and "RSS hashing types"; Bob
Jenkins, lookup3.c (2006) and Dr. Dobb's Journal 22(9), 1997 (lookup2).
"""

import collections
import functools
import ipaddress
import json
import pathlib

MICROSOFT_KEY = bytes.fromhex(
    "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
ALL_TYPES = ("ipv4", "tcp-ipv4", "udp-ipv4", "ipv6", "tcp-ipv6", "udp-ipv6")
DEFAULT_TYPES = tuple(name for name in ALL_TYPES if not name.startswith("udp-"))

VLAN_TYPES = (0x8100, 0x88A8)
TCP, UDP, FRAGMENT, AUTHENTICATION = 6, 17, 44, 51
# All but ESP (50) and the two for experiments, whose lengths cannot be known.
EXTENSIONS = {0, 43, FRAGMENT, AUTHENTICATION, 60, 135, 139, 140}
MOST_EXTENSIONS = 8

# family: "ipv4", "ipv6" or None; protocol: behind the extension headers, None if not
# reached; ports: four bytes, None if there are none; extensions: header bytes
# of IPv4 options or the count of IPv6 extension headers.
Layers = collections.namedtuple(
    "Layers", "tags type family addresses protocol ports fragment extensions")


def number(data, at, size=2):
    return int.from_bytes(data[at:at + size], "big")


@functools.lru_cache(1 << 17)
def layers(frame):
    """The content of a frame."""
    if len(frame) < 14:
        return Layers(0, None, None, None, None, None, False, 0)
    at, tags = 12, 0
    while tags < 2 and number(frame, at) in VLAN_TYPES and len(frame) >= at + 6:
        at, tags = at + 4, tags + 1
    kind, start = number(frame, at), at + 2
    if kind == 0x0800 and len(frame) >= start + 20 and frame[start] >> 4 == 4:
        found = ipv4(frame, start)
        addresses = frame[start + 12:start + 20]
        return Layers(tags, kind, "ipv4", addresses, *found)
    if kind == 0x86DD and len(frame) >= start + 40 and frame[start] >> 4 == 6:
        found = ipv6(frame, start)
        return Layers(tags, kind, "ipv6", frame[start + 8:start + 40], *found)
    return Layers(tags, kind, None, None, None, None, False, 0)


def ipv4(frame, start):
    header = (frame[start] & 15) * 4
    end = min(len(frame), start + (number(frame, start + 2) or len(frame)))
    protocol = frame[start + 9]
    fragment = number(frame, start + 6) & 0x3FFF != 0
    ports = None
    if header >= 20 and not fragment:
        ports = ports_of(frame, protocol, start + header, end)
    return protocol, ports, fragment, max(0, header - 20)


def ipv6(frame, start):
    at = start + 40
    end = min(len(frame), at + (number(frame, start + 4) or len(frame)))
    following, count = frame[start + 6], 0
    while following in EXTENSIONS:
        if count == MOST_EXTENSIONS or at + 8 > end:
            return None, None, False, count
        count += 1
        if following == FRAGMENT:
            if number(frame, at + 2) & 0xFFF9:
                return frame[at], None, True, count
            length = 8
        elif following == AUTHENTICATION:
            length = (frame[at + 1] + 2) * 4
        else:
            length = (frame[at + 1] + 1) * 8
        following, at = frame[at], at + length
    return following, ports_of(frame, following, at, end), False, count


def ports_of(frame, protocol, at, end):
    if protocol in (TCP, UDP) and at + 4 <= end:
        return frame[at:at + 4]
    return None


# ---------------------------------------------------------------- hashes


def toeplitz(key, data):
    """For each input bit that is set, the 32 key bits that begin at its place, added up by XOR."""
    key_bits, bits = int.from_bytes(key, "big"), len(key) * 8
    result = 0
    for place in range(len(data) * 8):
        if data[place // 8] & 0x80 >> place % 8:
            result ^= key_bits >> bits - 32 - place & 0xFFFFFFFF
    return result


MASK = 0xFFFFFFFF


def rotate(value, by):
    return (value << by | value >> 32 - by) & MASK


def words(data):
    padded = data + bytes(-len(data) % 12)
    return [int.from_bytes(padded[at:at + 4], "little") for at in range(0, len(padded), 4)]


def lookup3(data, initial=0):
    a = b = c = 0xDEADBEEF + len(data) + initial & MASK
    if not data:
        return c
    key = words(data)
    while len(key) > 3:
        a, b, c = a + key[0] & MASK, b + key[1] & MASK, c + key[2] & MASK
        key = key[3:]
        # mix()
        a = (a - c & MASK) ^ rotate(c, 4)
        c = c + b & MASK
        b = (b - a & MASK) ^ rotate(a, 6)
        a = a + c & MASK
        c = (c - b & MASK) ^ rotate(b, 8)
        b = b + a & MASK
        a = (a - c & MASK) ^ rotate(c, 16)
        c = c + b & MASK
        b = (b - a & MASK) ^ rotate(a, 19)
        a = a + c & MASK
        c = (c - b & MASK) ^ rotate(b, 4)
        b = b + a & MASK
    a, b, c = a + key[0] & MASK, b + key[1] & MASK, c + key[2] & MASK
    # final()
    c = (c ^ b) - rotate(b, 14) & MASK
    a = (a ^ c) - rotate(c, 11) & MASK
    b = (b ^ a) - rotate(a, 25) & MASK
    c = (c ^ b) - rotate(b, 16) & MASK
    a = (a ^ c) - rotate(c, 4) & MASK
    b = (b ^ a) - rotate(a, 14) & MASK
    return (c ^ b) - rotate(b, 24) & MASK


def lookup2(data, initial=0):
    a = b = 0x9E3779B9
    c = initial
    whole = len(data) // 12 * 12
    # The lowest byte of the last c is the length's, so that the rest's third word moves up.
    rest = data[whole:whole + 8] + bytes(8 - len(data[whole:whole + 8])) + b"\0" + data[whole + 8:]
    for block in [words(data[at:at + 12]) for at in range(0, whole, 12)] + [None]:
        if block is None:
            c = c + len(data) & MASK
            block = words(rest)
        a, b, c = a + block[0] & MASK, b + block[1] & MASK, c + block[2] & MASK
        for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
            a = (a - b - c & MASK) ^ c >> first
            b = (b - c - a & MASK) ^ a << second & MASK
            c = (c - a - b & MASK) ^ b >> third
    return c


# ---------------------------------------------------------------- queues


class Rss:
    """The function `rss`, with the keys it has in a card file."""

    def __init__(self, queues, hash="toeplitz", key=None, symmetric=False, jhash_init=0,
                 table_size=128, table=None, types=DEFAULT_TYPES, default_queue=0, seen=2176):
        key = bytes.fromhex(key) if key else b"\x6d\x5a" * 20 if symmetric else MICROSOFT_KEY
        self.hash = {
            "toeplitz": lambda data: toeplitz(key, data),
            "jhash": lambda data: lookup3(data, jhash_init),
            "lookup2": lambda data: lookup2(data, jhash_init),
        }[hash]
        self.table = table or [entry % queues for entry in range(table_size)]
        self.types = set(types)
        self.default_queue = default_queue
        self.seen = seen
        self.known = {}

    def input(self, found):
        """The bytes that are hashed; None if there is no hash."""
        if found.family is None:
            return None
        if found.ports is not None:
            name = "tcp-" if found.protocol == TCP else "udp-"
            if name + found.family in self.types:
                return found.addresses + found.ports
        return found.addresses + bytes(4) if found.family in self.types else None

    def is_hashed(self, frame):
        """Whether a frame has a hash."""
        return self.input(layers(frame[:self.seen])) is not None

    def queue_of(self, found):
        """The queue of a packet with these layers."""
        data = self.input(found)
        if data is None:
            return self.default_queue
        if data not in self.known:
            self.known[data] = self.table[self.hash(data) % len(self.table)]
        return self.known[data]

    def queue(self, frame):
        return self.queue_of(layers(frame[:self.seen]))


# ---------------------------------------------------------------- against published values


def self_test(vectors):
    """Compares the hashes with published values; returns how many were compared."""
    count = 0

    def same(what, found, expected):
        nonlocal count
        count += 1
        if found != int(expected, 16):
            raise AssertionError(f"oracle, {what}: {found:08x}, published is {expected}")

    vectors = pathlib.Path(vectors)
    published = json.loads((vectors / "toeplitz.json").read_text())
    key = bytes.fromhex(published["key"])
    for vector in published["vectors"]:
        addresses = b"".join(ipaddress.ip_address(vector[end]).packed for end in ("src", "dst"))
        ports = vector["sport"].to_bytes(2, "big") + vector["dport"].to_bytes(2, "big")
        same(f"Toeplitz of {vector}", toeplitz(key, addresses), vector["hash_2tuple"])
        same(f"Toeplitz of {vector}", toeplitz(key, addresses + ports), vector["hash_4tuple"])
    published = json.loads((vectors / "jhash.json").read_text())
    for name, function in (("lookup3", lookup3), ("lookup2", lookup2)):
        for vector in published[name]:
            data = bytes(range(vector["key_len"]))
            same(f"{name} of {vector}", function(data, vector["init"]), vector["hash"])
        for vector in published[name + "_text"]:
            data = vector["key"].encode()
            same(f"{name} of {vector}", function(data, vector.get("init", 0)), vector["hash"])
    return count


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    print(self_test(root / "crates/hash/tests/vectors"), "published values, all as computed")
