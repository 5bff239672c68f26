"""The cards that the captures run through, and what is expected of each.

    for card in cards.all_of(paths): card.text(trace_path)

Each card writes one pcapng interface per target queue, which shows the queue of every
packet.
"""

import dataclasses
import json

from oracle import ALL_TYPES

# Another key than the usual one, and longer.
KEY = bytes((place * 73 + 41) % 256 for place in range(52)).hex()


@dataclasses.dataclass
class Card:
    """A card: what differs from the defaults."""

    name: str
    captures: list
    queues: int = 4
    rss: dict = dataclasses.field(default_factory=dict)
    card: dict = dataclasses.field(default_factory=dict)
    wire: dict = dataclasses.field(default_factory=dict)
    fault: dict = dataclasses.field(default_factory=dict)
    host: dict = dataclasses.field(default_factory=dict)
    pool: dict = dataclasses.field(default_factory=dict)
    # Whether packets may be dropped; each must be counted.
    lossy: bool = False
    # Reads only complete records, not a truncated one at the end of the file.
    cut_off: bool = False

    @property
    def loops(self):
        return self.wire.get("loops", 1)

    @property
    def damages(self):
        """Whether packets come out that did not go in, or in another order."""
        return bool(self.fault.keys() - {"drop"})

    def text(self, trace, buffer_bytes):
        """The card file."""
        sections = [("[card]", self.card), ("[pool]", self.pool)]
        for path in self.captures:
            sections.append(("[[wire]]", {"port": "pcap", "path": str(path), **self.wire}))
            if self.fault:
                sections.append(("[wire.fault]", self.fault))
        sections += [
            ("[[rx]]", {"function": "rss", **self.rss}),
            ("[host]", {"queues": self.queues, **self.host}),
            ("[trace]", {"path": str(trace), "stages": ["queue"], "buffer_bytes": buffer_bytes}),
        ]
        return "\n".join("\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in
                                            keys.items()), ""]) for head, keys in sections)


def all_of(paths):
    """All cards. `paths`: the captures, by name."""
    plain, offload = paths["plain.pcap"], paths["offload.pcap"]
    snap40, snap60 = paths["snap40.pcap"], paths["snap60.pcap"]
    pcapng = paths.get("plain.pcapng", plain)
    return [
        Card("toeplitz", [plain]),
        Card("toeplitz, pcapng, 8 queues", [pcapng], 8),
        Card("toeplitz, other key, table of 4096", [plain], 8, {"key": KEY, "table_size": 4096}),
        Card("jhash", [plain], rss={"hash": "jhash"}),
        Card("jhash, 8 queues, started from 12345", [plain], 8,
             {"hash": "jhash", "jhash_init": 12345}),
        Card("lookup2", [pcapng], 8, {"hash": "lookup2"}),
        Card("table of 7", [plain], rss={"table_size": 7}),
        Card("explicit table, queue 6 for the rest", [plain], 8,
             {"table": [7, 0, 0, 3, 1, 5, 5, 2, 4, 1, 0], "default_queue": 6}),
        Card("symmetric", [plain], 8, {"symmetric": True}),
        Card("UDP by ports too", [plain], 8, {"types": list(ALL_TYPES)}),
        Card("only addresses, IPv6 off, 3 for the rest", [plain], rss={"types": ["ipv4"]},
             card={"default_queue": 3}),
        Card("only ports of TCP over IPv6", [plain], rss={"types": ["tcp-ipv6"]}),
        Card("1 queue", [plain], 1),
        Card("frames of 64 KiB", [offload], 8),
        Card("frames of 64 KiB in buffers of 64 bytes", [offload], 4, {"hash": "jhash"},
             pool={"buffer_size": 64, "buffers": 65536}),
        Card("headers across buffers of 64 bytes", [plain], 8, pool={
            "buffer_size": 64, "buffers": 65536}),
        Card("two wires", [plain, offload], 8),
        Card("two wires, bursts of 1, small rings", [snap60, offload], rss={"hash": "lookup2"},
             card={"burst": 1}, host={"ring_size": 64}),
        Card("cut to 40 bytes", [snap40], 8),
        Card("cut to 60 bytes, nanoseconds", [snap60], 8),
        Card("cut to 60 bytes, three times over", [snap60], wire={"loops": 3}),
        Card("big-endian file", [paths["swapped.pcap"]]),
        Card("file cut off", [paths["cut.pcap"]], cut_off=True),
        Card("as recorded, 20 times as fast", [snap60], lossy=True,
             wire={"pace": "recorded", "speed": 20.0}),
        Card("wire that loses", [plain], 8, fault={"drop": 0.1}, lossy=True),
        Card("wire that loses, doubles, reorders, damages", [plain], 8, lossy=True, fault={
            "drop": 0.02, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.2, "truncate": 0.2}),
        Card("that wire, frames of 64 KiB", [offload], 8, lossy=True, fault={
            "drop": 0.02, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.2, "truncate": 0.2}),
    ]
