/*
 * Families of five-tuple rules with packets for them, generated from a seed.
 *
 * bench/micro/src/classifier/rules.rs generates the same rules and packets;
 * equal fingerprints prove it. Half of the packets match a random rule; the
 * others are arbitrary, or have the addresses of two rules, so that they nearly
 * match.
 */
#ifndef PICNIC_FIVE_TUPLE_H
#define PICNIC_FIVE_TUPLE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "peer.h"

#define ANY_PROTOCOL 0x100u

struct ports {
	uint16_t first, last;
};

/* Source and destination: addresses with their prefix lengths, and ports. */
struct rule {
	uint32_t address[2];
	uint8_t length[2];
	struct ports port[2];
	uint32_t protocol;
};

struct packet {
	uint32_t address[2];
	uint16_t port[2];
	uint8_t protocol;
};

/*
 * RANDOM       networks of 8 to 32 and 16 to 32 bits, one port, a short range
 *              or any, mostly TCP
 * ACCESS_LIST  servers by address and service, for networks or anybody, and a
 *              default
 * FIREWALL     blocked sources and destinations, services with short and wide
 *              ranges, and a default
 * WIDE_PORTS   networks of any length with two ranges of any width
 * PORTS_ONLY   two ranges of up to a quarter of all ports, any address
 */
enum family { RANDOM, ACCESS_LIST, FIREWALL, WIDE_PORTS, PORTS_ONLY };
static const char *const family_words[] = {
	"random", "access-list", "firewall", "wide-ports", "ports-only", NULL
};

static const struct ports any_ports = { 0, UINT16_MAX };
/* Ports of the services in lists; some appear twice, as in real lists. */
static const uint16_t services[16] = { 80,  443, 443, 22,  25,	 53,   53,   110,
				       123, 143, 389, 993, 3306, 5432, 8080, 8443 };
/* Ports that clients use, and other ranges that are often written. */
static const struct ports ranges[4] = {
	{ 1024, 65535 }, { 0, 1023 }, { 6000, 6063 }, { 49152, 65535 }
};

static inline uint32_t prefix_mask(unsigned length)
{
	return length == 0 ? 0 : UINT32_MAX << (32 - length);
}

/* A range of at most `width` ports from a drawn port; one number holds two ports. */
static inline struct ports short_range(uint64_t drawn, int end, unsigned width)
{
	const uint16_t first = (uint16_t)(drawn >> (32 * end));
	const unsigned more = (uint16_t)(drawn >> (32 * end + 16)) % width;
	const unsigned last = first + more;
	return (struct ports){ first, (uint16_t)(last < UINT16_MAX ? last : UINT16_MAX) };
}

static inline struct ports wide_range(uint64_t drawn, int end)
{
	const uint16_t a = (uint16_t)(drawn >> (32 * end));
	const uint16_t b = (uint16_t)(drawn >> (32 * end + 16));
	return a < b ? (struct ports){ a, b } : (struct ports){ b, a };
}

static inline struct ports one_port(uint16_t port)
{
	return (struct ports){ port, port };
}

/* One of the operator's own 16 networks, and an address in it. */
static inline uint32_t own_address(uint64_t choice, uint32_t drawn)
{
	const uint32_t network = (uint32_t)((choice >> 32) % 16) * 13;
	return UINT32_C(10) << 24 | network << 16 | (drawn & 0xffff);
}

/* The rule at a place of a list of `count`; three numbers are drawn for each. */
static inline void random_rule(struct rule *rule, enum family family,
			       uint32_t place, uint32_t count, uint64_t *random)
{
	const uint64_t choice = peer_random(random);
	const uint64_t address = peer_random(random);
	const uint64_t drawn = peer_random(random);
	const uint32_t own = own_address(choice, (uint32_t)(address >> 32));
	const uint16_t service = services[(choice >> 24) % 16];
	unsigned source = 0, destination = 0;

	rule->address[0] = (uint32_t)address;
	rule->address[1] = (uint32_t)(address >> 32);
	rule->port[0] = rule->port[1] = any_ports;
	rule->protocol = (choice >> 20) % 4 != 0 ? IPPROTO_TCP : IPPROTO_UDP;

	switch (family) {
	case RANDOM:
		source = 8 + choice % 25;
		destination = 16 + (choice >> 8) % 17;
		if ((choice >> 16) % 8 == 0)
			rule->protocol = ANY_PROTOCOL;
		if ((choice >> 24) % 4 == 0)
			rule->port[0] = short_range(drawn, 0, 1024);
		if ((choice >> 28) % 4 == 1)
			rule->port[1] = short_range(drawn, 1, 1024);
		else if ((choice >> 28) % 4 > 1)
			rule->port[1] = one_port((uint16_t)(drawn >> 32));
		break;
	case ACCESS_LIST:
	case FIREWALL:
		if (place + 1 == count) {
			rule->protocol = ANY_PROTOCOL;
			break;
		}
		if (family == ACCESS_LIST) {
			source = choice % 2 == 0 ? 0 : 8 + (choice >> 4) % 17;
			rule->address[1] = own;
			destination = (choice >> 40) % 8 == 0 ? 24 : 32;
			rule->port[1] = one_port(service);
			break;
		}
		switch (choice % 8) {
		case 0:
		case 1:
			source = 16 + (choice >> 4) % 17;
			rule->protocol = ANY_PROTOCOL;
			break;
		case 2:
			destination = 16 + (choice >> 4) % 17;
			rule->protocol = ANY_PROTOCOL;
			break;
		case 3:
			source = 8 + (choice >> 4) % 17;
			rule->address[1] = own;
			destination = 16 + (choice >> 12) % 9;
			rule->port[1] = ranges[(choice >> 36) % 4];
			break;
		case 4:
			rule->address[1] = own;
			destination = 24 + (choice >> 12) % 9;
			rule->port[0] = ranges[0];
			rule->port[1] = short_range(drawn, 1, 1024);
			break;
		case 5:
			rule->address[1] = rule->address[0];
			rule->address[0] = own;
			source = 16 + (choice >> 4) % 9;
			destination = 16 + (choice >> 12) % 9;
			break;
		default:
			rule->address[1] = own;
			destination = 32;
			rule->port[1] = one_port(service);
		}
		break;
	case WIDE_PORTS:
		source = choice % 33;
		destination = (choice >> 8) % 33;
		rule->port[0] = wide_range(drawn, 0);
		rule->port[1] = wide_range(drawn, 1);
		break;
	case PORTS_ONLY:
		rule->port[0] = short_range(drawn, 0, 16384);
		rule->port[1] = short_range(drawn, 1, 16384);
		break;
	}
	rule->length[0] = (uint8_t)source;
	rule->length[1] = (uint8_t)destination;
	for (int i = 0; i < 2; i++)
		rule->address[i] &= prefix_mask(rule->length[i]);
}

/* An address inside a rule's network. */
static inline uint32_t inside(const struct rule *rule, int end, uint32_t address)
{
	return rule->address[end] | (address & ~prefix_mask(rule->length[end]));
}

static inline void random_packet(struct packet *packet, enum family family,
				 const struct rule *rules, uint32_t count,
				 uint64_t *random)
{
	const uint64_t addresses = peer_random(random);
	const uint64_t rest = peer_random(random);

	memset(packet, 0, sizeof(*packet));
	packet->address[0] = (uint32_t)addresses;
	packet->address[1] = (uint32_t)(addresses >> 32);
	packet->port[0] = (uint16_t)rest;
	packet->port[1] = (uint16_t)(rest >> 16);
	packet->protocol = (rest >> 32) % 4 != 0 ? IPPROTO_TCP : IPPROTO_UDP;
	if ((rest >> 40) % 2 == 0) {
		const struct rule *rule = &rules[peer_random(random) % count];
		for (int i = 0; i < 2; i++) {
			const struct ports range = rule->port[i];
			packet->address[i] = inside(rule, i, packet->address[i]);
			packet->port[i] = (uint16_t)(range.first +
				packet->port[i] % (range.last - range.first + 1));
		}
		if (rule->protocol != ANY_PROTOCOL)
			packet->protocol = (uint8_t)rule->protocol;
	} else if (family != RANDOM) {
		for (int i = 0; i < 2; i++)
			packet->address[i] = inside(
				&rules[peer_random(random) % count], i,
				packet->address[i]);
	}
}

#define FNV_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t fnv1a(uint64_t hash, uint32_t number)
{
	for (int i = 0; i < 4; i++, number >>= 8)
		hash = (hash ^ (number & 0xff)) * UINT64_C(0x100000001b3);
	return hash;
}

/* Equal for equal rules and packets: picnic-micro classifier prints it too. */
static inline uint64_t fingerprint(const struct rule *rules, uint32_t count,
				   const struct packet *packets, uint32_t number)
{
	uint64_t hash = FNV_START;
	for (uint32_t i = 0; i < count; i++) {
		const struct rule *r = &rules[i];
		const uint32_t protocol =
			r->protocol == ANY_PROTOCOL ? 0 : r->protocol | 0x100u;
		hash = fnv1a(hash, r->address[0]);
		hash = fnv1a(hash, r->address[1]);
		hash = fnv1a(hash, r->length[0] | (uint32_t)r->length[1] << 8 |
				   protocol << 16);
		for (int p = 0; p < 2; p++)
			hash = fnv1a(hash, (uint32_t)r->port[p].first << 16 |
					   r->port[p].last);
	}
	for (uint32_t i = 0; i < number; i++) {
		const struct packet *p = &packets[i];
		hash = fnv1a(hash, p->address[0]);
		hash = fnv1a(hash, p->address[1]);
		hash = fnv1a(hash, (uint32_t)p->port[0] << 16 | p->port[1]);
		hash = fnv1a(hash, p->protocol);
	}
	return hash;
}

/* The number of the first rule that matches, from 1, or 0. */
static inline uint32_t linear_search(const struct packet *packet,
				     const struct rule *rules, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct rule *r = &rules[i];
		bool matches = r->protocol == ANY_PROTOCOL ||
			       r->protocol == packet->protocol;
		for (int e = 0; e < 2; e++)
			matches &= ((packet->address[e] ^ r->address[e]) &
				    prefix_mask(r->length[e])) == 0 &&
				   packet->port[e] >= r->port[e].first &&
				   packet->port[e] <= r->port[e].last;
		if (matches)
			return i + 1;
	}
	return 0;
}

#endif
