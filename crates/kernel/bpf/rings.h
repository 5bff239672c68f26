/* The target rings, as who puts packets in and who takes them out know them.
 *
 * The kernel says that a ring was full by a tracepoint, which is met for each eight packets, full or not:
 * a tenth of a core that feeds others. So whoever hands packets over knows how many a ring holds, and
 * drops what it has no room for; the kernel's own ring is a little longer, and never full.
 *
 * Guarantees: a packet is counted as put in before it can be taken, and as taken once it has left the
 * kernel's ring. A ring holds no more than RING_SIZE packets, and one for each core that puts
 * packets in at the same moment.
 * Source: Documentation/bpf/map_cpumap.rst; include/linux/ptr_ring.h.
 */
#pragma once
#include "bpf.h"

/* As src/object.rs has them. */
#define MOST_CORES 256
/* Packets that are dropped once a ring is full before its other end is looked at again: that is another
 * core's memory. The kernel, too, hands over eight at a time. */
#define DROPPED_UNSEEN 7

const volatile u32 RING_SIZE = 0;
/* Where the drivers of all wires should run the programs. */
const volatile u32 BORROWED_CORE = 0;

/* The two ends are in lines of the cache of their own, wherever this begins. */
struct ends {
	/* By the borrowed core: packets put in, and up to how many it need not look at the other end. */
	u64 put;
	u64 put_up_to;
	/* By all other cores together, which most cards have nothing run on. */
	u64 put_elsewhere;
	u32 drops_left;
	u32 unused[25];
	/* By the target core. */
	u64 taken;
	u64 more_unused[15];
};

/* Of each core's ring. The card's, whatever chain it has: no chain has a ring that is empty by itself. */
struct {
	struct ends of[MOST_CORES];
} ENDS SEC(".bss.ends");

struct ring {
	/* Packets that found it full, of those that one core has handed over. */
	u64 full;
};

/* By core of the ring. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, MOST_CORES);
	__type(key, u32);
	__type(value, struct ring);
} RINGS SEC(".maps");

inline_always struct ends *ends_of(u32 core)
{
	return &ENDS.of[core & (MOST_CORES - 1)];
}

inline_always void count_full(u32 core, u32 packets)
{
	struct ring *ring = bpf_map_lookup_elem(&RINGS, &core);

	if (ring)
		ring->full += packets;
}

/* Whether there is room for one more, of so many packets; one that has none is counted. */
inline_always int has_room(struct ends *ends, u32 core, u32 packets)
{
	u64 put = ends->put + *(volatile u64 *)&ends->put_elsewhere;

	if (put < ends->put_up_to)
		return 1;
	if (ends->drops_left) {
		ends->drops_left -= 1;
	} else {
		ends->put_up_to = *(volatile u64 *)&ends->taken + RING_SIZE;
		if (put < ends->put_up_to)
			return 1;
		ends->drops_left = DROPPED_UNSEEN;
	}
	count_full(core, packets);
	return 0;
}

/* Counts a packet as put in; as taken back with minus one. */
inline_always void put(struct ends *ends, int packets)
{
	if (bpf_get_smp_processor_id() == BORROWED_CORE)
		ends->put += packets;
	else
		__sync_fetch_and_add(&ends->put_elsewhere, packets);
}
