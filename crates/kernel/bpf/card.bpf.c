/* A card's rx chain, between the wires' drivers and the target cores.
 *
 * One entry for each wire runs the chain on the core that polls the wire, and hands the packet to a
 * target core by cpumap, whose ring is the target ring; `deliver` runs there, in front of the
 * network stack. What the chain is stands in constants that the loader sets before the verifier
 * looks: it takes out whatever the chain has not.
 *
 * Guarantees: each packet is counted once where it comes in and once where it leaves; a counter is
 * written by one core only.
 * Source: Documentation/bpf/map_cpumap.rst; PICNIC, section 3.
 */
#include "bpf.h"
#include "flow.h"
#include "hash.h"

/* As src/object.rs has them. */
#define MOST_WIRES 8
#define MOST_STEPS 8
#define MOST_QUEUES 256
#define MOST_CORES 256
#define MOST_ENTRIES 4096
#define KINDS 9

enum { STEP_END = 0, STEP_NEXT = 1, STEP_DROP = 2, STEP_BY_WIRE = 3, STEP_RSS = 4, STEP_SAMPLE = 5 };
enum { HASH_TOEPLITZ = 0, HASH_LOOKUP3 = 1, HASH_LOOKUP2 = 2 };
enum { OVER_NOTHING = 0, OVER_ADDRESSES = 1, OVER_PORTS = 2 };
/* In place of a queue: on to the next function. */
#define ONWARD 0xffff

/* What the chain is. */
const volatile u32 STEPS[MOST_STEPS] = {};
const volatile u32 DEFAULT_QUEUE = 0;
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
/* Hash, queue and what was hashed go in front of the packet, for who compares. */
const volatile u32 EXPLAINS = 0;

/* What one core counts. */
struct counts {
	u64 wire_packets[MOST_WIRES];
	u64 wire_bytes[MOST_WIRES];
	/* By the step that did it; the last is the default queue's. */
	u64 steered[MOST_STEPS + 1];
	u64 dropped[MOST_STEPS];
	/* To a queue without a target core. */
	u64 lost;
	/* Handed over, and then refused by the kernel. */
	u64 refused;
	/* On a target core. */
	u64 delivered_packets;
	u64 delivered_bytes;
	u64 without_buffer;
	u64 polls;
	u64 empty_polls;
	u64 wakeups;
	/* Packets that rss has found no hash for. */
	u64 unhashed;
};

/* Of one target core's ring, as seen by who puts packets in. */
struct ring {
	u64 doorbells;
	u64 full;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} COUNTS SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, MOST_CORES);
	__type(key, u32);
	__type(value, struct ring);
} RINGS SEC(".maps");

/* Key and indirection table are there twice: one in force, the other to be changed. Which it is
 * stands in the highest bit of RSS_NOW, the number of entries in the others. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} RSS_NOW SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct toeplitz);
} TOEPLITZ SEC(".maps");

/* The queue of each entry. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2 * MOST_ENTRIES);
	__type(key, u32);
	__type(value, u32);
} TABLE SEC(".maps");

/* Packets until the next one is taken. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} SAMPLE_LEFT SEC(".maps");

/* The number of TARGETS, by which the kernel names it. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} TARGETS_ID SEC(".maps");

/* By core. Queue size and program of each entry. */
struct {
	__uint(type, MAP_CPUMAP);
	__uint(max_entries, MOST_CORES);
	__uint(key_size, 4);
	__uint(value_size, 8);
} TARGETS SEC(".maps");

/* What stands in front of a packet if that is asked for. */
struct explanation {
	u32 hash;
	u16 queue;
	u8 family;
	u8 over;
};

inline_always struct counts *counts_of_core(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&COUNTS, &zero);
}

apart int to_queue(struct xdp_md *context, u32 queue, u32 hash, u32 kind)
{
	if (EXPLAINS && !bpf_xdp_adjust_meta(context, -(int)sizeof(struct explanation))) {
		struct explanation *in_front = (void *)(long)context->data_meta;

		if ((void *)(in_front + 1) <= (void *)(long)context->data) {
			in_front->hash = hash;
			in_front->queue = queue;
			in_front->family = kind >> 8;
			in_front->over = kind;
		}
	}
	return bpf_redirect_map(&TARGETS, CORE_OF_QUEUE[queue & (MOST_QUEUES - 1)], XDP_DROP);
}

inline_always u32 hash_of(struct flow *flow, u32 half)
{
	if (RSS_HASH == HASH_TOEPLITZ) {
		struct toeplitz *table = bpf_map_lookup_elem(&TOEPLITZ, &half);

		if (!table)
			return 0;
		return flow->family == IPV4 ? toeplitz_v4(table, flow->words) :
					      toeplitz_v6(table, flow->words);
	}
	if (RSS_HASH == HASH_LOOKUP3)
		return flow->family == IPV4 ? lookup3(flow->words, 3, RSS_INITIAL) :
					      lookup3(flow->words, 9, RSS_INITIAL);
	return flow->family == IPV4 ? lookup2(flow->words, 3, RSS_INITIAL) :
				      lookup2(flow->words, 9, RSS_INITIAL);
}

/* The queue of a packet, the hash in the upper half and what it is over above the queue. */
apart u64 rss(struct xdp_md *context)
{
	struct flow flow = {};
	u32 kind, over, hash, entry, entries, half, zero = 0;
	u32 *now, *queue;

	find_flow(context, &flow);
	kind = flow.family * 3 + flow.l4;
	/* The compiler knows that it is no more; the verifier is to know it, too. */
	hide(kind);
	if (kind >= KINDS)
		return RSS_DEFAULT_QUEUE;
	over = RSS_OVER[kind];
	if (over == OVER_NOTHING)
		return RSS_DEFAULT_QUEUE;
	if (over == OVER_ADDRESSES)
		flow.words[flow.family == IPV4 ? 2 : 8] = 0;
	now = bpf_map_lookup_elem(&RSS_NOW, &zero);
	if (!now)
		return RSS_DEFAULT_QUEUE;
	entries = *now;
	half = entries >> 31;
	entries &= 0x7fffffff;
	hash = hash_of(&flow, half);
	entry = entries & (entries - 1) ? hash % entries : hash & (entries - 1);
	entry += half * MOST_ENTRIES;
	queue = bpf_map_lookup_elem(&TABLE, &entry);
	if (!queue)
		return RSS_DEFAULT_QUEUE;
	return (u64)hash << 32 | flow.family << 24 | over << 16 | (*queue & 0xffff);
}

/* Whether the packet is taken. */
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

inline_always int receive(struct xdp_md *context, u32 wire)
{
	struct counts *counts = counts_of_core();
	u32 step, queue = ONWARD, hash = 0, kind = 0;
	int verdict;

	if (!counts)
		return XDP_ABORTED;
	counts->wire_packets[wire] += 1;
	counts->wire_bytes[wire] += context->data_end - context->data;
#pragma unroll
	for (step = 0; step < MOST_STEPS; step++) {
		if (STEPS[step] == STEP_END)
			break;
		if (STEPS[step] == STEP_DROP) {
			counts->dropped[step] += 1;
			return XDP_DROP;
		}
		if (STEPS[step] == STEP_BY_WIRE)
			queue = QUEUE_OF_WIRE[wire];
		if (STEPS[step] == STEP_SAMPLE) {
			if (is_sampled()) {
				queue = SAMPLE_QUEUE;
			} else if (SAMPLE_DROPS_REST) {
				counts->dropped[step] += 1;
				return XDP_DROP;
			}
		}
		if (STEPS[step] == STEP_RSS) {
			u64 found = rss(context);

			queue = found & 0xffff;
			kind = (found >> 16 & 0xff) | (found >> 16 & 0xff00);
			hash = found >> 32;
			if (!kind)
				counts->unhashed += 1;
		}
		if (queue != ONWARD) {
			counts->steered[step] += 1;
			goto steer;
		}
	}
	queue = DEFAULT_QUEUE;
	counts->steered[MOST_STEPS] += 1;
steer:
	verdict = to_queue(context, queue, hash, kind);
	if (verdict != XDP_REDIRECT)
		counts->lost += 1;
	return verdict;
}

#define WIRE(number)                                              \
	SEC("xdp")                                                \
	int wire_##number(struct xdp_md *context)                 \
	{                                                         \
		return receive(context, number);                  \
	}

WIRE(0)
WIRE(1)
WIRE(2)
WIRE(3)
WIRE(4)
WIRE(5)
WIRE(6)
WIRE(7)

/* On the target core, in front of its network stack. */
SEC("xdp/cpumap")
int deliver(struct xdp_md *context)
{
	struct counts *counts = counts_of_core();

	if (!counts)
		return XDP_ABORTED;
	counts->delivered_packets += 1;
	counts->delivered_bytes += context->data_end - context->data;
	return XDP_PASS;
}

inline_always int is_ours(u64 map)
{
	u32 zero = 0;
	u32 *ours = bpf_map_lookup_elem(&TARGETS_ID, &zero);

	return ours && *ours == (u32)map;
}

/* map, packets put in, packets that found the ring full, core */
SEC("raw_tp/xdp_cpumap_enqueue")
int enqueued(struct raw_tracepoint *context)
{
	u32 core = context->args[3];
	struct ring *ring;

	if (!is_ours(context->args[0]))
		return 0;
	ring = bpf_map_lookup_elem(&RINGS, &core);
	if (ring) {
		ring->doorbells += 1;
		ring->full += (u32)context->args[2];
	}
	return 0;
}

/* map, packets taken, packets without a buffer for the stack, whether the thread had slept */
SEC("raw_tp/xdp_cpumap_kthread")
int polled(struct raw_tracepoint *context)
{
	struct counts *counts;
	u32 taken = context->args[1];

	if (!is_ours(context->args[0]))
		return 0;
	counts = counts_of_core();
	if (!counts)
		return 0;
	counts->polls += 1;
	if (!taken)
		counts->empty_polls += 1;
	if (context->args[3] & 1)
		counts->wakeups += 1;
	counts->without_buffer += (u32)context->args[2];
	return 0;
}

/* device, program, target, error, kind of map, map, index */
SEC("raw_tp/xdp_redirect_err")
int refused(struct raw_tracepoint *context)
{
	struct counts *counts;

	if (!is_ours(context->args[5]))
		return 0;
	counts = counts_of_core();
	if (counts)
		counts->refused += 1;
	return 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
