/* Functions that pass packets by rate or by VLAN.
 *
 * The arithmetic equals that of the poll engine's functions `rate-limit` and `vlan`.
 * Source: RFC 2697, section 3; IEEE 802.1Q-2018, 8.6.2.
 */
#pragma once
#include "bpf.h"
#include "flow.h"

/* As in src/object.rs. */
#define MOST_WIRES 8
/* Unit of credit, in billionths. */
#define ONE 1000000000ULL

/* Rate per second, highest credit, and nanoseconds until it is reached. */
struct limit {
	u64 rate;
	u64 most;
	u64 full;
};

const volatile u32 POLICE_PER_WIRE = 0;

/* Settings of `vlan` and `rate-limit` that commands change. */
struct settings {
	/* Allowed VLANs, a bit each, and whether untagged packets pass. */
	u64 vlans[64];
	u64 untagged;
	struct limit packets;
	struct limit bytes;
};

/* Kept twice: one is in use, the other is written, then SETTINGS_NOW selects it. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct settings);
} SETTINGS SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} SETTINGS_NOW SEC(".maps");

struct bucket {
	u64 packets;
	u64 bytes;
	u64 at;
	u64 is_used;
};

/* By wire, or one for all; written only by the borrowed core. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, MOST_WIRES);
	__type(key, u32);
	__type(value, struct bucket);
} BUCKETS SEC(".maps");

inline_always const struct settings *settings_now(void)
{
	u32 zero = 0;
	u32 *now = bpf_map_lookup_elem(&SETTINGS_NOW, &zero);

	return now ? bpf_map_lookup_elem(&SETTINGS, now) : 0;
}

inline_always u64 grown(const struct limit *limit, u64 credit, u64 nanoseconds)
{
	if (nanoseconds >= limit->full)
		return limit->most;
	credit += limit->rate * nanoseconds;
	return credit < limit->most ? credit : limit->most;
}

/* Whether a packet has credit, which it then uses. */
inline_always int conforms(u32 wire, u32 length)
{
	u32 number = POLICE_PER_WIRE ? wire : 0;
	struct bucket *bucket = bpf_map_lookup_elem(&BUCKETS, &number);
	u64 now = bpf_ktime_get_ns(), cost, passed;
	const struct settings *settings = settings_now();

	/* Otherwise the compiler would compute it before the steps of every chain. */
	hide(length);
	cost = length * ONE;
	if (!bucket || !settings)
		return 0;
	/* Full at first. */
	passed = bucket->is_used ? now - bucket->at : ~0ULL;
	bucket->packets = grown(&settings->packets, bucket->packets, passed);
	bucket->bytes = grown(&settings->bytes, bucket->bytes, passed);
	bucket->at = now;
	bucket->is_used = 1;
	if ((settings->packets.rate && bucket->packets < ONE) ||
	    (settings->bytes.rate && bucket->bytes < cost))
		return 0;
	if (settings->packets.rate)
		bucket->packets -= ONE;
	if (settings->bytes.rate)
		bucket->bytes -= cost;
	return 1;
}

/* The outer VLAN of a packet with `tagged` above it; zero without a tag. */
inline_always u32 vlan_of(void *context, int is_skb, u32 tagged)
{
	struct packet packet = is_skb ? packet_of_skb(context) : packet_of_frame(context);

	if (is_skb && packet.tags_beside)
		return tagged | (((struct __sk_buff *)context)->vlan_tci & 0xfff);
	if (packet.data + 18 > packet.end || !is_vlan(*(u16 *)(packet.data + 12)))
		return 0;
	return tagged | (from_be16(*(u16 *)(packet.data + 14)) & 0xfff);
}

inline_always int passes_vlan(void *context, int is_skb, u32 packets, u64 *tagged)
{
	const struct settings *settings = settings_now();
	u32 vlan = vlan_of(context, is_skb, 1 << 12);

	if (!settings)
		return 0;
	if (vlan)
		*tagged += packets;
	vlan &= 0xfff;
	return vlan ? settings->vlans[vlan / 64] >> vlan % 64 & 1 : settings->untagged;
}
