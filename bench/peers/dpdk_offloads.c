/*
 * DPDK's rte_gro and rte_gso: the peers of `lro` and `tso` in `picnic-micro functions`.
 *
 * The same packets: for GRO bursts of 64 full segments, eight of each of eight flows in turn; for
 * GSO a super-frame of 45 segments in buffers of 2048 bytes. The time includes the call for a burst,
 * but not making the packets or freeing the results. GRO neither verifies nor writes checksums, and
 * GSO writes none. So GSO is timed alone, and again with the checksums of its segments, which `tso`
 * writes. Prints one JSON object: nanoseconds per segment, one value per repeat.
 */
#include <getopt.h>
#include <stdbool.h>

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_gro.h>
#include <rte_gso.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>
#include <rte_version.h>

#include "peer.h"

#define BURST 64u
#define FLOWS 8u
#define SEGMENT 1448u
#define SEGMENTS 45u
#define OPTIONS 12u
#define HEADERS (RTE_ETHER_HDR_LEN + 20u + 20u + OPTIONS)
#define DATA_ROOM (2048u + RTE_PKTMBUF_HEADROOM)

static struct {
	unsigned bursts, repeats;
} opt = { .bursts = 500, .repeats = 21 };

static struct rte_mempool *packets, *indirect;

static uint8_t headers_of(uint8_t *to, unsigned flow, uint32_t sequence,
			  unsigned payload, uint8_t flags)
{
	static const uint8_t addresses[12] = { 2, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 9 };
	static const uint8_t options[OPTIONS] = { 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2 };
	memcpy(to, addresses, 12);
	to[12] = 8;
	to[13] = 0;
	struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(to + 14);
	memset(ip, 0, sizeof(*ip));
	ip->version_ihl = 0x45;
	ip->total_length = rte_cpu_to_be_16((uint16_t)(40 + OPTIONS + payload));
	ip->packet_id = rte_cpu_to_be_16((uint16_t)(sequence / SEGMENT));
	ip->fragment_offset = rte_cpu_to_be_16(RTE_IPV4_HDR_DF_FLAG);
	ip->time_to_live = 64;
	ip->next_proto_id = IPPROTO_TCP;
	ip->src_addr = rte_cpu_to_be_32(0x0a000001 + flow * 7);
	ip->dst_addr = rte_cpu_to_be_32(0x0aff0001);
	ip->hdr_checksum = rte_ipv4_cksum(ip);
	struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(ip + 1);
	memset(tcp, 0, sizeof(*tcp));
	tcp->src_port = rte_cpu_to_be_16((uint16_t)(1024 + flow));
	tcp->dst_port = rte_cpu_to_be_16(80);
	tcp->sent_seq = rte_cpu_to_be_32(sequence);
	tcp->recv_ack = rte_cpu_to_be_32(1);
	tcp->data_off = (20 + OPTIONS) / 4 << 4;
	tcp->tcp_flags = RTE_TCP_ACK_FLAG | flags;
	tcp->rx_win = rte_cpu_to_be_16(256);
	memcpy(tcp + 1, options, OPTIONS);
	return HEADERS;
}

static struct rte_mbuf *taken(void)
{
	struct rte_mbuf *packet = rte_pktmbuf_alloc(packets);
	if (packet == NULL)
		peer_die(PEER_EXIT_FAILED, "no packets are left");
	return packet;
}

static void lengths(struct rte_mbuf *packet)
{
	packet->l2_len = RTE_ETHER_HDR_LEN;
	packet->l3_len = 20;
	packet->l4_len = 20 + OPTIONS;
}

static struct rte_mbuf *segment(unsigned flow, uint32_t sequence)
{
	struct rte_mbuf *packet = taken();
	uint8_t *data = (uint8_t *)rte_pktmbuf_append(packet, HEADERS + SEGMENT);
	headers_of(data, flow, sequence, SEGMENT, 0);
	for (unsigned at = 0; at < SEGMENT; at++)
		data[HEADERS + at] = (uint8_t)(at * 31 + flow);
	packet->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
	lengths(packet);
	return packet;
}

static struct rte_mbuf *super_frame(void)
{
	struct rte_mbuf *first = NULL, *last = NULL;
	unsigned left = HEADERS + SEGMENTS * SEGMENT;
	while (left != 0) {
		struct rte_mbuf *next = taken();
		const uint16_t length = (uint16_t)RTE_MIN(left, 2048u);
		uint8_t *data = (uint8_t *)rte_pktmbuf_append(next, length);
		for (unsigned at = 0; at < length; at++)
			data[at] = (uint8_t)(at * 31);
		if (first == NULL) {
			headers_of(data, 0, 0, SEGMENTS * SEGMENT, RTE_TCP_PSH_FLAG);
			first = next;
		} else {
			last->next = next;
			first->nb_segs++;
			first->pkt_len += length;
		}
		last = next;
		left -= length;
	}
	first->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
	first->ol_flags |= RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4;
	lengths(first);
	return first;
}

static double gro(void)
{
	static const struct rte_gro_param parameters = {
		.gro_types = RTE_GRO_TCP_IPV4,
		.max_flow_num = BURST,
		.max_item_per_flow = BURST,
	};
	uint64_t spent = 0;
	for (unsigned burst = 0; burst < opt.bursts; burst++) {
		struct rte_mbuf *of[BURST];
		for (unsigned at = 0; at < BURST; at++)
			of[at] = segment(at % FLOWS, at / FLOWS * SEGMENT);
		const uint64_t begin = rte_rdtsc_precise();
		const uint16_t left = rte_gro_reassemble_burst(of, BURST, &parameters);
		spent += rte_rdtsc_precise() - begin;
		if (left != FLOWS)
			peer_die(PEER_EXIT_FAILED, "GRO made %u packets of %u", left, BURST);
		rte_pktmbuf_free_bulk(of, left);
	}
	return (double)spent * 1e9 / (double)rte_get_tsc_hz() / opt.bursts / BURST;
}

static double gso(bool with_checksums)
{
	const struct rte_gso_ctx context = {
		.direct_pool = packets,
		.indirect_pool = indirect,
		.gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO,
		.gso_size = HEADERS + SEGMENT,
	};
	uint64_t spent = 0;
	for (unsigned burst = 0; burst < opt.bursts; burst++) {
		struct rte_mbuf *whole = super_frame(), *of[BURST];
		const uint64_t begin = rte_rdtsc_precise();
		const int made = rte_gso_segment(whole, &context, of, BURST);
		if (with_checksums) {
			for (int at = 0; at < made; at++) {
				uint8_t *data = rte_pktmbuf_mtod(of[at], uint8_t *);
				struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(data + 14);
				struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(ip + 1);
				ip->hdr_checksum = 0;
				ip->hdr_checksum = rte_ipv4_cksum(ip);
				tcp->cksum = 0;
				tcp->cksum = rte_ipv4_udptcp_cksum_mbuf(of[at], ip, 34);
			}
		}
		spent += rte_rdtsc_precise() - begin;
		if (made != (int)SEGMENTS)
			peer_die(PEER_EXIT_FAILED, "GSO made %d segments of %u", made, SEGMENTS);
		rte_pktmbuf_free_bulk(of, (unsigned)made);
		rte_pktmbuf_free(whole);
	}
	return (double)spent * 1e9 / (double)rte_get_tsc_hz() / opt.bursts / SEGMENTS;
}

static void usage(FILE *to)
{
	fprintf(to,
"usage: dpdk_offloads [options]\n"
"  --bursts N   bursts of each timing (%u)\n"
"  --repeats N  repeats of each figure, in turn (%u)\n"
"Prints one JSON object. Runs on the highest-numbered core.\n",
		opt.bursts, opt.repeats);
}

static void parse_options(int argc, char **argv)
{
	enum { BURSTS = 256, REPEATS, HELP };
	static const struct option longs[] = {
		{ "bursts", 1, 0, BURSTS }, { "repeats", 1, 0, REPEATS },
		{ "help", 0, 0, HELP }, { 0, 0, 0, 0 },
	};
	int which, index = 0;
	while ((which = getopt_long(argc, argv, "", longs, &index)) != -1) {
		if (which == '?') {
			usage(stderr);
			exit(PEER_EXIT_USAGE);
		}
		switch (which) {
		case BURSTS: opt.bursts = peer_number("bursts", optarg, 1, 1000000); break;
		case REPEATS: opt.repeats = peer_number("repeats", optarg, 1, 1000); break;
		default: usage(stdout); exit(0);
		}
	}
	if (optind != argc)
		peer_die(PEER_EXIT_USAGE, "unexpected argument \"%s\"", argv[optind]);
}

static void show(const char *key, const double *values, bool last)
{
	printf("\"%s\":[", key);
	for (unsigned at = 0; at < opt.repeats; at++)
		printf("%s%.3f", at == 0 ? "" : ",", values[at]);
	printf("]%s", last ? "}\n" : ",");
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	const unsigned core = (unsigned)sysconf(_SC_NPROCESSORS_ONLN) - 1;
	char cores[16];
	snprintf(cores, sizeof(cores), "%u", core);
	peer_eal_init(argv[0], cores, core);
	packets = rte_pktmbuf_pool_create("packets", 8191, 256, 0, DATA_ROOM, SOCKET_ID_ANY);
	indirect = rte_pktmbuf_pool_create("indirect", 8191, 256, 0, 0, SOCKET_ID_ANY);
	double *times = calloc(3 * (size_t)opt.repeats, sizeof(*times));
	if (packets == NULL || indirect == NULL || times == NULL)
		peer_die(PEER_EXIT_FAILED, "no memory for packets");
	double *of_gro = times, *of_gso = times + opt.repeats, *complete = of_gso + opt.repeats;
	for (unsigned at = 0; at < opt.repeats; at++) {
		of_gro[at] = gro();
		of_gso[at] = gso(false);
		complete[at] = gso(true);
	}
	printf("{\"program\":\"dpdk_offloads\",\"dpdk\":\"%s\",\"core\":%u,", rte_version(), core);
	show("gro_segment_ns", of_gro, false);
	show("gso_segment_ns", of_gso, false);
	show("gso_with_checksums_segment_ns", complete, true);
	return 0;
}
