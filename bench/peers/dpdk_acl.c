/*
 * DPDK's packet classifier (rte_acl) on five-tuple rules of IPv4.
 *
 * For each number of rules: build the tries, then classify random packets in
 * bursts and print nanoseconds per packet as one JSON object. Half of the
 * packets are drawn from inside a random rule, so that the search goes deep;
 * the others are any packet.
 */
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include <rte_acl.h>
#include <rte_byteorder.h>
#include <rte_cpuflags.h>
#include <rte_cycles.h>
#include <rte_lcore.h>
#include <rte_vect.h>
#include <rte_version.h>

#include "peer.h"

#define MAX_RULES 4096u
#define MAX_BURST 256u
#define MAX_PACKETS (1u << 20)

/* As the bytes stand in a packet: protocol, addresses, ports, big-endian. */
struct five_tuple {
	uint8_t protocol;
	uint8_t padding[3];
	uint32_t source, destination;
	uint16_t source_port, destination_port;
};

enum { PROTOCOL, SOURCE, DESTINATION, SOURCE_PORT, DESTINATION_PORT, FIELDS };
RTE_ACL_RULE_DEF(five_tuple_rule, FIELDS);

/* rte_acl reads four bytes at a time after the first field; both ports share
 * one such read. */
static const struct rte_acl_config build_config = {
	.num_categories = 1,
	.num_fields = FIELDS,
	.defs = {
		{ RTE_ACL_FIELD_TYPE_BITMASK, 1, PROTOCOL, 0,
		  offsetof(struct five_tuple, protocol) },
		{ RTE_ACL_FIELD_TYPE_MASK, 4, SOURCE, 1,
		  offsetof(struct five_tuple, source) },
		{ RTE_ACL_FIELD_TYPE_MASK, 4, DESTINATION, 2,
		  offsetof(struct five_tuple, destination) },
		{ RTE_ACL_FIELD_TYPE_RANGE, 2, SOURCE_PORT, 3,
		  offsetof(struct five_tuple, source_port) },
		{ RTE_ACL_FIELD_TYPE_RANGE, 2, DESTINATION_PORT, 3,
		  offsetof(struct five_tuple, destination_port) },
	},
};

static const char *const algorithm_words[] = { "best", "scalar", "sse", "avx2",
					       "avx512x16", "avx512x32", NULL };
static const enum rte_acl_classify_alg algorithms[] = {
	RTE_ACL_CLASSIFY_DEFAULT, RTE_ACL_CLASSIFY_SCALAR, RTE_ACL_CLASSIFY_SSE,
	RTE_ACL_CLASSIFY_AVX2, RTE_ACL_CLASSIFY_AVX512X16,
	RTE_ACL_CLASSIFY_AVX512X32,
};
#define ALGORITHMS ((int)(sizeof(algorithms) / sizeof(algorithms[0])))

static struct {
	unsigned rules; /* 0: 16, 64, 256, 1024 and 4096 */
	unsigned burst, packets, repeats;
	int algorithm;
	uint64_t seed;
	double seconds;
} opt = { .burst = 32, .packets = 4096, .repeats = 5, .seed = 1, .seconds = 0.2 };

static uint32_t prefix_mask(unsigned length)
{
	return length == 0 ? 0 : UINT32_MAX << (32 - length);
}

/*
 * A rule as an operator writes them: a source network of 8 to 32 bits, a
 * destination of 16 to 32, any source port (or, one in four, a range), one
 * destination port, a range or any, TCP, UDP or (one in eight) any protocol.
 */
static void random_rule(struct five_tuple_rule *rule, uint32_t number,
			uint64_t *random)
{
	memset(rule, 0, sizeof(*rule));
	/* The first rule that matches wins. */
	rule->data.priority = (int32_t)(RTE_ACL_MAX_PRIORITY - number);
	rule->data.category_mask = 1;
	rule->data.userdata = number + 1;

	const uint64_t choice = peer_random(random);
	const uint64_t address = peer_random(random);
	const unsigned source_length = 8 + choice % 25;
	const unsigned destination_length = 16 + (choice >> 8) % 17;
	if ((choice >> 16) % 8 != 0) {
		rule->field[PROTOCOL].value.u8 =
			(choice >> 20) % 4 != 0 ? IPPROTO_TCP : IPPROTO_UDP;
		rule->field[PROTOCOL].mask_range.u8 = 0xff;
	}
	rule->field[SOURCE].value.u32 =
		(uint32_t)address & prefix_mask(source_length);
	rule->field[SOURCE].mask_range.u32 = source_length;
	rule->field[DESTINATION].value.u32 =
		(uint32_t)(address >> 32) & prefix_mask(destination_length);
	rule->field[DESTINATION].mask_range.u32 = destination_length;

	const uint64_t ports = peer_random(random);
	for (int i = SOURCE_PORT; i <= DESTINATION_PORT; i++) {
		const unsigned shift = i == SOURCE_PORT ? 0 : 32;
		const uint16_t low = (uint16_t)(ports >> shift);
		const uint16_t width = (uint16_t)((ports >> shift >> 16) % 1024);
		const unsigned kind = (unsigned)(choice >> (24 + shift / 8)) % 4;
		uint16_t first = 0, last = UINT16_MAX;
		if (i == SOURCE_PORT ? kind == 0 : kind == 1) {
			first = low;
			last = low > UINT16_MAX - width ? UINT16_MAX
							: (uint16_t)(low + width);
		} else if (i == DESTINATION_PORT && kind > 1) {
			first = last = low;
		}
		rule->field[i].value.u16 = first;
		rule->field[i].mask_range.u16 = last;
	}
}

static void random_packet(struct five_tuple *packet,
			  const struct five_tuple_rule *rules, uint32_t count,
			  uint64_t *random)
{
	const uint64_t addresses = peer_random(random);
	const uint64_t rest = peer_random(random);
	uint32_t source = (uint32_t)addresses;
	uint32_t destination = (uint32_t)(addresses >> 32);
	uint16_t ports[2] = { (uint16_t)rest, (uint16_t)(rest >> 16) };
	uint8_t protocol = (rest >> 32) % 4 != 0 ? IPPROTO_TCP : IPPROTO_UDP;
	if ((rest >> 40) % 2 == 0) {
		const struct five_tuple_rule *rule =
			&rules[peer_random(random) % count];
		uint32_t mask = prefix_mask(rule->field[SOURCE].mask_range.u32);
		source = rule->field[SOURCE].value.u32 | (source & ~mask);
		mask = prefix_mask(rule->field[DESTINATION].mask_range.u32);
		destination = rule->field[DESTINATION].value.u32 |
			      (destination & ~mask);
		for (int i = 0; i < 2; i++) {
			const uint32_t first = rule->field[SOURCE_PORT + i].value.u16;
			const uint32_t last =
				rule->field[SOURCE_PORT + i].mask_range.u16;
			ports[i] = (uint16_t)(first +
					      ports[i] % (last - first + 1));
		}
		if (rule->field[PROTOCOL].mask_range.u8 != 0)
			protocol = rule->field[PROTOCOL].value.u8;
	}
	memset(packet, 0, sizeof(*packet));
	packet->protocol = protocol;
	packet->source = rte_cpu_to_be_32(source);
	packet->destination = rte_cpu_to_be_32(destination);
	packet->source_port = rte_cpu_to_be_16(ports[0]);
	packet->destination_port = rte_cpu_to_be_16(ports[1]);
}

static uint64_t fnv1a(uint64_t hash, uint32_t number)
{
	for (int i = 0; i < 4; i++, number >>= 8)
		hash = (hash ^ (number & 0xff)) * UINT64_C(0x100000001b3);
	return hash;
}

/* Equal for equal rules and packets: picnic bench classifier prints it too. */
static uint64_t fingerprint(const struct five_tuple_rule *rules, uint32_t count,
			    const struct five_tuple *packets, uint32_t number)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (uint32_t i = 0; i < count; i++) {
		const struct rte_acl_field *f = rules[i].field;
		const uint32_t protocol = f[PROTOCOL].mask_range.u8 == 0
			? 0 : f[PROTOCOL].value.u8 | 0x100u;
		hash = fnv1a(hash, f[SOURCE].value.u32);
		hash = fnv1a(hash, f[DESTINATION].value.u32);
		hash = fnv1a(hash, f[SOURCE].mask_range.u32 |
				   f[DESTINATION].mask_range.u32 << 8 | protocol << 16);
		for (int p = SOURCE_PORT; p <= DESTINATION_PORT; p++)
			hash = fnv1a(hash, (uint32_t)f[p].value.u16 << 16 |
					   f[p].mask_range.u16);
	}
	for (uint32_t i = 0; i < number; i++) {
		const struct five_tuple *t = &packets[i];
		hash = fnv1a(hash, rte_be_to_cpu_32(t->source));
		hash = fnv1a(hash, rte_be_to_cpu_32(t->destination));
		hash = fnv1a(hash, (uint32_t)rte_be_to_cpu_16(t->source_port) << 16 |
				   rte_be_to_cpu_16(t->destination_port));
		hash = fnv1a(hash, t->protocol);
	}
	return hash;
}

/* The same answer without tries, to know that the measured one is right. */
static uint32_t linear_search(const struct five_tuple *packet,
			      const struct five_tuple_rule *rules,
			      uint32_t count)
{
	const uint32_t source = rte_be_to_cpu_32(packet->source);
	const uint32_t destination = rte_be_to_cpu_32(packet->destination);
	const uint16_t ports[2] = { rte_be_to_cpu_16(packet->source_port),
				    rte_be_to_cpu_16(packet->destination_port) };
	for (uint32_t i = 0; i < count; i++) {
		const struct rte_acl_field *f = rules[i].field;
		if (((packet->protocol ^ f[PROTOCOL].value.u8) &
		     f[PROTOCOL].mask_range.u8) != 0 ||
		    ((source ^ f[SOURCE].value.u32) &
		     prefix_mask(f[SOURCE].mask_range.u32)) != 0 ||
		    ((destination ^ f[DESTINATION].value.u32) &
		     prefix_mask(f[DESTINATION].mask_range.u32)) != 0)
			continue;
		if (ports[0] >= f[SOURCE_PORT].value.u16 &&
		    ports[0] <= f[SOURCE_PORT].mask_range.u16 &&
		    ports[1] >= f[DESTINATION_PORT].value.u16 &&
		    ports[1] <= f[DESTINATION_PORT].mask_range.u16)
			return rules[i].data.userdata;
	}
	return 0;
}

struct timing {
	double ns, median_ns;
	uint64_t matched;
};

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct timing measure(const struct rte_acl_ctx *context,
			     const uint8_t **packets, int algorithm)
{
	struct timing timing = { 0, 0, 0 };
	double samples[64];
	const uint64_t hz = rte_get_tsc_hz();
	uint32_t results[MAX_BURST] __rte_aligned(64);
	for (unsigned repeat = 0; repeat < opt.repeats; repeat++) {
		const uint64_t begin = rte_rdtsc();
		const uint64_t end = begin + (uint64_t)(opt.seconds * (double)hz);
		uint64_t now, done = 0, matched = 0;
		do {
			for (uint32_t at = 0; at + opt.burst <= opt.packets;
			     at += opt.burst) {
				rte_acl_classify_alg(context, packets + at,
						     results, opt.burst, 1,
						     algorithms[algorithm]);
				for (uint32_t i = 0; i < opt.burst; i++)
					matched += results[i] != 0;
				done += opt.burst;
			}
			now = rte_rdtsc();
		} while (now < end);
		samples[repeat] = (double)(now - begin) * 1e9 / (double)hz /
				  (double)done;
		timing.matched += matched;
	}
	qsort(samples, opt.repeats, sizeof(samples[0]), by_value);
	timing.ns = samples[0];
	timing.median_ns = samples[opt.repeats / 2];
	return timing;
}

static void usage(FILE *to)
{
	fprintf(to,
"usage: dpdk_acl [options]\n"
"  --rules N       only this many rules, 1 to %u (16 64 256 1024 4096)\n"
"  --burst N       packets per call (%u)\n"
"  --packets N     different packets (%u)\n"
"  --seconds S     time of one repeat (%.1f)\n"
"  --repeats N     repeats per number of rules; minimum and median are printed (%u)\n"
"  --algorithm W   best | scalar | sse | avx2 | avx512x16 | avx512x32 (best)\n"
"  --seed N        (%" PRIu64 ")\n"
"Prints one JSON object. Runs on the highest-numbered core.\n",
		MAX_RULES, opt.burst, opt.packets, opt.seconds, opt.repeats,
		opt.seed);
}

static void parse_options(int argc, char **argv)
{
	enum { RULES = 256, BURST, PACKETS, SECONDS, REPEATS, ALGORITHM, SEED,
	       JSON, HELP };
	static const struct option longs[] = {
		{ "rules", 1, 0, RULES }, { "burst", 1, 0, BURST },
		{ "packets", 1, 0, PACKETS }, { "seconds", 1, 0, SECONDS },
		{ "repeats", 1, 0, REPEATS }, { "algorithm", 1, 0, ALGORITHM },
		{ "seed", 1, 0, SEED }, { "json", 0, 0, JSON },
		{ "help", 0, 0, HELP }, { 0, 0, 0, 0 },
	};
	int which, index = 0;
	while ((which = getopt_long(argc, argv, "", longs, &index)) != -1) {
		if (which == '?') {
			usage(stderr);
			exit(PEER_EXIT_USAGE);
		}
		const char *name = longs[index].name;
		switch (which) {
		case RULES: opt.rules = peer_number(name, optarg, 1, MAX_RULES); break;
		case BURST: opt.burst = peer_number(name, optarg, 1, MAX_BURST); break;
		case PACKETS:
			opt.packets = peer_number(name, optarg, 1, MAX_PACKETS);
			break;
		case SECONDS: opt.seconds = peer_seconds(name, optarg); break;
		case REPEATS: opt.repeats = peer_number(name, optarg, 1, 64); break;
		case ALGORITHM:
			opt.algorithm = peer_word(name, optarg, algorithm_words);
			break;
		case SEED: opt.seed = peer_number(name, optarg, 1, UINT64_MAX); break;
		case JSON: break; /* the only form there is */
		default: usage(stdout); exit(0);
		}
	}
	if (optind != argc)
		peer_die(PEER_EXIT_USAGE, "unexpected argument \"%s\"",
			 argv[optind]);
	if (opt.packets < opt.burst)
		peer_die(PEER_EXIT_USAGE, "--packets: at least one burst");
}

static void one_size(unsigned count, bool first)
{
	uint64_t random = opt.seed * UINT64_C(0x9e3779b97f4a7c15) + count;
	if (random == 0)
		random = 1;
	struct five_tuple_rule *rules = calloc(count, sizeof(*rules));
	struct five_tuple *packets = calloc(opt.packets, sizeof(*packets));
	const uint8_t **pointers = calloc(opt.packets, sizeof(*pointers));
	if (rules == NULL || packets == NULL || pointers == NULL)
		peer_die(PEER_EXIT_FAILED, "out of memory");
	for (unsigned i = 0; i < count; i++)
		random_rule(&rules[i], i, &random);
	for (unsigned i = 0; i < opt.packets; i++) {
		random_packet(&packets[i], rules, count, &random);
		pointers[i] = (const uint8_t *)&packets[i];
	}

	const struct rte_acl_param parameters = {
		.name = "five_tuple",
		.socket_id = SOCKET_ID_ANY,
		.rule_size = RTE_ACL_RULE_SZ(FIELDS),
		.max_rule_num = MAX_RULES,
	};
	struct rte_acl_ctx *context = rte_acl_create(&parameters);
	if (context == NULL ||
	    rte_acl_add_rules(context, (const struct rte_acl_rule *)rules,
			      count) != 0)
		peer_die(PEER_EXIT_FAILED, "no classifier");
	const uint64_t begin = rte_rdtsc();
	const int failed = rte_acl_build(context, &build_config);
	const double build_ms = (double)(rte_rdtsc() - begin) * 1e3 /
				(double)rte_get_tsc_hz();
	if (failed != 0)
		peer_die(PEER_EXIT_FAILED, "%u rules cannot be built: %s", count,
			 rte_strerror(-failed));

	/* Every algorithm that runs here, if the best one is asked for. */
	int best = -1;
	struct timing timing = { 0, 0, 0 };
	for (int a = 1; a < ALGORITHMS; a++) {
		if (opt.algorithm != 0 && opt.algorithm != a)
			continue;
		if (rte_acl_set_ctx_classify(context, algorithms[a]) != 0)
			continue;
		uint32_t result = 0;
		for (unsigned i = 0; i < opt.packets && i < 4096; i++) {
			rte_acl_classify_alg(context, pointers + i, &result, 1,
					     1, algorithms[a]);
			if (result != linear_search(&packets[i], rules, count))
				peer_die(PEER_EXIT_FAILED,
					 "%s: wrong rule for packet %u",
					 algorithm_words[a], i);
		}
		const struct timing t = measure(context, pointers, a);
		if (best < 0 || t.median_ns < timing.median_ns) {
			best = a;
			timing = t;
		}
	}
	if (best < 0)
		peer_die(PEER_EXIT_FAILED, "algorithm %s cannot run here",
			 algorithm_words[opt.algorithm]);
	unsigned matching = 0;
	for (unsigned i = 0; i < opt.packets; i++)
		matching += linear_search(&packets[i], rules, count) != 0;
	printf("%s{\"rules\":%u,\"ns_per_packet\":%.2f,"
	       "\"min_ns_per_packet\":%.2f,\"algorithm\":\"%s\","
	       "\"matching_fraction\":%.3f,\"build_ms\":%.2f,"
	       "\"fingerprint\":\"%016" PRIx64 "\"}",
	       first ? "" : ",", count, timing.median_ns, timing.ns,
	       algorithm_words[best], (double)matching / opt.packets, build_ms,
	       fingerprint(rules, count, packets, opt.packets));
	rte_acl_free(context);
	free(rules);
	free(packets);
	free(pointers);
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	const unsigned core = (unsigned)sysconf(_SC_NPROCESSORS_ONLN) - 1;
	char cores[16];
	snprintf(cores, sizeof(cores), "%u", core);
	peer_eal_init(argv[0], cores, core);
	printf("{\"program\":\"dpdk_acl\",\"dpdk\":\"%s\",\"burst\":%u,"
	       "\"packets\":%u,\"seed\":%" PRIu64 ",\"core\":%u,\"sizes\":[",
	       rte_version(), opt.burst, opt.packets, opt.seed, core);
	if (opt.rules != 0)
		one_size(opt.rules, true);
	else
		for (unsigned count = 16; count <= MAX_RULES; count *= 4)
			one_size(count, count == 16);
	printf("]}\n");
	return 0;
}
