/* Rules for flows: one lookup for each combination of fields and prefix lengths in use.
 *
 * The words that are compared are those of the function `flow-director` of the poll engine.
 * Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search" (1999).
 */
#pragma once
#include "bpf.h"
#include "headers.h"
#include "police.h"

#define MOST_MASKS 64
/* In place of a queue: on to the next function, and dropped. */
#define ONWARD 0xffff
#define DROPS 0xfffe

const volatile u32 FLOW_MASKS_USED = 0;

/* Addresses, then wire 8, ports 1, family 2, protocol 8, tag 1, VLAN 12, both ports 32. */
struct words {
	u64 word[5];
};

struct masked {
	struct words words;
	u64 mask;
};

struct flow_rule {
	/* The least decides. */
	u64 order;
	u64 queue;
};

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, MOST_MASKS);
	__type(key, u32);
	__type(value, struct words);
} FLOW_MASKS SEC(".maps");

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 1);
	__type(key, struct masked);
	__type(value, struct flow_rule);
} FLOW_RULES SEC(".maps");

struct flow_search {
	struct words words;
	struct masked masked;
	u64 order;
	u32 queue;
};

static long next_mask(u64 turn, struct flow_search *search)
{
	u32 number = turn;
	struct words *mask = bpf_map_lookup_elem(&FLOW_MASKS, &number);
	struct flow_rule *rule;

	if (!mask)
		return 1;
#pragma unroll
	for (int i = 0; i < 5; i++)
		search->masked.words.word[i] = search->words.word[i] & mask->word[i];
	search->masked.mask = number;
	rule = bpf_map_lookup_elem(&FLOW_RULES, &search->masked);
	if (rule && rule->order < search->order) {
		search->order = rule->order;
		search->queue = rule->queue;
	}
	return 0;
}

inline_always u32 by_rules(void *context, int is_skb, u32 wire)
{
	struct packet packet = is_skb ? packet_of_skb(context) : packet_of_frame(context);
	struct flow_search search = {};
	struct tuple tuple = {};
	u64 *words = search.words.word, *address = tuple.key.address;

	read_headers(&packet, is_skb, &tuple);
	if (tuple.family == IPV4) {
		words[0] = (u32)first_of_pair(address[0]);
		words[2] = (u32)second_of_pair(address[0]);
	} else {
		words[0] = address[0];
		words[1] = address[1];
		words[2] = address[2];
		words[3] = address[3];
	}
	words[4] = (u64)wire << 56 | (u64)tuple.family << 53 | (u64)(tuple.key.protocol & 0xff) << 45 |
		   (u64)vlan_of(context, is_skb, 1 << 12) << 32;
	if (tuple.family && !(tuple.key.protocol & WITHOUT_PORTS))
		words[4] |= 1ULL << 55 | wire_order(tuple.key.ports);
	search.order = ~0ULL;
	search.queue = ONWARD;
	bpf_loop(FLOW_MASKS_USED, next_mask, &search, 0);
	return search.queue;
}

apart u32 by_rules_of_frame(struct xdp_md *context, u32 wire)
{
	return by_rules(context, 0, wire);
}

apart u32 by_rules_of_skb(struct sk_buff *context, u32 wire)
{
	return by_rules(context, 1, wire);
}
