/* A card's rx chain: its functions and counters, and the queue of a packet.
 *
 * All programs that hand packets over run the same chain. The loader describes it in constants
 * before the verifier runs, so that the verifier removes the code of absent functions.
 *
 * Guarantees: each packet is counted once on arrival; only one core writes a counter.
 * Source: PICNIC, section 3.
 */
#pragma once
#include "bpf.h"
#include "filter.h"
#include "flow.h"
#include "hash.h"
#include "objects.h"
#include "police.h"
#include "pools.h"
#include "rings.h"
#include "rules.h"

/* As in src/object.rs. */
#define MOST_STEPS 8
#define MOST_ENTRIES 4096
/* For one wire, as in crates/ports/src/af_xdp/handed.rs. */
#define MOST_SOCKETS 1024

enum {
	STEP_END = 0,
	STEP_NEXT = 1,
	STEP_DROP = 2,
	STEP_BY_WIRE = 3,
	STEP_RSS = 4,
	STEP_SAMPLE = 5,
	STEP_VLANS = 6,
	STEP_POLICE = 7,
	STEP_BY_RULES = 8,
	STEP_OBJECT = 9,
	STEP_BY_POOL = 10,
};
enum { HASH_TOEPLITZ = 0, HASH_LOOKUP3 = 1, HASH_LOOKUP2 = 2 };

/* The functions of the chain. */
const volatile u32 STEPS[MOST_STEPS] = {};
const volatile u32 DEFAULT_QUEUE = 0;
const volatile u32 QUEUES = 0;
const volatile u32 CORE_OF_QUEUE[MOST_QUEUES] = {};
const volatile u32 QUEUE_OF_WIRE[MOST_WIRES] = {};
const volatile u32 RSS_HASH = 0;
const volatile u32 RSS_INITIAL = 0;
const volatile u32 RSS_DEFAULT_QUEUE = ONWARD;
/* By family and transport. */
const volatile u32 RSS_OVER[KINDS] = {};
const volatile u32 SAMPLE_EVERY = 1;
const volatile u32 SAMPLE_QUEUE = ONWARD;
const volatile u32 SAMPLE_DROPS_REST = 0;
/* For each wire, its interface and the number of the program that runs the chain for it. */
const volatile u32 INTERFACES[MOST_WIRES] = {};
const volatile u32 PROGRAMS[MOST_WIRES] = {};
/* Whether a program runs the chain for several wires. */
const volatile u32 ARE_SHARED = 0;
/* Reports hash, queue and hashed fields of each packet, for tests. */
const volatile u32 EXPLAINS = 0;
/* The card has a poll engine, to which filters can send packets. */
const volatile u32 IS_HYBRID = 0;
/* Wires, a bit each, whose packets to the poll engine carry their time, and the mark of such times. */
const volatile u32 STAMPED = 0;
const volatile u64 STAMP_MARK = 0;

/* Counters of one core. */
struct counts {
	u64 wire_packets[MOST_WIRES];
	u64 wire_bytes[MOST_WIRES];
	/* By the step that dropped it; the last is the default queue's. */
	u64 steered[MOST_STEPS + 1];
	u64 dropped[MOST_STEPS];
	/* Dropped: the queue has no target core. */
	u64 lost;
	/* Handed over, then refused by the kernel. */
	u64 refused;
	/* On a target core. */
	u64 delivered_packets;
	u64 delivered_bytes;
	u64 without_buffer;
	u64 polls;
	u64 empty_polls;
	u64 wakeups;
	/* Packets without a hash in rss. */
	u64 unhashed;
	/* By filters before the chain. */
	u64 filtered;
	u64 unreadable;
	u64 steered_by_filters;
	/* Of the packets checked by `vlan`. */
	u64 tagged;
	/* By objects: sent back on their wire, or redirected; `left` is both. */
	u64 sent_packets[MOST_WIRES];
	u64 sent_bytes[MOST_WIRES];
	u64 left[MOST_STEPS];
	u64 redirected;
	u64 aborted[MOST_STEPS];
	/* Packets that filters sent to the poll engine, and packets without a socket. */
	u64 polled;
	u64 unpolled;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} COUNTS SEC(".maps");

/* Key and indirection table, as in src/tables.rs. */
struct rss {
	u32 entries;
	/* Number of entries less one, if it is a power of two. */
	u32 mask;
	/* Of each entry. */
	u32 queues[MOST_ENTRIES];
	struct toeplitz toeplitz;
};

/* Kept twice: one is in use, the other is changed, then the first word selects it. As a variable it
 * needs no map look-up. */
struct {
	u32 now;
	struct rss both[2];
} RSS SEC(".bss.rss");

/* The poll engine's sockets, by wire and queue. A placeholder, which the loader replaces by a map
 * of sockets: not every kernel has such maps. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} SOCKETS SEC(".maps");

/* Packets until the next one is sampled. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} SAMPLE_LEFT SEC(".maps");

/* Instead of a queue: the program returns the verdict in the upper half. */
#define NOWHERE 0x10000

/* For tests: a packet's hash, and a byte each for its family and the hashed fields; zero without a
 * hash. */
struct {
	u32 hash;
	u32 kind;
} EXPLAINED;

inline_always struct counts *counts_of_core(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&COUNTS, &zero);
}

/* The queue of a flow, from the words to hash. */
inline_always u32 queue_of_words(const u32 *words, int is_v6, u32 *hash_of_words)
{
	const struct rss *rss = &RSS.both[RSS.now & 1];
	u32 kind = RSS_HASH, hash, entry;

	/* In one register: the hash needs the others. */
	hide(rss);
	if (kind == HASH_TOEPLITZ)
		hash = is_v6 ? toeplitz_v6(&rss->toeplitz, words) : toeplitz_v4(&rss->toeplitz, words);
	else if (kind == HASH_LOOKUP3)
		hash = lookup3(words, is_v6 ? 9 : 3, RSS_INITIAL);
	else
		hash = lookup2(words, is_v6 ? 9 : 3, RSS_INITIAL);
	forget(hash);
	*hash_of_words = hash;
	entry = rss->mask ? hash & rss->mask : hash % rss->entries;
	return rss->queues[entry & (MOST_ENTRIES - 1)];
}

/* For IPv6 and packets without a flow: the queue, above it the hashed fields, above that the hash. */
inline_always u64 rss_of_other(struct packet *packet, int is_skb)
{
	struct flow flow = {};
	u32 over = words_of_ipv6(packet, is_skb, RSS_OVER, &flow), hash, queue;

	if (over == OVER_NOTHING)
		return RSS_DEFAULT_QUEUE;
	queue = queue_of_words(flow.words, 1, &hash);
	return (u64)hash << 32 | over << 16 | (queue & 0xffff);
}

apart u64 rss_of_other_frame(struct xdp_md *context)
{
	struct packet packet = packet_of_frame(context);

	return rss_of_other(&packet, 0);
}

apart u64 rss_of_other_skb(struct __sk_buff *context)
{
	struct packet packet = packet_of_skb(context);

	return rss_of_other(&packet, 1);
}

/* IPv4 inline: on processors with return mitigations, a call costs as much as a hash. */
inline_always u32 rss(struct counts *counts, void *context, int is_skb, u32 packets)
{
	struct packet packet = is_skb ? packet_of_skb(context) : packet_of_frame(context);
	u32 words[3], over, queue = 0, hash = 0, family = IPV4;

	if (words_if_ipv4(&packet, RSS_OVER, words, &over)) {
		if (over != OVER_NOTHING)
			queue = queue_of_words(words, 0, &hash);
	} else {
		u64 all = is_skb ? rss_of_other_skb(context) : rss_of_other_frame(context);

		queue = all & 0xffff;
		over = all >> 16 & 0xffff;
		hash = all >> 32;
		family = IPV6;
	}
	if (over == OVER_NOTHING) {
		counts->unhashed += packets;
		return RSS_DEFAULT_QUEUE;
	}
	if (EXPLAINS) {
		EXPLAINED.kind = family << 8 | over;
		EXPLAINED.hash = hash;
	}
	return queue;
}

/* Whether the packet is sampled. */
inline_always int is_sampled(void)
{
	u32 zero = 0;
	u32 *left = bpf_map_lookup_elem(&SAMPLE_LEFT, &zero);

	if (!left)
		return 0;
	if (*left) {
		*left -= 1;
		return 0;
	}
	*left = SAMPLE_EVERY - 1;
	return 1;
}

/* The wire of an interface, among the wires of a program that is named after its first wire. Without
 * branches: otherwise the verifier would follow the chain for each wire. */
inline_always u32 wire_of(u32 program, u32 interface)
{
	u32 wire = program;

#pragma unroll
	for (u32 other = 1; other < MOST_WIRES; other++) {
		u64 difference;

		if (other <= program || PROGRAMS[other] != program)
			continue;
		difference = interface ^ INTERFACES[other];
		forget(difference);
		/* Only zero minus one is negative. */
		wire += (other - program) * ((difference - 1) >> 63);
	}
	return wire & (MOST_WIRES - 1);
}

/* Writes the time before a packet, as in crates/ports/src/sys/bpf.rs: a driver may leave no room. */
inline_always void stamp(struct xdp_md *context)
{
	u64 *stamp;

	if (bpf_xdp_adjust_meta(context, -2 * (int)sizeof(*stamp)))
		return;
	stamp = (void *)(long)context->data_meta;
	if ((void *)(stamp + 2) > (void *)(long)context->data)
		return;
	stamp[0] = bpf_ktime_get_ns();
	stamp[1] = STAMP_MARK;
}

/* Hands a packet to the socket of its wire and interface queue. */
inline_always int to_poll_engine(struct counts *counts, struct xdp_md *context, u32 wire)
{
	u32 queue = context->rx_queue_index;
	int verdict = XDP_DROP;

	counts->polled += 1;
	if (EXPLAINS)
		return XDP_PASS;
	if (queue < MOST_SOCKETS)
		verdict = bpf_redirect_map(&SOCKETS, wire * MOST_SOCKETS + queue, XDP_DROP);
	if (verdict != XDP_REDIRECT)
		counts->unpolled += 1;
	else if (STAMPED >> (wire & 31) & 1)
		stamp(context);
	return verdict;
}

/* The filters' verdict on a packet: its queue; ONWARD if it continues. */
inline_always u32 filter(struct counts *counts, void *context, int is_skb, u32 wire, u32 packets)
{
	u32 now = FILTERS_NOW.list, fate;

	if (!now)
		return ONWARD;
	fate = judge(context, is_skb, now, packets);
	if ((fate & 0xffff) == END_DROP) {
		counts->filtered += packets;
		return NOWHERE + XDP_DROP;
	}
	if ((fate & 0xffff) == END_UNREADABLE) {
		counts->unreadable += packets;
		return NOWHERE + XDP_DROP;
	}
	if ((fate & 0xffff) == END_STEER) {
		counts->steered_by_filters += packets;
		return fate >> 16;
	}
	if (IS_HYBRID && !is_skb && (fate & 0xffff) == END_POLL)
		return NOWHERE + to_poll_engine(counts, context, wire);
	return ONWARD;
}

/* Runs the chain from a step on, for `packets` packets in one from a wire; returns the queue. */
inline_always u32 chain_from(u32 start, struct counts *counts, void *context, int is_skb, u32 wire,
			     u32 packets)
{
	u32 queue = ONWARD;
	u64 step;

	/* One body for all steps: each iteration knows its step and compiles to its action. */
#pragma clang loop unroll(disable)
	for (step = 0; step < MOST_STEPS; step++) {
		u32 kind;

		/* Otherwise the compiler would keep table indices in more registers. */
		hide(step);
		kind = STEPS[step];
		if (step < start)
			continue;
		if (kind == STEP_END)
			break;
		if (kind == STEP_DROP) {
			counts->dropped[step] += packets;
			return NOWHERE + XDP_DROP;
		}
		if (kind == STEP_BY_WIRE) {
			u32 own = wire;

			/* Otherwise the compiler would compute the address before the steps of every chain. */
			hide(own);
			queue = QUEUE_OF_WIRE[own & (MOST_WIRES - 1)];
		}
		if (kind == STEP_SAMPLE) {
			if (is_sampled()) {
				queue = SAMPLE_QUEUE;
			} else if (SAMPLE_DROPS_REST) {
				counts->dropped[step] += packets;
				return NOWHERE + XDP_DROP;
			}
		}
		if ((kind == STEP_VLANS && !passes_vlan(context, is_skb, packets, &counts->tagged)) ||
		    (kind == STEP_POLICE && !conforms(wire, length_of(context, is_skb)))) {
			counts->dropped[step] += packets;
			return NOWHERE + XDP_DROP;
		}
		if (kind == STEP_BY_RULES) {
			queue = is_skb ? by_rules_of_skb(context, wire, packets) :
					 by_rules_of_frame(context, wire, packets);
			if (queue == DROPS) {
				counts->dropped[step] += packets;
				return NOWHERE + XDP_DROP;
			}
		}
		if (kind == STEP_RSS)
			queue = rss(counts, context, is_skb, packets);
		if (kind == STEP_BY_POOL) {
			u64 by_pool = by_pool_of(context, is_skb);

			queue = by_pool & 0xffff;
			if (EXPLAINS && queue != ONWARD) {
				EXPLAINED.kind = by_pool >> 16 & 0xffff;
				EXPLAINED.hash = by_pool >> 32;
			}
		}
		if (kind == STEP_OBJECT && !is_skb) {
			go_over(context, wire, step);
			/* The objects ended with their process: the packet takes its normal path. */
			counts->redirected += 1;
			counts->left[step] += 1;
			return NOWHERE + XDP_PASS;
		}
		if (queue != ONWARD) {
			counts->steered[step] += packets;
			return queue;
		}
	}
	counts->steered[MOST_STEPS] += packets;
	return DEFAULT_QUEUE;
}

/* The queue of a packet from a wire. */
inline_always u32 chain(struct counts *counts, void *context, int is_skb, u32 wire, u32 packets)
{
	u32 queue;

	if (EXPLAINS)
		EXPLAINED.hash = EXPLAINED.kind = 0;
	queue = filter(counts, context, is_skb, wire, packets);
	return queue == ONWARD ? chain_from(0, counts, context, is_skb, wire, packets) : queue;
}
