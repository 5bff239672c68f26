/* Packets handed over as socket buffers, by receive packet steering.
 *
 * The kernel steers what an interface receives by a hash, before a program sees it; a program can
 * set the hash, but by then a packet of the wire has been steered. So there is a relay: an
 * interface that has nothing to do but to be steered. A packet goes three ways:
 *
 *   wire, borrowed core   the chain; a hash that steering brings to the target core; to the relay
 *                         (a veth's packets come to that core by steering)
 *   relay, target core    back to the wire
 *   wire, target core     counted, and on to the network stack
 *
 * Guarantees: as in card.bpf.c. A packet that is refused for a full backlog is counted with its core.
 * Source: Documentation/networking/scaling.rst, section Receive Packet Steering.
 */
#pragma once
#include "chain.h"

/* A packet that has been steered, by its tc_index. */
#define STEERED 0x9ca7
/* Bytes that all headers lie in that are looked at directly. */
#define HEADERS 86

/* Hash by which receive packet steering takes a packet to the queue's core; zero: no such queue. */
const volatile u32 HASH_OF_QUEUE[MOST_QUEUES] = {};

/* Of each wire, its interface and its relay. */
struct way {
	u32 wire;
	u32 relay;
};

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, MOST_WIRES);
	__type(key, u32);
	__type(value, struct way);
} WAYS SEC(".maps");

/* Whether packets are handed over; otherwise they go the way they went without a card. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} STEERS SEC(".maps");

/* What was handed over last by each core: should it be freed at once, there was no room for it. */
struct handed {
	u64 skb;
	u32 packets;
	u32 core;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct handed);
} HANDED SEC(".maps");

/* Of each target core, what it had been given by its last poll that brought something, by which it
 * was, and whether the interrupt that led to it is counted. */
struct taken {
	u64 packets;
	u64 napi;
	u64 is_counted;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct taken);
} TAKEN SEC(".maps");

/* As the running kernel has it. */
enum skb_drop_reason { SKB_DROP_REASON_CPU_BACKLOG = 1 };

inline_always u32 packets_of(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

inline_always int hand_over(struct __sk_buff *skb, u32 interface, u32 core)
{
	u32 zero = 0;
	struct handed *handed = bpf_map_lookup_elem(&HANDED, &zero);

	if (handed) {
		handed->skb = (u64)(long)skb;
		handed->packets = packets_of(skb);
		handed->core = core;
	}
	return bpf_redirect(interface, REDIRECT_INGRESS);
}

inline_always int receive_skb(struct __sk_buff *skb, u32 wire)
{
	struct counts *counts = counts_of_core();
	u32 queue, hash, packets = packets_of(skb), zero = 0;
	/* Apart, as the verifier forgets the value of what has an address. */
	u32 key = wire;
	u32 *steers;
	struct way *way;

	if (!counts)
		return TCX_NEXT;
	if (skb->tc_index == STEERED) {
		skb->tc_index = 0;
		/* Whoever wants one from here on wants that of the flow. */
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
	/* A driver may have left headers in pages. */
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
	queue &= MOST_QUEUES - 1;
	hash = HASH_OF_QUEUE[queue];
	if (!hash) {
		counts->lost += packets;
		return TCX_DROP;
	}
	bpf_set_hash(skb, hash);
	skb->tc_index = STEERED;
	return hand_over(skb, way->relay, CORE_OF_QUEUE[queue]);
}

inline_always int send_back(struct __sk_buff *skb, u32 wire)
{
	struct way *way = bpf_map_lookup_elem(&WAYS, &wire);

	/* Nobody else sends by it. */
	if (!way || skb->tc_index != STEERED)
		return TCX_DROP;
	/* None: the wire itself may be steered, and a packet without a hash stays where it is. */
	bpf_set_hash(skb, 0);
	return hand_over(skb, way->wire, bpf_get_smp_processor_id());
}
