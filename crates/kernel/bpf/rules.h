/* Rules for flows: one lookup for each combination of fields and prefix lengths in use.
 *
 * The compared words are the same as in the poll engine's `flow-director`. A rule is at one
 * of two places, which bounds each search. There are two copies of the rules: one is in use while the
 * other is written, then a single word selects the new one.
 * Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search" (1999);
 * Pagh, Rodler, "Cuckoo Hashing" (2004).
 */
#pragma once
#include "bpf.h"
#include "headers.h"
#include "police.h"

/* As in src/flows.rs. */
#define MOST_MASKS 64
/* Instead of a queue: on to the next function, and dropped. */
#define ONWARD 0xffff
#define DROPS 0xfffe

/* Slots of one list, a power of two, less one. */
const volatile u32 FLOW_LAST = 0;

/* Addresses, then wire 8, ports 1, family 2, protocol 8, tag 1, VLAN 12, both ports 32. */
struct words {
	u64 word[5];
};

struct flow_mask {
	struct words words;
	/* The highest of its rules. */
	u64 rank;
};

struct flow_rule {
	struct words words;
	/* The highest decides; zero in a free slot. */
	u64 rank;
	u32 mask;
	u32 queue;
	/* Written only by the borrowed core. */
	u64 packets;
};

/* The list in use, in the highest bit; above the number of its masks, the start value of its rules'
 * places. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} FLOWS_NOW SEC(".maps");

/* Masks with higher rules first. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2 * MOST_MASKS);
	__type(key, u32);
	__type(value, struct flow_mask);
} FLOW_MASKS SEC(".maps");

/* Each at one of two places, computed from its words and its mask. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct flow_rule);
} FLOW_RULES SEC(".maps");

/* Two places, one in each half. */
inline_always u64 places_of(const struct words *words, u64 start)
{
	u64 hash = (words->word[0] ^ start) * 0x9e3779b97f4a7c15ULL;

	hash ^= words->word[1] * 0xc2b2ae3d27d4eb4fULL;
	hash ^= (words->word[2] + start) * 0x165667b19e3779f9ULL;
	hash ^= words->word[3] * 0xd6e8feb86659fd93ULL;
	hash ^= (words->word[4] ^ start << 32) * 0xa0761d6478bd642fULL;
	hash = (hash ^ hash >> 32) * 0xe7037ed1a0b428dbULL;
	return hash ^ hash >> 29;
}

/* All ones if a rule outranks this one, otherwise zero. Without branches, which the verifier would
 * follow one by one. */
inline_always u64 takes_over(const struct flow_rule *rule, const struct words *masked, u32 mask,
			     u64 rank)
{
	const u64 *one = rule->words.word, *other = masked->word;
	u64 differs = (one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) |
		      (one[3] ^ other[3]) | (one[4] ^ other[4]) | (rule->mask ^ mask);
	u64 takes = (rank - rule->rank) & ~(differs | -differs);

	takes = -(takes >> 63);
	hide(takes);
	return takes;
}

/* Destination of a packet by the deciding rule. */
by_itself u32 find_rule(const struct words *words, u32 packets)
{
	u32 zero = 0, best = 0, now, half, start;
	volatile u32 *in_force = bpf_map_lookup_elem(&FLOWS_NOW, &zero);
	struct flow_rule *rule;
	u64 rank = 0;

	if (!words || !in_force)
		return ONWARD;
	now = *in_force;
	half = now >> 31;
	start = now >> 8 & 0xff;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MOST_MASKS; i++) {
		u32 number = half * MOST_MASKS + i;
		struct flow_mask *mask = bpf_map_lookup_elem(&FLOW_MASKS, &number);
		struct words masked;
		u64 places;

		if (i >= (now & 0xff) || !mask || mask->rank < rank)
			break;
		for (int word = 0; word < 5; word++)
			masked.word[word] = words->word[word] & mask->words.word[word];
		places = places_of(&masked, start << 8 | i);
#pragma unroll
		for (int turn = 0; turn < 2; turn++) {
			u32 place = half * (FLOW_LAST + 1) + (places >> 32 * turn & FLOW_LAST);
			u64 takes;

			rule = bpf_map_lookup_elem(&FLOW_RULES, &place);
			if (!rule)
				return ONWARD;
			takes = takes_over(rule, &masked, i, rank);
			rank ^= (rank ^ rule->rank) & takes;
			best ^= (best ^ place) & takes;
		}
	}
	if (!rank)
		return ONWARD;
	rule = bpf_map_lookup_elem(&FLOW_RULES, &best);
	if (!rule)
		return ONWARD;
	rule->packets += packets;
	return rule->queue;
}

inline_always u32 by_rules(void *context, int is_skb, u32 wire, u32 packets)
{
	struct packet packet = is_skb ? packet_of_skb(context) : packet_of_frame(context);
	struct words all = {};
	u64 *words = all.word;

	words[4] = (u64)wire << 56 | (u64)vlan_of(context, is_skb, 1 << 12) << 32;
	/* Inline: on processors with return mitigations, a call costs as much as a look-up. */
	if (is_plain(&packet)) {
		words[0] = *(u32 *)(packet.data + 26);
		words[2] = *(u32 *)(packet.data + 30);
		words[4] |= 1ULL << 55 | (u64)IPV4 << 53 | (u64)packet.data[23] << 45 |
			    *(u32 *)(packet.data + 34);
	} else {
		struct tuple tuple = {};
		u64 *address = tuple.key.address;

		if (is_skb)
			read_skb(context, &tuple);
		else
			read_frame(context, &tuple);
		if (tuple.family == IPV4) {
			words[0] = (u32)first_of_pair(address[0]);
			words[2] = (u32)second_of_pair(address[0]);
		} else {
			words[0] = address[0];
			words[1] = address[1];
			words[2] = address[2];
			words[3] = address[3];
		}
		words[4] |= (u64)tuple.family << 53 | (u64)(tuple.key.protocol & 0xff) << 45;
		if (tuple.family && !(tuple.key.protocol & WITHOUT_PORTS))
			words[4] |= 1ULL << 55 | wire_order(tuple.key.ports);
	}
	return find_rule(&all, packets);
}

/* Separate, because a program's stack is small. */
apart u32 by_rules_of_frame(struct xdp_md *context, u32 wire, u32 packets)
{
	return by_rules(context, 0, wire, packets);
}

apart u32 by_rules_of_skb(struct __sk_buff *context, u32 wire, u32 packets)
{
	return by_rules(context, 1, wire, packets);
}
