/* What filters read of a packet: its five-tuple, and what of that is hidden.
 *
 * The rules are those of `picnic_core::packet::layers` and `picnic_filter::hidden`: a differential
 * test holds both together.
 * Source: RFC 791, RFC 8200, RFC 4302, RFC 6946, IEEE 802.1Q.
 */
#pragma once
#include "bpf.h"
#include "flow.h"

/* How much of a five-tuple is hidden; each includes those before it. */
enum {
	HIDDEN_NOTHING = 0,
	HIDDEN_AUTHENTICATED = 1,
	HIDDEN_PORTS = 2,
	HIDDEN_PROTOCOL = 3,
	HIDDEN_ADDRESSES = 4,
	HIDDEN_EVERYTHING = 5,
};

/* Set in a key's protocol if there are no ports. */
#define WITHOUT_PORTS 0x100

/* What a packet is looked up by: addresses as they lie in memory, ports as numbers, the source's
 * in the lower half. */
struct key {
	u64 address[4];
	u32 ports;
	u32 protocol;
};

struct tuple {
	struct key key;
	/* NO_IP if it has no addresses. */
	u32 family;
	/* By its type, of what has hidden addresses. */
	u32 type_family;
	u32 hidden;
};

inline_always u32 ports_of(const u8 *l4)
{
	return from_be16(*(u16 *)l4) | (u32)from_be16(*(u16 *)(l4 + 2)) << 16;
}

/* Ports as they lie in a packet. */
inline_always u32 wire_order(u32 ports)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return from_be16((u16)ports) | (u32)from_be16((u16)(ports >> 16)) << 16;
#else
	return ports << 16 | ports >> 16;
#endif
}

/* Of two words that lie one after the other. */
inline_always u32 first_of_pair(u64 pair)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return pair;
#else
	return pair >> 32;
#endif
}

inline_always u32 second_of_pair(u64 pair)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return pair >> 32;
#else
	return pair;
#endif
}

inline_always int has_ports(u32 protocol)
{
	return protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP;
}

#define MOST_OPTIONS 40

/* Options of an IPv4 header. */
struct options {
	u8 bytes[MOST_OPTIONS + 4];
	u32 length;
	u32 at;
	u32 routed;
};

static long next_option(u64 turn, struct options *options)
{
	enum { END = 0, NOTHING = 1, LOOSE_ROUTE = 131, STRICT_ROUTE = 137 };
	u32 at = options->at, left, length;
	u8 kind;

	(void)turn;
	if (at >= options->length || at >= MOST_OPTIONS)
		return 1;
	left = options->length - at;
	kind = options->bytes[at];
	if (kind == END)
		return 1;
	if (kind == NOTHING) {
		options->at = at + 1;
		return 0;
	}
	length = options->bytes[at + 1];
	if ((kind == LOOSE_ROUTE || kind == STRICT_ROUTE) && left >= 3) {
		/* The pointer is past the route's end once the packet has arrived. */
		options->routed = options->bytes[at + 2] <= length;
		return 1;
	}
	if (left < 2 || length < 2)
		return 1;
	options->at = at + length;
	return 0;
}

/* Whether an IPv4 packet is to go on from its destination to another. */
inline_always u32 is_source_routed(void *context, int is_skb, u32 at, u32 length)
{
	struct options options = {};
	/* Bounded as what is beyond the first byte: the verifier of Linux 6.1 does not take from a
	 * comparison with zero that there is one. */
	u32 more = length - 1;

	if (!length)
		return 0;
	hide(more);
	if (more > MOST_OPTIONS - 1)
		more = MOST_OPTIONS - 1;
	if (load(context, is_skb, at, options.bytes, more + 1))
		return 0;
	options.length = more + 1;
	bpf_loop(MOST_OPTIONS, next_option, &options, 0);
	return options.routed;
}

apart u32 is_frame_routed(struct xdp_md *context, u32 at, u32 length)
{
	return is_source_routed(context, 0, at, length);
}

apart u32 is_skb_routed(struct sk_buff *context, u32 at, u32 length)
{
	return is_source_routed(context, 1, at, length);
}

inline_always void read_ipv4(struct packet *of, int is_skb, u8 *packet, struct tuple *tuple)
{
	u32 header, total, rest, routed, protocol, has_l4 = 0, at = packet - of->data;
	u8 *l4;

	tuple->type_family = IPV4;
	tuple->hidden = HIDDEN_ADDRESSES;
	if (packet + 20 > of->end || packet[0] >> 4 != 4)
		return;
	tuple->hidden = HIDDEN_NOTHING;
	tuple->family = IPV4;
	tuple->key.address[0] = *(u64 *)(packet + 12);
	protocol = packet[9];
	tuple->key.protocol = protocol | WITHOUT_PORTS;
	header = (packet[0] & 15) * 4;
	total = from_be16(*(u16 *)(packet + 2));
	rest = of->length - at;
	total = total < rest ? total : rest;
	l4 = packet + header;
	if (header >= 20 && total >= header + 4 && !(*(u16 *)(packet + 6) & be16(0x3fff))) {
		has_l4 = 1;
		if (has_ports(protocol)) {
			if (l4 + 4 <= of->end) {
				tuple->key.ports = ports_of(l4);
				tuple->key.protocol = protocol;
				if (header == 20)
					return;
			} else {
				has_l4 = 0;
			}
		}
	}
	routed = 0;
	if (header > 20 && rest > 20) {
		u32 length = (header < rest ? header : rest) - 20;

		routed = is_skb ? is_skb_routed(of->context, at + 20, length) :
				  is_frame_routed(of->context, at + 20, length);
	}
	/* ICMP that is there is plain, and all of it is read. */
	if (routed)
		tuple->hidden = HIDDEN_ADDRESSES;
	else if (protocol == PROTOCOL_AUTHENTICATION)
		tuple->hidden = HIDDEN_PROTOCOL;
	else if (has_ports(protocol) && !has_l4)
		tuple->hidden = HIDDEN_PORTS;
}

inline_always int is_extension(u32 protocol)
{
	return protocol == PROTOCOL_HOP_BY_HOP || protocol == PROTOCOL_ROUTING ||
	       protocol == PROTOCOL_FRAGMENT || protocol == PROTOCOL_AUTHENTICATION ||
	       protocol == PROTOCOL_DESTINATION_OPTIONS;
}

/* Mobility, HIP and Shim6 headers, which are not read through. */
inline_always int is_other_extension(u32 protocol)
{
	return protocol == 135 || protocol == 139 || protocol == 140;
}

/* Extension headers: where they begin, how much of the frame lies there, how much of that is the
 * packet's, and the kind of the first. */
struct extensions {
	u32 at;
	u32 view;
	u32 length;
	u32 first;
};

/* What receive-side scaling in a NIC reads behind extension headers; zero, a protocol that nothing
 * stands behind, if they are cut off, too many, or too long. */
inline_always u32 read_upper_layer(void *context, int is_skb, const struct extensions *headers,
				   struct tuple *tuple)
{
	u32 protocol = headers->first, offset = 0;

	for (int walked = 0; walked <= MOST_EXTENSION_HEADERS; walked++) {
		u8 header[8] = {};
		u32 units, rest;

		if (offset > headers->length)
			return 0;
		rest = headers->length - offset;
		if (!is_extension(protocol)) {
			u32 ports;

			if (offset > LONGEST_EXTENSIONS)
				return 0;
			if (has_ports(protocol) && rest >= 4 &&
			    !load(context, is_skb, headers->at + offset, &ports, 4)) {
				tuple->key.ports = ports_of((u8 *)&ports);
				tuple->key.protocol = 0;
			}
			return protocol;
		}
		if (walked == MOST_EXTENSION_HEADERS)
			return 0;
		if (protocol == PROTOCOL_FRAGMENT) {
			if (rest < 8 || load(context, is_skb, headers->at + offset, header, 8))
				return 0;
			/* All but an atomic fragment: what follows is cut anywhere. */
			if (header[2] | (header[3] & 0xf9))
				return header[0];
			units = 8;
		} else {
			if (rest < 2 || load(context, is_skb, headers->at + offset, header, 2))
				return 0;
			if (protocol != PROTOCOL_AUTHENTICATION)
				units = header[1] * 8 + 8;
			else if (header[1])
				units = header[1] * 4 + 8;
			else
				return 0;
		}
		if (units > rest)
			return 0;
		protocol = header[0];
		offset += units;
	}
	return 0;
}

enum { IS_ROUTED = 1, IS_AUTHENTICATED = 2 };

/* Whether a host is sent on by what is there, as it might read it; and whether there is an
 * authentication header. */
inline_always u32 read_beyond(void *context, int is_skb, const struct extensions *headers)
{
	u32 protocol = headers->first, offset = 0, found = 0, is_beyond = 0;

	for (int walked = 0; walked < MOST_EXTENSION_HEADERS; walked++) {
		u8 header[4] = {};

		if (offset + 4 > headers->view ||
		    load(context, is_skb, headers->at + offset, header, 4))
			break;
		if (protocol == PROTOCOL_FRAGMENT) {
			if (header[2] | (header[3] & 0xf9))
				break;
			offset += 8;
		} else if (protocol == PROTOCOL_AUTHENTICATION) {
			found |= IS_AUTHENTICATED;
			offset += header[1] * 4 + 8;
		} else if (is_extension(protocol) || is_other_extension(protocol)) {
			if (protocol == PROTOCOL_ROUTING && header[3])
				found |= IS_ROUTED;
			if (is_other_extension(protocol))
				is_beyond = 1;
			offset += header[1] * 8 + 8;
		} else {
			break;
		}
		protocol = header[0];
	}
	if (is_beyond && (is_extension(protocol) || is_other_extension(protocol)))
		found |= IS_ROUTED;
	return found;
}

/* One of each for both kinds of packet. */
apart u32 upper_layer_of_frame(struct xdp_md *context, const struct extensions *headers,
			       struct tuple *tuple)
{
	return headers && tuple ? read_upper_layer(context, 0, headers, tuple) : 0;
}

apart u32 upper_layer_of_skb(struct sk_buff *context, const struct extensions *headers,
			     struct tuple *tuple)
{
	return headers && tuple ? read_upper_layer(context, 1, headers, tuple) : 0;
}

apart u32 beyond_of_frame(struct xdp_md *context, const struct extensions *headers)
{
	return headers ? read_beyond(context, 0, headers) : 0;
}

apart u32 beyond_of_skb(struct sk_buff *context, const struct extensions *headers)
{
	return headers ? read_beyond(context, 1, headers) : 0;
}

inline_always void read_ipv6(struct packet *of, int is_skb, u8 *packet, struct tuple *tuple)
{
	struct extensions headers;
	u32 protocol, length, found = 0, at = packet - of->data + 40;

	tuple->type_family = IPV6;
	tuple->hidden = HIDDEN_ADDRESSES;
	if (packet + 40 > of->end || packet[0] >> 4 != 6)
		return;
	tuple->hidden = HIDDEN_NOTHING;
	tuple->family = IPV6;
#pragma unroll
	for (int i = 0; i < 4; i++)
		tuple->key.address[i] = *(u64 *)(packet + 8 + 8 * i);
	protocol = packet[6];
	tuple->key.protocol = protocol | WITHOUT_PORTS;
	length = from_be16(*(u16 *)(packet + 4));
	if (has_ports(protocol)) {
		if (length < 4 || packet + 44 > of->end) {
			tuple->hidden = HIDDEN_PORTS;
			return;
		}
		tuple->key.ports = ports_of(packet + 40);
		tuple->key.protocol = protocol;
		return;
	}
	if (!is_extension(protocol) && !is_other_extension(protocol))
		return;
	headers.at = at;
	headers.view = of->length - at;
	headers.length = length < headers.view ? length : headers.view;
	headers.first = protocol;
	if (is_skb) {
		protocol = upper_layer_of_skb(of->context, &headers, tuple);
		found = beyond_of_skb(of->context, &headers);
	} else {
		protocol = upper_layer_of_frame(of->context, &headers, tuple);
		found = beyond_of_frame(of->context, &headers);
	}
	/* With ports, it has been cleared. */
	if (tuple->key.protocol)
		tuple->key.protocol = WITHOUT_PORTS;
	tuple->key.protocol |= protocol;
	if ((found & IS_ROUTED) || is_extension(protocol))
		tuple->hidden = HIDDEN_ADDRESSES;
	else if (is_other_extension(protocol))
		tuple->hidden = HIDDEN_PROTOCOL;
	else if (has_ports(protocol) && (tuple->key.protocol & WITHOUT_PORTS))
		tuple->hidden = HIDDEN_PORTS;
	else if (found & IS_AUTHENTICATED)
		tuple->hidden = HIDDEN_AUTHENTICATED;
}

/* Reads the headers of an Ethernet frame; `tuple` is all zero before. */
inline_always void read_headers(struct packet *of, int is_skb, struct tuple *tuple)
{
	u8 *packet;
	u16 type = skip_tags(of, &packet);

	if (type == be16(0x0800))
		read_ipv4(of, is_skb, packet, tuple);
	else if (type == be16(0x86dd))
		read_ipv6(of, is_skb, packet, tuple);
	else if (is_vlan(type))
		tuple->hidden = HIDDEN_EVERYTHING;
}
