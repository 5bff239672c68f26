/* The five-tuple of a packet for filters, and its hidden part.
 *
 * The rules are those of `picnic_core::packet::layers` and `picnic_filter::hidden`; a differential
 * test compares both.
 * Source: RFC 791, RFC 8200, RFC 4302, RFC 6946, IEEE 802.1Q.
 */
#pragma once
#include "bpf.h"
#include "flow.h"

/* How much of a five-tuple is hidden. A filter that drops treats each kind as including the earlier
 * ones. */
enum {
	HIDDEN_NOTHING = 0,
	HIDDEN_PORTS = 1,
	HIDDEN_PROTOCOL = 2,
	HIDDEN_DESTINATION = 3,
	HIDDEN_CHAIN = 4,
	HIDDEN_ADDRESSES = 5,
	HIDDEN_EVERYTHING = 6,
};

/* Set in a key's protocol for each part that the packet lacks or hides: rules with a condition on
 * that part have the bit in their mask. */
#define WITHOUT_PORTS 0x100
#define WITHOUT_PROTOCOL 0x200
#define WITHOUT_SOURCE 0x400
#define WITHOUT_DESTINATION 0x800

/* The key of a packet: addresses in memory order, ports as numbers, the source's in the lower half. */
struct key {
	u64 address[4];
	u32 ports;
	u32 protocol;
};

struct tuple {
	struct key key;
	/* NO_IP if it has no addresses. */
	u32 family;
	/* By its EtherType, even if its addresses are hidden. */
	u32 type_family;
	u32 hidden;
	/* An authentication header is among the extension headers: it also counts as the protocol. */
	u32 authenticated;
};

/* The addresses are truncated. */
inline_always void hide_addresses(struct tuple *tuple, u32 family)
{
	tuple->type_family = family;
	tuple->hidden = HIDDEN_ADDRESSES;
	tuple->key.protocol = WITHOUT_PORTS | WITHOUT_PROTOCOL | WITHOUT_SOURCE |
			      WITHOUT_DESTINATION;
}

inline_always u32 ports_of(const u8 *l4)
{
	return from_be16(*(u16 *)l4) | (u32)from_be16(*(u16 *)(l4 + 2)) << 16;
}

/* Ports in packet order. */
inline_always u32 wire_order(u32 ports)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return from_be16((u16)ports) | (u32)from_be16((u16)(ports >> 16)) << 16;
#else
	return ports << 16 | ports >> 16;
#endif
}

/* Of two consecutive words. */
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

/* Whether an IPv4 packet is routed on from its destination to another. */
inline_always u32 is_source_routed(void *context, int is_skb, u32 at, u32 length)
{
	struct options options = {};
	/* Bounded by the bytes after the first: the verifier of Linux 6.1 does not learn from a
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
	options.at = nothing;
	bpf_loop(MOST_OPTIONS, next_option, &options, 0);
	return options.routed;
}

apart u32 is_frame_routed(struct xdp_md *context, u32 at, u32 length)
{
	return is_source_routed(context, 0, at, length);
}

apart u32 is_skb_routed(struct __sk_buff *context, u32 at, u32 length)
{
	return is_source_routed(context, 1, at, length);
}

inline_always void read_ipv4(struct packet *of, int is_skb, u8 *packet, struct tuple *tuple)
{
	u32 header, total, rest, routed, protocol, has_l4 = 0, at = packet - of->data;
	u8 *l4;

	hide_addresses(tuple, IPV4);
	if (packet + 20 > of->end || packet[0] >> 4 != 4)
		return;
	tuple->hidden = HIDDEN_NOTHING;
	tuple->family = IPV4;
	tuple->key.address[0] = *(u64 *)(packet + 12);
	protocol = packet[9];
	tuple->key.protocol = protocol | WITHOUT_PORTS;
	header = (packet[0] & 15) * 4;
	rest = of->length - at;
	total = length_of_ip(packet + 2, rest);
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
	/* A complete ICMP header: everything was read. */
	if (routed) {
		tuple->hidden = HIDDEN_DESTINATION;
		tuple->key.protocol |= WITHOUT_DESTINATION;
	} else if (protocol == PROTOCOL_AUTHENTICATION)
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

/* Mobility, HIP and Shim6 headers, which are not parsed through. */
inline_always int is_other_extension(u32 protocol)
{
	return protocol == 135 || protocol == 139 || protocol == 140;
}

/* Extension headers of a packet, and the search through them. */
struct extensions {
	void *context;
	/* Their start, the available bytes of the frame, and of the packet. */
	u32 at;
	u32 view;
	u32 length;
	/* Kind and start of the next one. */
	u32 protocol;
	u32 offset;
	/* The protocol after them; zero, a protocol without payload, if they are truncated, too many or
	 * too long. */
	u32 upper;
	/* Its ports, if any. */
	u32 ports;
	u32 has_ports;
	/* IS_... */
	u32 found;
};

enum { IS_ROUTED = 1, IS_AUTHENTICATED = 2, IS_BEYOND = 4 };

/* Steps over one header as receive-side scaling in a NIC does; nonzero at the end. */
inline_always long read_extension(u64 turn, struct extensions *headers, int is_skb)
{
	u32 protocol = headers->protocol, offset = headers->offset, units, rest;
	void *context = headers->context;
	u8 header[8] = {};

	if (offset > headers->length)
		return 1;
	rest = headers->length - offset;
	if (!is_extension(protocol)) {
		if (offset > LONGEST_EXTENSIONS)
			return 1;
		if (has_ports(protocol) && rest >= 4 &&
		    !load(context, is_skb, headers->at + offset, header, 4)) {
			headers->ports = ports_of(header);
			headers->has_ports = 1;
		}
		headers->upper = protocol;
		return 1;
	}
	if (turn == MOST_EXTENSION_HEADERS)
		return 1;
	if (protocol == PROTOCOL_FRAGMENT) {
		if (rest < 8 || load(context, is_skb, headers->at + offset, header, 8))
			return 1;
		/* All but an atomic fragment: the rest may be cut anywhere. */
		if (header[2] | (header[3] & 0xf9)) {
			headers->upper = header[0];
			return 1;
		}
		units = 8;
	} else {
		if (rest < 2 || load(context, is_skb, headers->at + offset, header, 2))
			return 1;
		if (protocol != PROTOCOL_AUTHENTICATION)
			units = header[1] * 8 + 8;
		else if (header[1])
			units = header[1] * 4 + 8;
		else
			return 1;
	}
	if (units > rest)
		return 1;
	headers->protocol = header[0];
	headers->offset = offset + units;
	return 0;
}

/* Steps over one header as a host might; nonzero at the end. */
inline_always long read_beyond(struct extensions *headers, int is_skb)
{
	u32 protocol = headers->protocol, offset = headers->offset;
	u8 header[4] = {};

	if (offset + 4 > headers->view ||
	    load(headers->context, is_skb, headers->at + offset, header, 4))
		return 1;
	if (protocol == PROTOCOL_FRAGMENT) {
		if (header[2] | (header[3] & 0xf9))
			return 1;
		offset += 8;
	} else if (protocol == PROTOCOL_AUTHENTICATION) {
		headers->found |= IS_AUTHENTICATED;
		offset += header[1] * 4 + 8;
	} else if (is_extension(protocol) || is_other_extension(protocol)) {
		if (protocol == PROTOCOL_ROUTING && header[3])
			headers->found |= IS_ROUTED;
		if (is_other_extension(protocol))
			headers->found |= IS_BEYOND;
		offset += header[1] * 8 + 8;
	} else {
		return 1;
	}
	headers->protocol = header[0];
	headers->offset = offset;
	return 0;
}

static long read_extension_of_frame(u64 turn, struct extensions *headers)
{
	return read_extension(turn, headers, 0);
}

static long read_extension_of_skb(u64 turn, struct extensions *headers)
{
	return read_extension(turn, headers, 1);
}

static long read_beyond_of_frame(u64 turn, struct extensions *headers)
{
	(void)turn;
	return read_beyond(headers, 0);
}

static long read_beyond_of_skb(u64 turn, struct extensions *headers)
{
	(void)turn;
	return read_beyond(headers, 1);
}

/* Finds the protocol after extension headers, whether they route the packet to another host, and
 * whether there is an authentication header. */
inline_always void read_extensions(struct extensions *headers, int is_skb, u32 first)
{
	u32 protocol;

	headers->protocol = first;
	headers->offset = nothing;
	if (is_skb)
		bpf_loop(MOST_EXTENSION_HEADERS + 1, read_extension_of_skb, headers, 0);
	else
		bpf_loop(MOST_EXTENSION_HEADERS + 1, read_extension_of_frame, headers, 0);
	headers->protocol = first;
	headers->offset = nothing;
	if (is_skb)
		bpf_loop(MOST_EXTENSION_HEADERS, read_beyond_of_skb, headers, 0);
	else
		bpf_loop(MOST_EXTENSION_HEADERS, read_beyond_of_frame, headers, 0);
	protocol = headers->protocol;
	if ((headers->found & IS_BEYOND) && (is_extension(protocol) || is_other_extension(protocol)))
		headers->found |= IS_ROUTED;
}

inline_always void read_ipv6(struct packet *of, int is_skb, u8 *packet, struct tuple *tuple)
{
	struct extensions headers = {};
	u32 protocol, length, at = packet - of->data + 40;

	hide_addresses(tuple, IPV6);
	if (packet + 40 > of->end || packet[0] >> 4 != 6)
		return;
	tuple->hidden = HIDDEN_NOTHING;
	tuple->family = IPV6;
#pragma unroll
	for (int i = 0; i < 4; i++)
		tuple->key.address[i] = *(u64 *)(packet + 8 + 8 * i);
	protocol = packet[6];
	tuple->key.protocol = protocol | WITHOUT_PORTS;
	length = length_of_ip(packet + 4, of->length - at);
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
	headers.context = of->context;
	headers.at = at;
	headers.view = of->length - at;
	headers.length = length;
	read_extensions(&headers, is_skb, protocol);
	protocol = headers.upper;
	if (headers.has_ports) {
		tuple->key.ports = headers.ports;
		tuple->key.protocol = protocol;
	} else {
		tuple->key.protocol = WITHOUT_PORTS | protocol;
	}
	/* After a fragment header the next header is known but not read. */
	tuple->authenticated = (headers.found & IS_AUTHENTICATED) ||
			       protocol == PROTOCOL_AUTHENTICATION;
	if (is_extension(protocol)) {
		tuple->hidden = HIDDEN_CHAIN;
		tuple->key.protocol |= WITHOUT_DESTINATION | WITHOUT_PROTOCOL;
	} else if (headers.found & IS_ROUTED) {
		tuple->hidden = HIDDEN_DESTINATION;
		tuple->key.protocol |= WITHOUT_DESTINATION;
	} else if (is_other_extension(protocol)) {
		tuple->hidden = HIDDEN_PROTOCOL;
	} else if (has_ports(protocol) && (tuple->key.protocol & WITHOUT_PORTS)) {
		tuple->hidden = HIDDEN_PORTS;
	}
}

/* Reads the headers of an Ethernet frame; `tuple` must be all zero. */
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

/* Verified separately, so that callers are not verified for each path through the headers. */
by_itself u32 read_frame(struct xdp_md *context, struct tuple *tuple)
{
	struct packet packet = packet_of_frame(context);

	if (tuple)
		read_headers(&packet, 0, tuple);
	return 0;
}

by_itself u32 read_skb(struct __sk_buff *context, struct tuple *tuple)
{
	struct packet packet = packet_of_skb(context);

	if (tuple)
		read_headers(&packet, 1, tuple);
	return 0;
}
