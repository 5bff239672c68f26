/* A packet's flow: its addresses and ports, as receive-side scaling in a NIC finds them.
 *
 * The rules are those of `picnic_core::packet::layers`, so that both engines find the same flow. A
 * differential test compares the two, except for malformed packets, where a hash cannot differ.
 * Source: RFC 791, RFC 8200, RFC 4302, RFC 6946, IEEE 802.1Q.
 */
#pragma once
#include "bpf.h"

enum { NO_IP = 0, IPV4 = 1, IPV6 = 2 };
enum { NO_PORTS = 0, TCP = 1, UDP = 2 };
/* Of both together. */
#define KINDS 9
/* The hashed fields of a kind. */
enum { OVER_NOTHING = 0, OVER_ADDRESSES = 1, OVER_PORTS = 2 };

enum {
	PROTOCOL_HOP_BY_HOP = 0,
	PROTOCOL_TCP = 6,
	PROTOCOL_UDP = 17,
	PROTOCOL_ROUTING = 43,
	PROTOCOL_FRAGMENT = 44,
	PROTOCOL_AUTHENTICATION = 51,
	PROTOCOL_DESTINATION_OPTIONS = 60,
};

#define MOST_EXTENSION_HEADERS 8
/* Most bytes of extension headers that are searched. */
#define LONGEST_EXTENSIONS 980

/* A packet, in the context of either kind of program. */
struct packet {
	void *context;
	/* The directly readable part: all headers, or all bytes. */
	u8 *data;
	u8 *end;
	u32 length;
	/* Stripped VLAN tags. */
	u32 tags_beside;
};

inline_always long load(void *context, int is_skb, u32 offset, void *to, u32 length)
{
	return is_skb ? bpf_skb_load_bytes(context, offset, to, length) :
			bpf_xdp_load_bytes(context, offset, to, length);
}

inline_always struct packet packet_of_frame(struct xdp_md *context)
{
	u8 *data = (u8 *)(long)context->data;
	u8 *end = (u8 *)(long)context->data_end;

	return (struct packet){ context, data, end, end - data, 0 };
}

inline_always struct packet packet_of_skb(struct __sk_buff *context)
{
	u8 *data = (u8 *)(long)context->data;
	u8 *end = (u8 *)(long)context->data_end;

	return (struct packet){ context, data, end, context->len, context->vlan_present };
}

inline_always u32 length_of(void *context, int is_skb)
{
	return is_skb ? packet_of_skb(context).length : packet_of_frame(context).length;
}

/* Words in memory order: addresses, then both ports in one. */
struct flow {
	u32 family;
	u32 l4;
	u32 words[9];
};

inline_always u32 l4_of(u8 protocol)
{
	return protocol == PROTOCOL_TCP ? TCP : protocol == PROTOCOL_UDP ? UDP : NO_PORTS;
}

/* The length from an IP header, limited to the available bytes; all of them if it is zero, as Linux
 * writes into super-frames of more than 65,535 bytes. */
inline_always u32 length_of_ip(const u8 *field, u32 rest)
{
	u32 length = from_be16(*(u16 *)field);

	return length && length < rest ? length : rest;
}

/* The transport protocol of an IPv4 packet, and both its ports in one word in memory order: none
 * for a fragment, or if truncated. */
inline_always u32 ports_of_ipv4(u8 *packet, u8 *end, u32 *ports)
{
	u32 header = (packet[0] & 15) * 4, l4 = l4_of(packet[9]);
	/* Their presence is checked below. */
	u32 length = length_of_ip(packet + 2, header + 4);
	u8 *behind = packet + header;

	/* More fragments, or an offset. */
	if (!l4 || (*(u16 *)(packet + 6) & be16(0x3fff)) || header < 20 ||
	    length < header + 4 || behind + 4 > end)
		return NO_PORTS;
	*ports = *(u32 *)behind;
	return l4;
}

/* After extension headers: bytes are copied instead of accessed by pointer, which is easier to
 * verify; few packets have any. `at` is their start, `length` the available bytes. */
inline_always u32 find_upper_layer(void *context, int is_skb, struct flow *flow, u32 at, u32 length,
				   u32 protocol)
{
	u32 offset = 0;

	if (!flow)
		return 0;
	for (int walked = 0; walked <= MOST_EXTENSION_HEADERS; walked++) {
		u8 header[8] = {};
		u32 units, rest;

		if (offset > length || offset > LONGEST_EXTENSIONS)
			return 0;
		rest = length - offset;
		if (protocol == PROTOCOL_FRAGMENT) {
			if (walked == MOST_EXTENSION_HEADERS || rest < 8 ||
			    load(context, is_skb, at + offset, header, 8))
				return 0;
			/* All but an atomic fragment: the rest may be cut anywhere. */
			if (header[2] | (header[3] & 0xf9))
				return 0;
			units = 8;
		} else if (protocol == PROTOCOL_HOP_BY_HOP || protocol == PROTOCOL_ROUTING ||
			   protocol == PROTOCOL_DESTINATION_OPTIONS ||
			   protocol == PROTOCOL_AUTHENTICATION) {
			if (rest < 2 || load(context, is_skb, at + offset, header, 2))
				return 0;
			if (protocol != PROTOCOL_AUTHENTICATION)
				units = header[1] * 8 + 8;
			else if (header[1])
				units = header[1] * 4 + 8;
			else
				return 0;
		} else {
			u32 l4 = l4_of(protocol), ports = 0;

			if (!l4 || rest < 4 || load(context, is_skb, at + offset, &ports, 4))
				return 0;
			flow->words[8] = ports;
			flow->l4 = l4;
			return 0;
		}
		if (units > rest)
			return 0;
		protocol = header[0];
		offset += units;
	}
	return 0;
}

apart u32 find_upper_layer_of_frame(struct xdp_md *context, struct flow *flow, u32 at, u32 length,
				    u32 protocol)
{
	return find_upper_layer(context, 0, flow, at, length, protocol);
}

apart u32 find_upper_layer_of_skb(struct __sk_buff *context, struct flow *flow, u32 at, u32 length,
				  u32 protocol)
{
	return find_upper_layer(context, 1, flow, at, length, protocol);
}

inline_always void find_ipv6(struct packet *of, int is_skb, u8 *packet, struct flow *flow)
{
	u32 length, l4, at = packet - of->data + 40;

	if (packet + 40 > of->end || packet[0] >> 4 != 6)
		return;
	flow->family = IPV6;
#pragma unroll
	for (int i = 0; i < 8; i++)
		flow->words[i] = *(u32 *)(packet + 8 + 4 * i);
	length = length_of_ip(packet + 4, of->length - at);
	l4 = l4_of(packet[6]);
	if (l4) {
		if (length < 4 || packet + 44 > of->end)
			return;
		flow->words[8] = *(u32 *)(packet + 40);
		flow->l4 = l4;
		return;
	}
	if (is_skb)
		find_upper_layer_of_skb(of->context, flow, at, length, packet[6]);
	else
		find_upper_layer_of_frame(of->context, flow, at, length, packet[6]);
}

inline_always int is_vlan(u16 type)
{
	return type == be16(0x8100) || type == be16(0x88a8);
}

/* The EtherType after an Ethernet frame's tags, and its position in `behind`: a tag's type if they
 * are truncated or too many, 0 if the frame itself is truncated. */
inline_always u16 skip_tags(const struct packet *of, u8 **behind)
{
	u8 *packet = of->data + 14;
	u16 type;

	*behind = packet;
	if (packet > of->end)
		return 0;
	type = *(u16 *)(of->data + 12);
#pragma unroll
	for (u32 tags = 0; tags < 2; tags++) {
		if (!is_vlan(type) || tags + of->tags_beside >= 2 || packet + 4 > of->end)
			break;
		type = *(u16 *)(packet + 2);
		packet += 4;
	}
	*behind = packet;
	return type;
}

/* Whether a packet is as usual: no tags, no options, no fragment, TCP or UDP. Then its fields are
 * at known offsets. */
inline_always int is_plain(const struct packet *of)
{
	u8 *data = of->data;

	return data + 38 <= of->end && *(u16 *)(data + 12) == be16(0x0800) && data[14] == 0x45 &&
	       (data[23] == PROTOCOL_TCP || data[23] == PROTOCOL_UDP) &&
	       !(*(u16 *)(data + 20) & be16(0x3fff)) && from_be16(*(u16 *)(data + 16)) >= 24;
}

/* Whether a packet is IPv4; also its hashed fields and their words, in registers. `over_kinds` is
 * by kind. */
inline_always int words_if_ipv4(const struct packet *of, const volatile u32 *over_kinds, u32 *words,
				u32 *over_words)
{
	u32 over, l4, ports = 0;
	u8 *packet = of->data + 14, *end = of->end;

	*over_words = OVER_NOTHING;
	if (is_plain(of)) {
		l4 = packet[9] == PROTOCOL_TCP ? TCP : UDP;
		ports = *(u32 *)(packet + 20);
	} else {
		if (skip_tags(of, &packet) != be16(0x0800))
			return 0;
		if (packet + 20 > end || packet[0] >> 4 != 4)
			return 1;
		l4 = ports_of_ipv4(packet, end, &ports);
	}
	over = l4 == TCP ? over_kinds[IPV4 * 3 + TCP] :
	       l4 == UDP ? over_kinds[IPV4 * 3 + UDP] :
			   over_kinds[IPV4 * 3];
	words[0] = *(u32 *)(packet + 12);
	words[1] = *(u32 *)(packet + 16);
	words[2] = over == OVER_PORTS ? ports : 0;
	/* Whole words: otherwise each branch would extract parts and keep them on the stack. */
	hide(words[0]);
	hide(words[1]);
	hide(words[2]);
	*over_words = over;
	return 1;
}

/* The same after an Ethernet header, for IPv6. */
inline_always u32 words_of_ipv6(struct packet *of, int is_skb, const volatile u32 *over_kinds,
				struct flow *flow)
{
	u32 kind, over;
	u8 *behind;

	if (skip_tags(of, &behind) != be16(0x86dd))
		return OVER_NOTHING;
	find_ipv6(of, is_skb, behind, flow);
	kind = flow->family * 3 + flow->l4;
	/* Known to the compiler; this also tells the verifier. */
	hide(kind);
	if (kind >= KINDS)
		return OVER_NOTHING;
	over = over_kinds[kind];
	if (over == OVER_ADDRESSES)
		flow->words[8] = 0;
	return over;
}
