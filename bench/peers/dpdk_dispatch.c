/*
 * DPDK packet dispatch: receive, parse, hash, steer to N queues, consume.
 *
 *   producer core: mbuf -> frame -> parse -> Toeplitz -> 128-entry table -> ring
 *   consumer core: every ring in turn -> header -> mbuf back to the pool
 *
 * The work is that of `picnic-micro dispatch`, in the style of DPDK:
 * bulk allocation, a driver's two vector stores per mbuf, vectorised Toeplitz,
 * single-producer single-consumer rings, a consumer that prefetches one batch
 * ahead, and a free that never looks at the mbuf's second line.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <immintrin.h>

#include <rte_byteorder.h>
#include <rte_cpuflags.h>
#include <rte_cycles.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_pause.h>
#include <rte_prefetch.h>
#include <rte_ring.h>
#include <rte_tcp.h>
#include <rte_thash.h>
#include <rte_version.h>

#include "peer.h"

#define MAX_QUEUES 64u
#define MAX_BURST 512u
#define MAX_FLOWS (1u << 20)
#define TABLE_SIZE 128u
#define FRAME_LENGTH 60u
#define FRAME_STRIDE 64u
#define TUPLE_LENGTH 12u
#define KEY_LENGTH 40u
#define LARGE_PAGE (UINT64_C(2) << 20)
#define WARM_UP_S 0.2

enum { FRAMES_FRESH, FRAMES_REUSE };
static const char *const frames_words[] = { "fresh", "reuse", NULL };
enum { FULL_DROP, FULL_WAIT };
static const char *const full_words[] = { "drop", "wait", NULL };
enum { HANDOFF_MBUF, HANDOFF_DESCRIPTOR };
static const char *const handoff_words[] = { "mbuf", "descriptor", NULL };
enum { MEMORY_AUTO, MEMORY_HUGETLB, MEMORY_THP, MEMORY_SMALL };
static const char *const memory_words[] = { "auto", "hugetlb", "thp", "small",
					    NULL };
enum { HASH_AUTO, HASH_GFNI, HASH_SOFT };
static const char *const hash_words[] = { "auto", "gfni", "soft", NULL };
enum { PREFETCH_NONE, PREFETCH_WRITE };
static const char *const prefetch_words[] = { "none", "write", NULL };
enum { ORDER_SEQUENCE, ORDER_RANDOM };
static const char *const order_words[] = { "sequence", "random", NULL };

struct options {
	unsigned queues, flows, burst, consumer_burst, hold, ring_size;
	unsigned pool_size, cache_size, data_room;
	int frames, full, handoff, memory, hash, order, prefetch;
	double seconds;
};

/* The ring entry with `--handoff descriptor`. */
struct descriptor {
	struct rte_mbuf *mbuf;
	uint32_t rss;
	uint16_t data_off;
	uint16_t length;
};
_Static_assert(sizeof(struct descriptor) == 16, "a ring element of 16 bytes");

/*
 * The defaults are the settings with the highest rate; README.md has the figures.
 * A queue's packets are held until they fill eight lines of its ring, because
 * every enqueue reads a word that the other core writes.
 */
static struct options opt = {
	.queues = 4, .flows = 4096, .burst = 64, .consumer_burst = 64,
	.hold = 64, .ring_size = 256, .pool_size = 0, .cache_size = 256,
	.data_room = RTE_MBUF_DEFAULT_BUF_SIZE,
	.seconds = 2.0,
};

/* The key of the Microsoft RSS verification suite, which every NIC defaults to. */
static const uint8_t key[KEY_LENGTH] __rte_aligned(4) = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
	0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
	0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};
static uint8_t soft_key[KEY_LENGTH] __rte_aligned(4);
static uint64_t matrices[KEY_LENGTH] __rte_cache_aligned;
static uint8_t table[TABLE_SIZE] __rte_cache_aligned;

static struct rte_mempool *pool;
static struct rte_ring *rings[MAX_QUEUES];
static uint8_t *frames; /* opt.flows frames, FRAME_STRIDE bytes apart */
static uint32_t flow_mask;

/* Each word that crosses cores has its own pair of lines. */
static struct {
	volatile uint64_t delivered;
} consumed __rte_aligned(128);
static struct {
	volatile bool stop;
} control __rte_aligned(128);

struct consumer_result {
	uint64_t delivered, wrong, accumulator, per_queue[MAX_QUEUES];
} __rte_cache_aligned;
static struct consumer_result consumer_result;

struct producer_result {
	uint64_t handled, delivered, dropped, unparsed, pool_empty, waits;
	double elapsed_s;
} __rte_cache_aligned;
static struct producer_result producer_result;

static const struct rte_ether_addr destination = {
	{ 0x02, 0x00, 0x00, 0x00, 0x00, 0x01 }
};
static const struct rte_ether_addr source = {
	{ 0x02, 0x00, 0x00, 0x00, 0x00, 0x02 }
};

/* ---- memory ------------------------------------------------------------ */

static const char *memory_kind = "small";

/* A bump allocator over one mapping, on large pages if available. */
static struct {
	uint8_t *start;
	size_t used, length;
} arena;

static void arena_open(size_t length)
{
	length = RTE_ALIGN_CEIL(length, LARGE_PAGE);
	void *at = MAP_FAILED;
	if (opt.memory == MEMORY_AUTO || opt.memory == MEMORY_HUGETLB) {
		at = mmap(NULL, length, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE,
			  -1, 0);
		if (at != MAP_FAILED)
			memory_kind = "hugetlb";
		else if (opt.memory == MEMORY_HUGETLB)
			peer_die(PEER_EXIT_FAILED,
				 "no %zu bytes of huge pages: %s; see "
				 "/proc/sys/vm/nr_hugepages", length,
				 strerror(errno));
	}
	if (at == MAP_FAILED) {
		/* One page more than needed, so that the start can be aligned. */
		uint8_t *raw = mmap(NULL, length + LARGE_PAGE,
				    PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (raw == MAP_FAILED)
			peer_die(PEER_EXIT_FAILED, "no %zu bytes: %s", length,
				 strerror(errno));
		at = RTE_PTR_ALIGN_CEIL(raw, LARGE_PAGE);
		if (opt.memory == MEMORY_SMALL) {
			if (madvise(at, length, MADV_NOHUGEPAGE) != 0)
				perror("madvise");
		} else if (madvise(at, length, MADV_HUGEPAGE) == 0) {
			memory_kind = "thp";
		}
		memset(at, 0, length);
	}
	arena.start = at;
	arena.length = length;
}

static void *arena_take(size_t length)
{
	/* 128: the adjacent-line prefetcher works on pairs of lines. */
	size_t begin = RTE_ALIGN_CEIL(arena.used, (size_t)128);
	if (begin + length > arena.length)
		peer_die(PEER_EXIT_FAILED, "arena of %zu bytes is too small",
			 arena.length);
	arena.used = begin + length;
	return arena.start + begin;
}

/* ---- frames ------------------------------------------------------------ */


static void write_frame(uint8_t *at, uint32_t flow)
{
	memset(at, 0, FRAME_STRIDE);
	struct rte_ether_hdr *ether = (struct rte_ether_hdr *)at;
	ether->dst_addr = destination;
	ether->src_addr = source;
	ether->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);

	struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(ether + 1);
	ip->version_ihl = 0x45;
	ip->total_length = rte_cpu_to_be_16(40);
	ip->packet_id = rte_cpu_to_be_16((uint16_t)flow);
	ip->fragment_offset = rte_cpu_to_be_16(RTE_IPV4_HDR_DF_FLAG);
	ip->time_to_live = 64;
	ip->next_proto_id = IPPROTO_TCP;
	ip->src_addr = rte_cpu_to_be_32(RTE_IPV4(10, 0, 0, 0) | (flow + 1));
	ip->dst_addr = rte_cpu_to_be_32(RTE_IPV4(192, 168, 0, 1));
	ip->hdr_checksum = rte_ipv4_cksum(ip);

	struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(ip + 1);
	tcp->src_port = rte_cpu_to_be_16((uint16_t)(1024 + flow % 64000));
	tcp->dst_port = rte_cpu_to_be_16(80);
	tcp->sent_seq = rte_cpu_to_be_32(flow);
	tcp->data_off = 5 << 4;
	tcp->tcp_flags = RTE_TCP_ACK_FLAG;
	tcp->rx_win = rte_cpu_to_be_16(65535);
	tcp->cksum = rte_ipv4_udptcp_cksum(ip, tcp);
}

/* ---- parse ------------------------------------------------------------- */

/*
 * The four-tuple of any Ethernet, VLAN or QinQ frame with IPv4 and TCP or UDP,
 * copied to `tuple`; returns the packet type, or 0 if RSS over ports does not
 * apply.
 */
static __rte_noinline uint32_t parse_slow(const uint8_t *frame, uint32_t length,
					  uint8_t tuple[TUPLE_LENGTH])
{
	uint32_t at = sizeof(struct rte_ether_hdr);
	uint32_t type = RTE_PTYPE_L2_ETHER;
	if (length < at)
		return 0;
	uint16_t ethertype;
	memcpy(&ethertype, frame + 12, 2);
	for (int tags = 0; tags < 2; tags++) {
		if (ethertype != rte_cpu_to_be_16(RTE_ETHER_TYPE_VLAN) &&
		    ethertype != rte_cpu_to_be_16(RTE_ETHER_TYPE_QINQ))
			break;
		if (length < at + 4)
			return 0;
		memcpy(&ethertype, frame + at + 2, 2);
		at += 4;
		type = RTE_PTYPE_L2_ETHER_VLAN;
	}
	if (ethertype != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4) ||
	    length < at + sizeof(struct rte_ipv4_hdr))
		return 0;
	struct rte_ipv4_hdr ip;
	memcpy(&ip, frame + at, sizeof(ip));
	const uint32_t header = (ip.version_ihl & 15u) * 4u;
	const uint32_t total = rte_be_to_cpu_16(ip.total_length);
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) ||
	    total < header + 4 || length < at + total)
		return 0;
	if (ip.fragment_offset &
	    rte_cpu_to_be_16(RTE_IPV4_HDR_MF_FLAG | RTE_IPV4_HDR_OFFSET_MASK))
		return 0;
	if (ip.next_proto_id == IPPROTO_TCP)
		type |= RTE_PTYPE_L4_TCP;
	else if (ip.next_proto_id == IPPROTO_UDP)
		type |= RTE_PTYPE_L4_UDP;
	else
		return 0;
	memcpy(tuple, frame + at + 12, 8);
	memcpy(tuple + 8, frame + at + header, 4);
	return type | (header > sizeof(ip) ? RTE_PTYPE_L3_IPV4_EXT
					   : RTE_PTYPE_L3_IPV4);
}

/*
 * Two loads decide the common case: no tag, no IP options, no fragment, TCP,
 * and a total length that the frame holds. Its addresses and ports lie side by
 * side, so the hash can read them where they are.
 */
static __rte_always_inline uint32_t parse(const uint8_t *frame, uint32_t length,
					  const uint8_t **tuple,
					  uint8_t copy[TUPLE_LENGTH])
{
	uint64_t first; /* ethertype, version and IHL, TOS, total length, id */
	uint32_t second; /* flags and fragment offset, TTL, protocol */
	memcpy(&first, frame + 12, 8);
	memcpy(&second, frame + 20, 4);
	const uint32_t total = __builtin_bswap16((uint16_t)(first >> 32));
	const bool common =
		(first & UINT64_C(0x00ffffff)) == UINT64_C(0x00450008) &&
		(second & UINT32_C(0xff00ff3f)) == UINT32_C(0x06000000) &&
		length >= 54 && total >= 40 && total + 14 <= length;
	if (likely(common)) {
		*tuple = frame + 26;
		return RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 |
		       RTE_PTYPE_L4_TCP;
	}
	*tuple = copy;
	return parse_slow(frame, length, copy);
}

/* ---- hash -------------------------------------------------------------- */

static __rte_always_inline void hash_burst(bool gfni, uint8_t *tuples[],
					   uint32_t hashes[], uint32_t count)
{
#ifdef RTE_THASH_GFNI_DEFINED
	if (gfni) {
		rte_thash_gfni_bulk(matrices, TUPLE_LENGTH, tuples, hashes,
				    count);
		return;
	}
#else
	RTE_SET_USED(gfni);
#endif
	for (uint32_t i = 0; i < count; i++) {
		uint32_t words[3];
		memcpy(words, tuples[i], sizeof(words));
		for (int w = 0; w < 3; w++)
			words[w] = rte_be_to_cpu_32(words[w]);
		hashes[i] = rte_softrss_be(words, 3, soft_key);
	}
}

/*
 * Not rte_thash_gfni_supported(): that says how the distribution built the
 * library (Debian's has no GFNI), while the hash itself is inline in a header
 * and is compiled here, for this processor.
 */
static bool gfni_usable(void)
{
#ifdef RTE_THASH_GFNI_DEFINED
	return rte_cpu_get_flag_enabled(RTE_CPUFLAG_GFNI) > 0 &&
	       rte_cpu_get_flag_enabled(RTE_CPUFLAG_AVX512F) > 0;
#else
	return false;
#endif
}

/* First IPv4-with-ports vector of the Microsoft RSS verification suite. */
static void hash_check(bool gfni)
{
	uint8_t tuple[TUPLE_LENGTH] = { 66, 9, 149, 187, 161, 142, 100, 80,
					2794 >> 8, 2794 & 255, 1766 >> 8,
					1766 & 255 };
	uint8_t *list[3] = { tuple, tuple, tuple };
	uint32_t hash[3];
	hash_burst(gfni, list, hash, 3);
	for (int i = 0; i < 3; i++)
		if (hash[i] != UINT32_C(0x51ccc178))
			peer_die(PEER_EXIT_FAILED,
				 "the Toeplitz hash is wrong: %08" PRIx32,
				 hash[i]);
}

/* ---- producer ---------------------------------------------------------- */

static __rte_always_inline uint8_t *frame_of(struct rte_mbuf *mbuf)
{
	/*
	 * A receive driver knows where its buffers start without reading the
	 * mbuf: the mbuf, then headroom, then the frame.
	 */
	return (uint8_t *)(mbuf + 1) + RTE_PKTMBUF_HEADROOM;
}

/*
 * Off by default. Stores already request their lines in the background, and
 * prefetches compete with these requests; they were slower when measured.
 * (Prefetching for reading is slowest: every line then crosses twice.)
 */
static __rte_always_inline void prefetch_for_write(struct rte_mbuf *mbuf,
						   bool fresh)
{
	rte_prefetch0_write(mbuf);
	if (fresh)
		rte_prefetch0_write(frame_of(mbuf));
	else
		rte_prefetch0(frame_of(mbuf));
}

/* Packets of the queue that wait until enqueuing is worthwhile. */
struct outbox {
	uint32_t count;
	union {
		struct rte_mbuf *mbufs[2 * MAX_BURST];
		struct descriptor descriptors[2 * MAX_BURST];
	};
} __rte_cache_aligned;
static struct outbox outboxes[MAX_QUEUES];

static __rte_always_inline void
flush(unsigned queue, bool descriptors, struct producer_result *result)
{
	struct outbox *box = &outboxes[queue];
	uint32_t sent = 0;
	for (;;) {
		if (descriptors)
			sent += rte_ring_sp_enqueue_burst_elem(
				rings[queue], box->descriptors + sent,
				sizeof(struct descriptor), box->count - sent,
				NULL);
		else
			sent += rte_ring_sp_enqueue_burst(
				rings[queue], (void **)(box->mbufs + sent),
				box->count - sent, NULL);
		if (likely(sent == box->count) || opt.full == FULL_DROP ||
		    control.stop)
			break;
		result->waits++;
		rte_pause();
	}
	if (unlikely(sent < box->count)) {
		result->dropped += box->count - sent;
		if (descriptors)
			for (uint32_t i = sent; i < box->count; i++)
				rte_mempool_put(pool, box->descriptors[i].mbuf);
		else
			rte_mempool_put_bulk(pool, (void **)(box->mbufs + sent),
					     box->count - sent);
	}
	box->count = 0;
}

static __rte_always_inline void produce(bool fresh, bool descriptors, bool gfni,
					struct producer_result *result)
{
	const uint32_t burst = opt.burst, queues = opt.queues, hold = opt.hold;
	struct rte_mbuf *lists[2][MAX_BURST];
	struct rte_mbuf **now = lists[0], **next = lists[1];
	uint8_t *tuples[MAX_BURST];
	uint32_t hashes[MAX_BURST], types[MAX_BURST];
	uint8_t copies[MAX_BURST][TUPLE_LENGTH + 4];
	uint32_t flow = 0, rounds = 0;
	uint64_t random = 1;
	const bool prefetch = opt.prefetch == PREFETCH_WRITE;
	const bool random_order = opt.order == ORDER_RANDOM;

	/* data_off, refcnt, nb_segs and port, as a driver's rearm word. */
	const uint64_t rearm = RTE_PKTMBUF_HEADROOM | UINT64_C(1) << 16 |
			       UINT64_C(1) << 32;
	const __m128i head = _mm_set_epi64x(RTE_MBUF_F_RX_RSS_HASH,
					    (int64_t)rearm);

	const uint64_t hz = rte_get_tsc_hz();
	const uint64_t length = (uint64_t)(opt.seconds * (double)hz);
	uint64_t begin = rte_rdtsc() + (uint64_t)(WARM_UP_S * (double)hz);
	uint64_t end = UINT64_MAX, delivered = 0;
	bool measuring = false;

	while (rte_mempool_get_bulk(pool, (void **)now, burst) != 0)
		rte_pause();

	for (;;) {
		const uint64_t clock = rte_rdtsc();
		if (unlikely(clock >= (measuring ? end : begin))) {
			if (measuring) {
				result->delivered = consumed.delivered - delivered;
				result->elapsed_s = (double)(clock - begin) /
						    (double)hz;
				break;
			}
			memset(result, 0, sizeof(*result));
			delivered = consumed.delivered;
			begin = clock;
			end = clock + length;
			measuring = true;
		}

		while (unlikely(rte_mempool_get_bulk(pool, (void **)next,
						     burst) != 0)) {
			result->pool_empty++;
			if (hold != 0)
				for (uint32_t q = 0; q < queues; q++)
					flush(q, descriptors, result);
			rte_pause();
			if (unlikely(rte_rdtsc() >= (measuring ? end : begin)))
				goto again;
		}
		if (prefetch)
			for (uint32_t i = 0; i < burst; i++)
				prefetch_for_write(next[i], fresh);
		if (hold == 0)
			for (uint32_t q = 0; q < queues; q++)
				rte_prefetch0(&rings[q]->cons);

		if (fresh) {
			for (uint32_t i = 0; i < burst; i++) {
				if (random_order)
					flow = (uint32_t)peer_random(&random);
				const uint8_t *from = frames +
					(size_t)(flow++ & flow_mask) * FRAME_STRIDE;
#ifdef __AVX512F__
				_mm512_store_si512(frame_of(now[i]),
						   _mm512_load_si512(from));
#else
				memcpy(frame_of(now[i]), from, FRAME_STRIDE);
#endif
			}
		}

		uint32_t unparsed = 0;
		for (uint32_t i = 0; i < burst; i++) {
			const uint8_t *tuple;
			types[i] = parse(frame_of(now[i]), FRAME_LENGTH, &tuple,
					 copies[i]);
			tuples[i] = (uint8_t *)(uintptr_t)tuple;
			unparsed += types[i] == 0;
		}
		result->unparsed += unparsed;

		hash_burst(gfni, tuples, hashes, burst);

		for (uint32_t i = 0; i < burst; i++) {
			struct rte_mbuf *mbuf = now[i];
			/* No ports to hash: queue 0, as a NIC would. */
			const uint32_t hash =
				likely(types[i] != 0) ? hashes[i] : 0;
			_mm_store_si128((__m128i *)&mbuf->rearm_data, head);
			_mm_storeu_si128(
				(__m128i *)&mbuf->rx_descriptor_fields1,
				_mm_set_epi32((int)hash, FRAME_LENGTH,
					      FRAME_LENGTH, (int)types[i]));
			struct outbox *box =
				&outboxes[table[hash & (TABLE_SIZE - 1)]];
			if (descriptors)
				box->descriptors[box->count++] =
					(struct descriptor){
						mbuf, hash, RTE_PKTMBUF_HEADROOM,
						FRAME_LENGTH };
			else
				box->mbufs[box->count++] = mbuf;
		}
		result->handled += burst;

		if (hold == 0) {
			for (uint32_t q = 0; q < queues; q++)
				if (likely(outboxes[q].count != 0))
					flush(q, descriptors, result);
		} else {
			/* No packet waits longer than eight bursts. */
			const uint32_t least = ++rounds % 8 == 0 ? 1 : hold;
			for (uint32_t q = 0; q < queues; q++)
				if (outboxes[q].count >= least)
					flush(q, descriptors, result);
		}
		struct rte_mbuf **swap = now;
		now = next;
		next = swap;
again:;
	}
	control.stop = true;
	rte_mempool_put_bulk(pool, (void **)now, burst);
}

static int producer(void *argument)
{
	const bool gfni = *(const bool *)argument;
	struct producer_result result = { 0 };
	const bool fresh = opt.frames == FRAMES_FRESH;
	/* One copy of the loop per setting, to avoid a test per packet. */
	if (opt.handoff == HANDOFF_MBUF && gfni && fresh)
		produce(true, false, true, &result);
	else if (opt.handoff == HANDOFF_MBUF && gfni)
		produce(false, false, true, &result);
	else if (opt.handoff == HANDOFF_DESCRIPTOR && gfni && fresh)
		produce(true, true, true, &result);
	else if (opt.handoff == HANDOFF_DESCRIPTOR && gfni)
		produce(false, true, true, &result);
	else
		produce(fresh, opt.handoff == HANDOFF_DESCRIPTOR, false, &result);
	producer_result = result;
	return 0;
}

/* ---- consumer ---------------------------------------------------------- */

struct batch {
	uint32_t count;
	union {
		struct rte_mbuf *mbufs[MAX_BURST];
		struct descriptor descriptors[MAX_BURST];
	};
};

static __rte_always_inline void consume(bool descriptors,
					struct consumer_result *result)
{
	const uint32_t queues = opt.queues, burst = opt.consumer_burst;
	struct batch batches[2];
	struct batch *ready = &batches[0], *coming = &batches[1];
	struct rte_mbuf *freed[MAX_BURST];
	uint64_t accumulator = 0, wrong = 0, delivered = 0;
	uint64_t expected_mac = 0;
	memcpy(&expected_mac, &destination, sizeof(destination));
	uint32_t queue = 0, empty = 0, ready_queue = 0;
	ready->count = 0;

	for (;;) {
		/*
		 * Take the next queue's packets and prefetch their lines
		 * before reading the previous packets. The frame's address is
		 * estimated from the mbuf's, for the prefetch only.
		 */
		if (descriptors) {
			coming->count = rte_ring_sc_dequeue_burst_elem(
				rings[queue], coming->descriptors,
				sizeof(struct descriptor), burst, NULL);
			for (uint32_t i = 0; i < coming->count; i++)
				rte_prefetch0(frame_of(coming->descriptors[i].mbuf));
		} else {
			coming->count = rte_ring_sc_dequeue_burst(
				rings[queue], (void **)coming->mbufs, burst,
				NULL);
			for (uint32_t i = 0; i < coming->count; i++) {
				rte_prefetch0(coming->mbufs[i]);
				rte_prefetch0(frame_of(coming->mbufs[i]));
			}
		}
		const uint32_t taken_from = queue;
		queue = queue + 1 == queues ? 0 : queue + 1;
		rte_prefetch0(&rings[queue]->prod);

		for (uint32_t i = 0; i < ready->count; i++) {
			const uint8_t *frame;
			struct rte_mbuf *mbuf;
			uint32_t hash;
			if (descriptors) {
				const struct descriptor *d =
					&ready->descriptors[i];
				mbuf = d->mbuf;
				frame = (uint8_t *)(mbuf + 1) + d->data_off;
				hash = d->rss;
			} else {
				mbuf = ready->mbufs[i];
				frame = rte_pktmbuf_mtod(mbuf, uint8_t *);
				hash = mbuf->hash.rss;
			}
			uint64_t mac;
			uint32_t address;
			memcpy(&mac, frame, 8);
			memcpy(&address, frame + 26, 4);
			mac &= UINT64_C(0xffffffffffff);
			wrong += mac != expected_mac || frame[23] != IPPROTO_TCP;
			accumulator += hash ^ address;
			freed[i] = mbuf;
		}
		if (ready->count != 0) {
			/*
			 * One segment, one reference, one pool: as a driver
			 * with MBUF_FAST_FREE. rte_pktmbuf_free_bulk()
			 * would read every mbuf's second line.
			 */
			rte_mempool_put_bulk(pool, (void **)freed, ready->count);
			delivered += ready->count;
			result->per_queue[ready_queue] += ready->count;
			consumed.delivered = delivered;
		}

		if (coming->count == 0) {
			if (unlikely(control.stop) && ++empty > 2 * queues &&
			    ready->count == 0)
				break;
			if (ready->count == 0)
				rte_pause();
		} else {
			empty = 0;
		}
		struct batch *swap = ready;
		ready = coming;
		coming = swap;
		ready_queue = taken_from;
	}
	result->accumulator = accumulator;
	result->wrong = wrong;
	result->delivered = delivered;
}

/* ---- set-up ------------------------------------------------------------ */

static void usage(FILE *to)
{
	fprintf(to,
"usage: dpdk_dispatch [options]\n"
"  --queues N           target rings, one consumer (%u)\n"
"  --seconds S          measured time after %.1f s of warm-up (%.0f)\n"
"  --frames WORD        fresh: written anew each time | reuse (fresh)\n"
"  --flows N            a power of two (%u)\n"
"  --flow-order WORD    sequence | random (sequence)\n"
"  --burst N            producer's burst (%u)\n"
"  --consumer-burst N   most packets taken from one ring at once (%u)\n"
"  --hold N             enqueue once a queue has N packets; 0: every burst (%u)\n"
"  --ring-size N        a power of two (%u)\n"
"  --pool-size N        mbufs; 0: what the rings and caches can hold (0)\n"
"  --cache-size N       mempool cache per core, 0 to 512 (%u)\n"
"  --data-room N        bytes per mbuf, headroom included (%u)\n"
"  --full WORD          drop | wait when a ring is full (drop)\n"
"  --handoff WORD       mbuf: 8-byte pointers | descriptor: 16-byte elements (mbuf)\n"
"  --memory WORD        auto | hugetlb | thp | small (auto)\n"
"  --prefetch WORD      none | write: the producer asks for the next burst's lines (none)\n"
"  --hash WORD          auto | gfni | soft (auto)\n"
"Prints one JSON object. The producer runs on the highest-numbered core.\n",
		opt.queues, WARM_UP_S, opt.seconds, opt.flows, opt.burst,
		opt.consumer_burst, opt.hold, opt.ring_size, opt.cache_size,
		opt.data_room);
}

static void parse_options(int argc, char **argv)
{
	enum { QUEUES = 256, SECONDS, FRAMES, FLOWS, ORDER, BURST, CONSUMER,
	       HOLD, RING, POOL, CACHE, ROOM, FULL, HANDOFF, MEMORY, HASH,
	       PREFETCH, JSON, HELP };
	static const struct option longs[] = {
		{ "queues", 1, 0, QUEUES }, { "seconds", 1, 0, SECONDS },
		{ "frames", 1, 0, FRAMES }, { "flows", 1, 0, FLOWS },
		{ "flow-order", 1, 0, ORDER }, { "burst", 1, 0, BURST },
		{ "consumer-burst", 1, 0, CONSUMER }, { "hold", 1, 0, HOLD },
		{ "ring-size", 1, 0, RING }, { "pool-size", 1, 0, POOL },
		{ "cache-size", 1, 0, CACHE }, { "data-room", 1, 0, ROOM },
		{ "full", 1, 0, FULL }, { "handoff", 1, 0, HANDOFF },
		{ "memory", 1, 0, MEMORY }, { "hash", 1, 0, HASH },
		{ "prefetch", 1, 0, PREFETCH },
		{ "json", 0, 0, JSON }, { "help", 0, 0, HELP }, { 0, 0, 0, 0 },
	};
	int which, index = 0;
	while ((which = getopt_long(argc, argv, "", longs, &index)) != -1) {
		if (which == '?') {
			usage(stderr);
			exit(PEER_EXIT_USAGE);
		}
		const char *name = longs[index].name;
		switch (which) {
		case QUEUES:
			opt.queues = peer_number(name, optarg, 1, MAX_QUEUES);
			break;
		case SECONDS: opt.seconds = peer_seconds(name, optarg); break;
		case FRAMES: opt.frames = peer_word(name, optarg, frames_words); break;
		case FLOWS: opt.flows = peer_number(name, optarg, 1, MAX_FLOWS); break;
		case ORDER: opt.order = peer_word(name, optarg, order_words); break;
		case BURST: opt.burst = peer_number(name, optarg, 1, MAX_BURST); break;
		case CONSUMER:
			opt.consumer_burst = peer_number(name, optarg, 1, MAX_BURST);
			break;
		case HOLD: opt.hold = peer_number(name, optarg, 0, MAX_BURST); break;
		case RING: opt.ring_size = peer_number(name, optarg, 2, 1 << 20); break;
		case POOL: opt.pool_size = peer_number(name, optarg, 0, 1 << 24); break;
		case CACHE:
			opt.cache_size = peer_number(name, optarg, 0,
						     RTE_MEMPOOL_CACHE_MAX_SIZE);
			break;
		case ROOM:
			opt.data_room = peer_number(name, optarg,
						    RTE_PKTMBUF_HEADROOM +
						    FRAME_STRIDE, 65535);
			break;
		case FULL: opt.full = peer_word(name, optarg, full_words); break;
		case HANDOFF: opt.handoff = peer_word(name, optarg, handoff_words); break;
		case MEMORY: opt.memory = peer_word(name, optarg, memory_words); break;
		case HASH: opt.hash = peer_word(name, optarg, hash_words); break;
		case PREFETCH:
			opt.prefetch = peer_word(name, optarg, prefetch_words);
			break;
		case JSON: break; /* the only format */
		default: usage(stdout); exit(0);
		}
	}
	if (optind != argc)
		peer_die(PEER_EXIT_USAGE, "unexpected argument \"%s\"",
			 argv[optind]);
	if (!rte_is_power_of_2(opt.flows) || !rte_is_power_of_2(opt.ring_size))
		peer_die(PEER_EXIT_USAGE,
			 "--flows and --ring-size are powers of two");
	/* Packets outside the rings: two bursts in hand on each
	 * side, what is held back, and two caches (each may hold half again). */
	const unsigned outside = 2 * opt.burst + 2 * opt.consumer_burst +
				 opt.queues * (opt.hold + opt.burst) +
				 3 * opt.cache_size;
	if (opt.pool_size == 0)
		opt.pool_size = opt.queues * opt.ring_size + outside;
	if (opt.pool_size < 4 * opt.burst + 3 * opt.cache_size)
		peer_die(PEER_EXIT_USAGE, "--pool-size: at least %u here",
			 4 * opt.burst + 3 * opt.cache_size);
}

static void make_pool(void)
{
	const unsigned object = sizeof(struct rte_mbuf) + opt.data_room;
	/* One core allocates and the other frees, so the pool's ring needs
	 * no atomic operation on either side. No device reads these buffers, so
	 * they may lie across a page boundary. */
	pool = rte_mempool_create_empty("mbufs", opt.pool_size, object,
		opt.cache_size, sizeof(struct rte_pktmbuf_pool_private),
		SOCKET_ID_ANY, RTE_MEMPOOL_F_SP_PUT | RTE_MEMPOOL_F_SC_GET |
			RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (pool == NULL)
		peer_die(PEER_EXIT_FAILED, "no mbuf pool: %s",
			 rte_strerror(rte_errno));
	const struct rte_pktmbuf_pool_private private = {
		.mbuf_data_room_size = (uint16_t)opt.data_room,
	};
	rte_pktmbuf_pool_init(pool, (void *)(uintptr_t)&private);
	struct rte_mempool_objsz size;
	rte_mempool_calc_obj_size(object, pool->flags, &size);
	const size_t length = (size_t)size.total_size * opt.pool_size + 4096;
	const int count = rte_mempool_populate_virt(pool, arena_take(length),
		RTE_ALIGN_FLOOR(length, 128), LARGE_PAGE, NULL, NULL);
	if (count < (int)opt.pool_size)
		peer_die(PEER_EXIT_FAILED, "mbuf pool: %d of %u mbufs", count,
			 opt.pool_size);
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
}

static void fill_mbuf(struct rte_mempool *unused, void *argument, void *object,
		      unsigned index)
{
	RTE_SET_USED(unused);
	RTE_SET_USED(argument);
	memcpy(frame_of(object), frames + (size_t)(index & flow_mask) *
	       FRAME_STRIDE, FRAME_STRIDE);
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	const long online = sysconf(_SC_NPROCESSORS_ONLN);
	if (online < 2)
		peer_die(PEER_EXIT_FAILED, "two cores are needed");
	const unsigned producer_core = (unsigned)online - 1, consumer_core = 0;
	char cores[32];
	snprintf(cores, sizeof(cores), "%u,%u", consumer_core, producer_core);
	peer_eal_init(argv[0], cores, consumer_core);

	const unsigned element = opt.handoff == HANDOFF_MBUF
		? sizeof(void *) : sizeof(struct descriptor);
	const ssize_t ring_bytes = rte_ring_get_memsize_elem(element,
							     opt.ring_size);
	if (ring_bytes < 0)
		peer_die(PEER_EXIT_FAILED, "no ring of %u", opt.ring_size);
	arena_open((size_t)(ring_bytes + 128) * opt.queues +
		   (size_t)opt.flows * FRAME_STRIDE +
		   ((size_t)opt.data_room + 1024) * opt.pool_size + (1 << 16));
	frames = arena_take((size_t)opt.flows * FRAME_STRIDE);
	flow_mask = opt.flows - 1;
	for (uint32_t flow = 0; flow < opt.flows; flow++)
		write_frame(frames + (size_t)flow * FRAME_STRIDE, flow);
	for (unsigned q = 0; q < opt.queues; q++) {
		char name[16];
		snprintf(name, sizeof(name), "queue%u", q);
		rings[q] = arena_take((size_t)ring_bytes);
		if (rte_ring_init(rings[q], name, opt.ring_size,
				  RING_F_SP_ENQ | RING_F_SC_DEQ) != 0)
			peer_die(PEER_EXIT_FAILED, "no ring");
	}
	make_pool();
	rte_mempool_obj_iter(pool, fill_mbuf, NULL);
	for (unsigned i = 0; i < TABLE_SIZE; i++)
		table[i] = (uint8_t)(i % opt.queues);

	bool gfni = opt.hash != HASH_SOFT && gfni_usable();
	if (opt.hash == HASH_GFNI && !gfni)
		peer_die(PEER_EXIT_FAILED, "this processor or build has no GFNI");
#ifdef RTE_THASH_GFNI_DEFINED
	if (gfni)
		rte_thash_complete_matrix(matrices, key, KEY_LENGTH);
#endif
	rte_convert_rss_key((const uint32_t *)key, (uint32_t *)soft_key,
			    KEY_LENGTH);
	hash_check(gfni);

	if (rte_eal_remote_launch(producer, &gfni, producer_core) != 0)
		peer_die(PEER_EXIT_FAILED, "the producer could not start");
	if (opt.handoff == HANDOFF_DESCRIPTOR)
		consume(true, &consumer_result);
	else
		consume(false, &consumer_result);
	rte_eal_wait_lcore(producer_core);

	const struct producer_result *p = &producer_result;
	if (consumer_result.wrong != 0 || p->unparsed != 0)
		peer_die(PEER_EXIT_FAILED, "%" PRIu64 " wrong and %" PRIu64
			 " unparsed packets", consumer_result.wrong,
			 p->unparsed);
	printf("{\"program\":\"dpdk_dispatch\",\"dpdk\":\"%s\","
	       "\"delivered_pps\":%.0f,\"borrowed_core_ns_per_packet\":%.3f,"
	       "\"delivered\":%" PRIu64 ",\"dropped\":%" PRIu64
	       ",\"handled\":%" PRIu64 ",\"pool_empty\":%" PRIu64
	       ",\"waits\":%" PRIu64 ",\"duration_s\":%.3f,\"queues\":%u,"
	       "\"frames\":\"%s\",\"flows\":%u,\"flow_order\":\"%s\","
	       "\"burst\":%u,\"consumer_burst\":%u,\"hold\":%u,"
	       "\"ring_size\":%u,\"pool_size\":%u,\"cache_size\":%u,"
	       "\"full\":\"%s\",\"handoff\":\"%s\",\"memory\":\"%s\","
	       "\"hash\":\"%s\",\"prefetch\":\"%s\",\"borrowed_core\":%u,\"target_core\":%u,"
	       "\"accumulator\":\"%016" PRIx64 "\",\"queue_packets\":[",
	       rte_version(), (double)p->delivered / p->elapsed_s,
	       p->handled ? p->elapsed_s * 1e9 / (double)p->handled : 0.0,
	       p->delivered, p->dropped, p->handled, p->pool_empty, p->waits,
	       p->elapsed_s, opt.queues, frames_words[opt.frames], opt.flows,
	       order_words[opt.order], opt.burst, opt.consumer_burst, opt.hold,
	       opt.ring_size, opt.pool_size, opt.cache_size,
	       full_words[opt.full], handoff_words[opt.handoff], memory_kind,
	       gfni ? "gfni" : "soft", prefetch_words[opt.prefetch], producer_core, consumer_core,
	       consumer_result.accumulator);
	for (unsigned q = 0; q < opt.queues; q++)
		printf("%s%" PRIu64, q ? "," : "", consumer_result.per_queue[q]);
	printf("]}\n");
	return 0;
}
