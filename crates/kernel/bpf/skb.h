/* Packets handed over as socket buffers, merged ones as one, through the cpumap's rings.
 *
 * Only an XDP program can put a packet into such a ring, and a driver runs that program before socket
 * buffers exist. So each wire has a relay: an interface without other traffic; its XDP program
 * runs in the network stack (generic XDP). A packet takes four steps:
 *
 *   wire, borrowed core   runs the chain; selects the relay's queue, which names the target core
 *                         (receive packet steering brings a veth's packets to the borrowed core)
 *   relay, borrowed core  puts it into the target core's ring; the kernel joins several pages into one
 *   relay, target core    the ring's thread takes it out and sends it back to the wire
 *   wire, target core     counts it and passes it to the network stack
 *
 * Guarantees: as in card.bpf.c. A packet freed at any step is counted, with its reason.
 * Source: Documentation/bpf/map_cpumap.rst; net/core/dev.c, do_xdp_generic.
 */
#pragma once
#include "chain.h"

/* Marks in a packet's tc_index: on the way to a ring, and from there to its wire. */
#define HANDED_OVER 0x9ca7
#define ARRIVING 0x9ca8
/* Bytes that contain all directly read headers. */
#define HEADERS 86

/* For each wire: its interface, its relay, and the number of their network namespace. */
struct way {
	u64 wire;
	u64 relay;
	u64 network;
};

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, MOST_WIRES);
	__type(key, u32);
	__type(value, struct way);
} WAYS SEC(".maps");

/* Whether packets are handed over; otherwise they take their normal path. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} STEERS SEC(".maps");

/* As in the running kernel. */
enum skb_drop_reason { SKB_DROP_REASON_CPU_BACKLOG = 1, SKB_DROP_REASON_XDP = 2 };

struct ns_common {
	u32 inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	u16 queue_mapping;
	u16 tc_index;
	u32 end;
	u8 *head;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	u16 gso_segs;
} __attribute__((preserve_access_index));

inline_always u32 packets_of(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

inline_always int receive_skb(struct __sk_buff *skb, u32 wire)
{
	struct counts *counts = counts_of_core();
	u32 queue, core, packets = packets_of(skb), zero = 0;
	/* Separate, since the verifier forgets the value of a variable whose address is taken. */
	u32 key = wire;
	u32 *steers;
	struct way *way;
	struct ends *ends;

	if (!counts)
		return TCX_NEXT;
	if (skb->tc_index == ARRIVING) {
		skb->tc_index = 0;
		/* A later reader gets the flow's hash. */
		bpf_set_hash_invalid(skb);
		counts->delivered_packets += packets;
		counts->delivered_bytes += skb->len;
		return TCX_NEXT;
	}
	steers = bpf_map_lookup_elem(&STEERS, &zero);
	way = bpf_map_lookup_elem(&WAYS, &key);
	if (!steers || !*steers || !way)
		return TCX_NEXT;
	counts->wire_packets[wire] += packets;
	counts->wire_bytes[wire] += skb->len;
	/* A driver may leave headers in pages. */
	if (skb->data_end - skb->data < HEADERS && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS);
	queue = chain(counts, skb, 1, wire, packets);
	if (queue >= NOWHERE)
		return TCX_DROP;
	if (EXPLAINS) {
		skb->cb[0] = EXPLAINED.hash;
		skb->cb[1] = queue;
		skb->cb[2] = EXPLAINED.kind;
	}
	if (queue >= QUEUES) {
		counts->lost += packets;
		return TCX_DROP;
	}
	core = CORE_OF_QUEUE[queue & (MOST_QUEUES - 1)];
	ends = ends_of(core);
	if (!EXPLAINS && !has_room(ends, core, packets))
		return TCX_DROP;
	put(ends, 1);
	/* The hash is not used there; it carries the queue of the wire that received the packet. */
	bpf_set_hash(skb, skb->queue_mapping);
	skb->queue_mapping = queue + 1;
	skb->tc_index = HANDED_OVER;
	return bpf_redirect(way->relay, REDIRECT_INGRESS);
}

inline_always u32 core_by_relay(u32 queue_mapping)
{
	return CORE_OF_QUEUE[(queue_mapping - 1) & (MOST_QUEUES - 1)];
}

inline_always int send_back(struct __sk_buff *skb, u32 wire)
{
	struct way *way = bpf_map_lookup_elem(&WAYS, &wire);
	u32 core = core_by_relay(skb->queue_mapping);

	/* Nothing else sends through the relay. */
	if (!way || skb->tc_index != HANDED_OVER)
		return TCX_DROP;
	/* Packets redirected before they reached the wire do not run the relay's program. */
	if (bpf_get_smp_processor_id() == core)
		ends_of(core)->taken += 1;
	else
		put(ends_of(core), -1);
	skb->queue_mapping = skb->hash;
	/* Without a hash: the wire itself may be steered, and a packet without a hash stays in place. */
	bpf_set_hash(skb, 0);
	skb->tc_index = ARRIVING;
	return bpf_redirect(way->wire, REDIRECT_INGRESS);
}

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

/* Counts a packet of the card that the kernel frees between two steps. */
inline_always void count_lost(const struct sk_buff *skb, u32 reason)
{
	struct counts *counts = counts_of_core();
	struct net_device *dev = 0;
	struct net *net = 0;
	u32 wire, network = 0, index = 0, end = 0, core = bpf_get_smp_processor_id();
	u16 mark = 0, queue_mapping = 0, segments = 0;
	u8 *head = 0;
	struct way *way;

	READ(mark, skb->tc_index);
	if (!counts || (mark != HANDED_OVER && mark != ARRIVING))
		return;
	READ(dev, skb->dev);
	READ(index, dev->ifindex);
	READ(net, dev->nd_net.net);
	READ(network, net->ns.inum);
	/* A missing wire has interface zero. */
	for (wire = 0; wire < MOST_WIRES; wire++) {
		u32 key = wire;

		way = bpf_map_lookup_elem(&WAYS, &key);
		if (way && index && way->network == network &&
		    (way->wire == index || way->relay == index))
			break;
	}
	if (wire == MOST_WIRES)
		return;
	READ(head, skb->head);
	READ(end, skb->end);
	READ(segments, ((struct skb_shared_info *)(head + end))->gso_segs);
	if (mark == HANDED_OVER) {
		READ(queue_mapping, skb->queue_mapping);
		core = core_by_relay(queue_mapping);
		put(ends_of(core), -1);
	}
	segments = segments ? segments : 1;
	if (reason == __builtin_preserve_enum_value(
				*(enum skb_drop_reason *)SKB_DROP_REASON_CPU_BACKLOG, 1) ||
	    reason == __builtin_preserve_enum_value(
				*(enum skb_drop_reason *)SKB_DROP_REASON_XDP, 1))
		count_full(core, segments);
	else
		counts->refused += segments;
}
