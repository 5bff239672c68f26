/* The fill level of target rings, as known to producer and consumer programs.
 *
 * The kernel reports a full ring only through a tracepoint, which runs for every eight packets, full
 * or not, and takes a tenth of a feeding core. So the producers count the packets in a ring and drop
 * those without room; the kernel's own ring is a little longer and never full.
 *
 * Guarantees: a packet is counted as added before it can be taken, and as taken once it has left the
 * kernel's ring. A ring holds at most RING_SIZE packets, plus one for each core that adds packets at
 * the same moment.
 * Source: Documentation/bpf/map_cpumap.rst; include/linux/ptr_ring.h.
 */
#pragma once
#include "bpf.h"

/* As in src/object.rs. */
#define MOST_CORES 256
/* Drops at a full ring before its other end is checked again, since that is another core's memory.
 * The kernel also hands over eight at a time. */
#define DROPPED_UNSEEN 7

const volatile u32 RING_SIZE = 0;
/* The core on which the drivers should run the programs. */
const volatile u32 BORROWED_CORE = 0;

/* Both ends are on separate cache lines, at any alignment. */
struct ends {
	/* Of the borrowed core: packets put in, and the number up to which it need not check the other
	 * end. */
	u64 put;
	u64 put_up_to;
	/* Of all other cores together; most cards run nothing there. */
	u64 put_elsewhere;
	u32 drops_left;
	u32 unused[25];
	/* Of the target core. */
	u64 taken;
	u64 more_unused[15];
};

/* Size of each core's ring. It belongs to the card, for any chain. */
struct {
	struct ends of[MOST_CORES];
} ENDS SEC(".bss.ends");

struct ring {
	/* Packets that found it full, of those that one core handed over. */
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

/* Whether there is room for one more; a packet without room is counted. */
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

/* Counts a packet as put in; minus one takes it back. */
inline_always void put(struct ends *ends, int packets)
{
	if (bpf_get_smp_processor_id() == BORROWED_CORE)
		ends->put += packets;
	else
		__sync_fetch_and_add(&ends->put_elsewhere, packets);
}
