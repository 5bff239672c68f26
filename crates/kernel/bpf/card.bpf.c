/* A card's programs, between the wires' drivers and the target cores.
 *
 * A cpumap's rings are the target rings. There are two paths. For frames, an XDP program runs the
 * chain on the core that polls the wires; `deliver` runs after the ring, before the network stack.
 * For socket buffers, GRO has merged the packets, a tc program runs the chain, and a relay puts them
 * into the rings (skb.h).
 *
 * Guarantees: each packet is counted once on arrival and once when it leaves; only one core writes a
 * counter.
 * Source: Documentation/bpf/map_cpumap.rst; PICNIC, section 3.
 */
#include "chain.h"
#include "skb.h"

/* Number of the program at TARGETS, as the kernel counts. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} TARGETS_ID SEC(".maps");

/* By core: queue size and program of each entry. */
struct {
	__uint(type, MAP_CPUMAP);
	__uint(max_entries, MOST_CORES);
	__uint(key_size, 4);
	__uint(value_size, 8);
} TARGETS SEC(".maps");

/* Metadata before a packet, if requested. */
struct explanation {
	u32 hash;
	u16 queue;
	u16 kind;
};

inline_always void explain(struct xdp_md *context, u32 queue)
{
	struct explanation *in_front;

	if (bpf_xdp_adjust_meta(context, -(int)sizeof(*in_front)))
		return;
	in_front = (void *)(long)context->data_meta;
	if ((void *)(in_front + 1) > (void *)(long)context->data)
		return;
	in_front->hash = EXPLAINED.hash;
	in_front->queue = queue;
	in_front->kind = EXPLAINED.kind;
}

/* Hands over a packet that has a queue. */
inline_always int hand_over_frame(struct counts *counts, struct xdp_md *context, u32 queue)
{
	int verdict = XDP_DROP;

	if (queue < QUEUES) {
		u32 core = CORE_OF_QUEUE[queue & (MOST_QUEUES - 1)];
		struct ends *ends = ends_of(core);

		if (EXPLAINS)
			explain(context, queue);
		else if (!has_room(ends, core, 1))
			return XDP_DROP;
		verdict = bpf_redirect_map(&TARGETS, core, XDP_DROP);
		if (verdict == XDP_REDIRECT)
			put(ends, 1);
	} else if (queue >= NOWHERE) {
		return queue - NOWHERE;
	}
	if (verdict != XDP_REDIRECT)
		counts->lost += 1;
	return verdict;
}

inline_always int receive(struct xdp_md *context, u32 wire)
{
	struct counts *counts = counts_of_core();

	if (!counts)
		return XDP_ABORTED;
	counts->wire_packets[wire] += 1;
	counts->wire_bytes[wire] += length_of(context, 0);
	return hand_over_frame(counts, context, chain(counts, context, 0, wire, 1));
}

/* After an object: obeys its verdict; on pass, continues with the chain. */
SEC("xdp")
int resume(struct xdp_md *context)
{
	u32 length = length_of(context, 0), wire, step, queue;
	struct counts *counts = counts_of_core();
	struct object_state *state = object_state();

	if (!counts || !state)
		return XDP_ABORTED;
	wire = state->wire & (MOST_WIRES - 1);
	step = state->step & (MOST_STEPS - 1);
	switch (state->verdict) {
	case XDP_PASS:
		break;
	case XDP_TX:
		counts->sent_packets[wire] += 1;
		counts->sent_bytes[wire] += length;
		counts->left[step] += 1;
		return XDP_TX;
	case XDP_REDIRECT:
		counts->redirected += 1;
		counts->left[step] += 1;
		return XDP_REDIRECT;
	case XDP_DROP:
		counts->dropped[step] += 1;
		return XDP_DROP;
	default:
		counts->aborted[step] += 1;
		return XDP_ABORTED;
	}
	queue = queue_of_metadata(context, step);
	if (queue != ONWARD) {
		counts->steered[step] += 1;
	} else {
		queue = chain_from(step + 1, counts, context, 0, wire, 1);
	}
	return hand_over_frame(counts, context, queue);
}

#define WIRE(number)                                              \
	SEC("xdp")                                                \
	int wire_##number(struct xdp_md *context)                 \
	{                                                         \
		return receive(context, ARE_SHARED ?              \
			       wire_of(number, context->ingress_ifindex) : number); \
	}                                                         \
                                                                  \
	SEC("classifier")                                         \
	int steer_##number(struct __sk_buff *skb)                 \
	{                                                         \
		return receive_skb(skb, ARE_SHARED ?              \
				   wire_of(number, skb->ifindex) : number); \
	}                                                         \
                                                                  \
	SEC("classifier")                                         \
	int relay_##number(struct __sk_buff *skb)                 \
	{                                                         \
		return send_back(skb, number);                    \
	}

WIRE(0)
WIRE(1)
WIRE(2)
WIRE(3)
WIRE(4)
WIRE(5)
WIRE(6)
WIRE(7)

/* At a wire, before its program is detached: reads nothing that a driver takes away meanwhile. */
SEC("xdp")
int let_pass(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}

/* On the target core, before its network stack. */
SEC("xdp/cpumap")
int deliver(struct xdp_md *context)
{
	struct counts *counts = counts_of_core();

	if (!counts)
		return XDP_ABORTED;
	counts->delivered_packets += 1;
	counts->delivered_bytes += context->data_end - context->data;
	ends_of(bpf_get_smp_processor_id())->taken = counts->delivered_packets;
	return XDP_PASS;
}

/* At a relay: puts a packet into the ring of its target core. */
SEC("xdp")
int to_ring(struct xdp_md *context)
{
	u32 queue = context->rx_queue_index & (MOST_QUEUES - 1);

	return bpf_redirect_map(&TARGETS, CORE_OF_QUEUE[queue], XDP_DROP);
}

/* Runs after `deliver`, which cannot set marks: sets the mark that an object wrote before the
 * packet. */
SEC("classifier")
int mark(struct __sk_buff *skb)
{
	const struct metadata *metadata = (void *)(long)skb->data_meta;

	if ((void *)(metadata + 1) <= (void *)(long)skb->data)
		skb->mark = metadata->mark;
	return TCX_NEXT;
}

inline_always int is_ours(u64 map)
{
	u32 zero = 0;
	u32 *ours = bpf_map_lookup_elem(&TARGETS_ID, &zero);

	return ours && *ours == (u32)map;
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
	put(ends_of(context->args[6]), -1);
	return 0;
}

/* packet, place, reason */
SEC("raw_tp/kfree_skb")
int freed(struct raw_tracepoint *context)
{
	count_lost((const struct sk_buff *)context->args[0], context->args[2]);
	return 0;
}

/* For benchmarks: sends the packet of a test run, like a driver that polls another wire. */
const volatile u32 FLOOD_TO = 0;

SEC("xdp")
int flood(struct xdp_md *context)
{
	(void)context;
	return bpf_redirect(FLOOD_TO, 0);
}

/* MIT, like the project: the kernel accepts this name as a free licence and lets the programs read
 * packets at tracepoints. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";
