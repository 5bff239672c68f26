"""Gaps and disorder that TCP saw, from the kernel's counters, and whether the card caused them.

    witness = Witness(hosts, namespaces, links)
    ...                                      # traffic
    again = witness.judge("8 streams")       # retransmitted segments; Wrong if the card caused them
"""

from check import Wrong

# Signs, at the receiver or the sender, that packets did not come in the order they were sent in.
DISORDER = ("TcpExtTCPOFOQueue", "TcpExtTCPSACKReorder", "TcpExtTCPTSReorder",
            "TcpExtTCPRenoReorder", "TcpExtTCPFastRetrans", "TcpExtTCPSackRecovery")
# Packets that the receiving kernel dropped itself: the sender repeats them.
REFUSED = ("TcpExtTCPBacklogDrop", "TcpExtTCPRcvQDrop", "TcpExtTCPZeroWindowDrop",
           "TcpExtPruneCalled", "TcpExtTCPOFODrop")


class Witness:
    """The initial counters of these namespaces and links."""

    def __init__(self, hosts, namespaces, links):
        self.hosts, self.namespaces, self.links = hosts, namespaces, links
        self.counters, self.drops = self.look()

    def look(self):
        counters = [self.hosts.counters(namespace) for namespace in self.namespaces]
        stats = [self.hosts.link(*link)["stats64"] for link in self.links]
        return counters, [stat[way]["dropped"] for stat in stats for way in ("rx", "tx")]

    def judge(self, what):
        """Looks whether the card lost anything or let it be overtaken; returns retransmissions.

        What an interface of the kernel drops, its queue full, is sent again and is not the card's
        doing: as many fast retransmissions are none of its faults. Its own drops are in its ledger.
        """
        counters, drops = self.look()

        def sums(names):
            return {name: sum(after[name] - before.get(name, 0) for before, after in
                              zip(self.counters, counters) if name in after) for name in names}

        drops = [after - before for before, after in zip(self.drops, drops)]
        disorder, by_kernel = sums(DISORDER), sum(drops)
        caused = any(disorder.values()) if not by_kernel else (
            disorder["TcpExtTCPFastRetrans"] > by_kernel)
        if caused and not any(sums(REFUSED).values()):
            links = ", ".join(link for _, link in self.links)
            raise Wrong(f"{what}: TCP saw disorder: {({name: n for name, n in disorder.items() if n})}; "
                        f"dropped by {links}, in and out: {' '.join(map(str, drops))}")
        again, twice = sums(("TcpRetransSegs", "TcpExtTCPDSACKRecv")).values()
        if twice > again:
            raise Wrong(f"{what}: {twice} segments came twice, but {again} were sent again")
        return again
