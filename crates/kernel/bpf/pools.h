/* Pools of queues: selected by a frame's destination and VLAN, then a queue by hash.
 *
 * For frames of wires the result equals that of the function `vmdq` of the poll engine. A pool is a
 * bit. An address is at one of two places. There are two copies of everything that commands change:
 * one is in use while the other is written, then a single word selects the new one.
 * Source: Intel 82599 datasheet, section 7.10.3; Pagh, Rodler, "Cuckoo Hashing" (2004).
 */
#pragma once
#include "bpf.h"
#include "filter.h"
#include "flow.h"
#include "hash.h"
#include "police.h"
#include "rules.h"

/* As in src/pools.rs. */
#define MOST_POOLS 64
#define MOST_QUEUES 256

/* Places of one list of addresses, a power of two, less one. */
const volatile u32 STATION_LAST = 0;
/* The hash inside a pool. */
const volatile struct toeplitz POOL_HASH = {};
const volatile u32 POOL_OVER[KINDS] = {};

/* An address and its pools. */
struct station {
	u64 address;
	u64 pools;
};

struct pools {
	/* The pools that admit each VLAN. */
	u64 vlans[4096];
	/* The pools that get broadcasts and multicasts. */
	u64 groups;
	/* The pool for other frames. */
	u64 others;
	/* Start value of address places. */
	u64 start;
	/* First queue and number of queues of each pool. */
	u64 first[MOST_POOLS];
	u64 count[MOST_POOLS];
	u64 queues[MOST_QUEUES];
};

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} POOLS_NOW SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct pools);
} POOLS SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct station);
} STATIONS SEC(".maps");

/* Two places, one in each half. */
inline_always u64 places_of_station(u64 address, u64 start)
{
	u64 hash = (address ^ start << 48) * 0x9e3779b97f4a7c15ULL;

	return (hash ^ hash >> 32) * 0xe7037ed1a0b428dbULL;
}

/* The pools that have the address at the start of a frame. */
inline_always u64 pools_of_station(const u8 *frame, u32 half, u64 start)
{
	u64 address = (u64)*(u32 *)frame << 16 | *(u16 *)(frame + 4);
	u64 places = places_of_station(address, start), pools = 0;

#pragma unroll
	for (int turn = 0; turn < 2; turn++) {
		u32 place = half * (STATION_LAST + 1) + (places >> 32 * turn & STATION_LAST);
		struct station *station = bpf_map_lookup_elem(&STATIONS, &place);

		if (station && station->address == address)
			pools = station->pools;
	}
	return pools;
}

/* The hashed fields of the frame, the hash above them; zero without a flow. */
inline_always u64 pool_hash_of_other(struct packet *packet, int is_skb)
{
	struct flow flow = {};
	u32 over = words_of_ipv6(packet, is_skb, POOL_OVER, &flow);

	if (over == OVER_NOTHING)
		return 0;
	return (u64)toeplitz_v6((const struct toeplitz *)&POOL_HASH, flow.words) << 32 | IPV6 << 8 | over;
}

apart u64 pool_hash_of_other_frame(struct xdp_md *context)
{
	struct packet packet = packet_of_frame(context);

	return pool_hash_of_other(&packet, 0);
}

apart u64 pool_hash_of_other_skb(struct __sk_buff *context)
{
	struct packet packet = packet_of_skb(context);

	return pool_hash_of_other(&packet, 1);
}

inline_always u64 pool_hash(struct packet *packet, int is_skb)
{
	u32 words[3], over;

	if (!words_if_ipv4(packet, POOL_OVER, words, &over))
		return is_skb ? pool_hash_of_other_skb(packet->context) :
				pool_hash_of_other_frame(packet->context);
	if (over == OVER_NOTHING)
		return 0;
	return (u64)toeplitz_v4((const struct toeplitz *)&POOL_HASH, words) << 32 | IPV4 << 8 | over;
}

/* The queue, above it the hashed fields, above that the hash; ONWARD without a pool. */
inline_always u64 by_pool(void *context, int is_skb)
{
	struct packet packet = is_skb ? packet_of_skb(context) : packet_of_frame(context);
	u32 zero = 0, half, pool, index;
	u32 *now = bpf_map_lookup_elem(&POOLS_NOW, &zero);
	const struct pools *pools;
	u64 in, hash;

	if (!now || packet.data + 14 > packet.end)
		return ONWARD;
	half = *now & 1;
	pools = bpf_map_lookup_elem(&POOLS, &half);
	if (!pools)
		return ONWARD;
	in = pools->vlans[vlan_of(context, is_skb, 0) & 0xfff];
	if (packet.data[0] & 1)
		in &= pools->groups;
	else
		in &= pools_of_station(packet.data, *now & 1, pools->start);
	if (!in)
		in = pools->others;
	if (!in)
		return ONWARD;
	pool = lowest(in) & (MOST_POOLS - 1);
	hash = pool_hash(&packet, is_skb);
	index = pools->first[pool] + ((hash >> 32) * 0x9e3779b1 % (1ULL << 32) * pools->count[pool] >> 32);
	return (hash & ~0xffffULL) | (hash & 0xffff) << 16 |
	       (pools->queues[index & (MOST_QUEUES - 1)] & 0xffff);
}

/* Separate, because of its stack. */
apart u64 by_pool_of_frame(struct xdp_md *context)
{
	return by_pool(context, 0);
}

apart u64 by_pool_of_skb(struct __sk_buff *context)
{
	return by_pool(context, 1);
}

inline_always u64 by_pool_of(void *context, int is_skb)
{
	return is_skb ? by_pool_of_skb(context) : by_pool_of_frame(context);
}
