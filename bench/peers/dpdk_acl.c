/*
 * DPDK's packet classifier (rte_acl) on five-tuple rules of IPv4.
 *
 * For each number of rules: build the tries, then classify random packets in
 * bursts and print nanoseconds per packet as one JSON object. Rules and packets
 * are defined in five_tuple.h.
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

#include "five_tuple.h"

#define MAX_RULES 4096u
#define MAX_BURST 256u
#define MAX_PACKETS (1u << 20)

/* In packet order: protocol, addresses, ports, big-endian. */
struct header {
	uint8_t protocol;
	uint8_t padding[3];
	uint32_t source, destination;
	uint16_t source_port, destination_port;
};

enum { PROTOCOL, SOURCE, DESTINATION, SOURCE_PORT, DESTINATION_PORT, FIELDS };
RTE_ACL_RULE_DEF(acl_rule, FIELDS);

/* rte_acl reads four bytes at a time after the first field; both ports share
 * one such read. */
static const struct rte_acl_config build_config = {
	.num_categories = 1,
	.num_fields = FIELDS,
	.defs = {
		{ RTE_ACL_FIELD_TYPE_BITMASK, 1, PROTOCOL, 0,
		  offsetof(struct header, protocol) },
		{ RTE_ACL_FIELD_TYPE_MASK, 4, SOURCE, 1,
		  offsetof(struct header, source) },
		{ RTE_ACL_FIELD_TYPE_MASK, 4, DESTINATION, 2,
		  offsetof(struct header, destination) },
		{ RTE_ACL_FIELD_TYPE_RANGE, 2, SOURCE_PORT, 3,
		  offsetof(struct header, source_port) },
		{ RTE_ACL_FIELD_TYPE_RANGE, 2, DESTINATION_PORT, 3,
		  offsetof(struct header, destination_port) },
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
	int algorithm, family;
	uint64_t seed;
	double seconds;
} opt = { .burst = 32, .packets = 4096, .repeats = 5, .seed = 1, .seconds = 0.2 };

static void acl_rule(struct acl_rule *to, const struct rule *from, uint32_t number)
{
	memset(to, 0, sizeof(*to));
	/* The first rule that matches wins. */
	to->data.priority = (int32_t)(RTE_ACL_MAX_PRIORITY - number);
	to->data.category_mask = 1;
	to->data.userdata = number + 1;
	if (from->protocol != ANY_PROTOCOL) {
		to->field[PROTOCOL].value.u8 = (uint8_t)from->protocol;
		to->field[PROTOCOL].mask_range.u8 = 0xff;
	}
	for (int i = 0; i < 2; i++) {
		to->field[SOURCE + i].value.u32 = from->address[i];
		to->field[SOURCE + i].mask_range.u32 = from->length[i];
		to->field[SOURCE_PORT + i].value.u16 = from->port[i].first;
		to->field[SOURCE_PORT + i].mask_range.u16 = from->port[i].last;
	}
}

static void header(struct header *to, const struct packet *from)
{
	memset(to, 0, sizeof(*to));
	to->protocol = from->protocol;
	to->source = rte_cpu_to_be_32(from->address[0]);
	to->destination = rte_cpu_to_be_32(from->address[1]);
	to->source_port = rte_cpu_to_be_16(from->port[0]);
	to->destination_port = rte_cpu_to_be_16(from->port[1]);
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
			     const uint8_t **packets, int algorithm,
			     double seconds, unsigned repeats)
{
	struct timing timing = { 0, 0, 0 };
	double samples[64];
	const uint64_t hz = rte_get_tsc_hz();
	uint32_t results[MAX_BURST] __rte_aligned(64);
	for (unsigned repeat = 0; repeat < repeats; repeat++) {
		const uint64_t begin = rte_rdtsc();
		const uint64_t end = begin + (uint64_t)(seconds * (double)hz);
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
	qsort(samples, repeats, sizeof(samples[0]), by_value);
	timing.ns = samples[0];
	timing.median_ns = samples[repeats / 2];
	return timing;
}

static void usage(FILE *to)
{
	fprintf(to,
"usage: dpdk_acl [options]\n"
"  --rules N       only this many rules, 1 to %u (16 64 256 1024 4096)\n"
"  --family W      random | access-list | firewall | wide-ports | ports-only (random)\n"
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
	       FAMILY, JSON, HELP };
	static const struct option longs[] = {
		{ "rules", 1, 0, RULES }, { "burst", 1, 0, BURST },
		{ "packets", 1, 0, PACKETS }, { "seconds", 1, 0, SECONDS },
		{ "repeats", 1, 0, REPEATS }, { "algorithm", 1, 0, ALGORITHM },
		{ "seed", 1, 0, SEED }, { "family", 1, 0, FAMILY },
		{ "json", 0, 0, JSON },
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
		case FAMILY:
			opt.family = peer_word(name, optarg, family_words);
			break;
		case JSON: break; /* the only format */
		default: usage(stdout); exit(0);
		}
	}
	if (optind != argc)
		peer_die(PEER_EXIT_USAGE, "unexpected argument \"%s\"",
			 argv[optind]);
	if (opt.packets < opt.burst)
		peer_die(PEER_EXIT_USAGE, "--packets: at least one burst");
}

static void one_set(enum family family, unsigned count, bool first)
{
	uint64_t random = opt.seed * UINT64_C(0x9e3779b97f4a7c15) + count;
	if (random == 0)
		random = 1;
	struct rule *rules = calloc(count, sizeof(*rules));
	struct acl_rule *acl_rules = calloc(count, sizeof(*acl_rules));
	struct packet *packets = calloc(opt.packets, sizeof(*packets));
	struct header *headers = calloc(opt.packets, sizeof(*headers));
	uint32_t *verdicts = calloc(opt.packets, sizeof(*verdicts));
	const uint8_t **pointers = calloc(opt.packets, sizeof(*pointers));
	if (rules == NULL || acl_rules == NULL || packets == NULL ||
	    headers == NULL || verdicts == NULL || pointers == NULL)
		peer_die(PEER_EXIT_FAILED, "out of memory");
	for (unsigned i = 0; i < count; i++) {
		random_rule(&rules[i], family, i, count, &random);
		acl_rule(&acl_rules[i], &rules[i], i);
	}
	unsigned matching = 0;
	uint64_t verdict_hash = FNV_START;
	for (unsigned i = 0; i < opt.packets; i++) {
		random_packet(&packets[i], family, rules, count, &random);
		header(&headers[i], &packets[i]);
		pointers[i] = (const uint8_t *)&headers[i];
		/* The same answer without tries, to verify theirs. */
		verdicts[i] = linear_search(&packets[i], rules, count);
		verdict_hash = fnv1a(verdict_hash, verdicts[i]);
		matching += verdicts[i] != 0;
	}

	const struct rte_acl_param parameters = {
		.name = "five_tuple",
		.socket_id = SOCKET_ID_ANY,
		.rule_size = RTE_ACL_RULE_SZ(FIELDS),
		.max_rule_num = MAX_RULES,
	};
	struct rte_acl_ctx *context = rte_acl_create(&parameters);
	if (context == NULL ||
	    rte_acl_add_rules(context, (const struct rte_acl_rule *)acl_rules,
			      count) != 0)
		peer_die(PEER_EXIT_FAILED, "no classifier");
	const uint64_t begin = rte_rdtsc();
	const int failed = rte_acl_build(context, &build_config);
	const double build_ms = (double)(rte_rdtsc() - begin) * 1e3 /
				(double)rte_get_tsc_hz();
	if (failed != 0)
		peer_die(PEER_EXIT_FAILED, "%u rules (%s) cannot be built: %s",
			 count, family_words[family], rte_strerror(-failed));

	/* To select the best algorithm: a short trial of each supported one,
	 * then a long run of the fastest. */
	int best = -1;
	double best_ns = 0;
	for (int a = 1; a < ALGORITHMS; a++) {
		if (opt.algorithm != 0 && opt.algorithm != a)
			continue;
		if (rte_acl_set_ctx_classify(context, algorithms[a]) != 0)
			continue;
		uint32_t results[MAX_BURST];
		for (unsigned i = 0; i < opt.packets; i += opt.burst) {
			const uint32_t number = RTE_MIN(opt.burst, opt.packets - i);
			rte_acl_classify_alg(context, pointers + i, results,
					     number, 1, algorithms[a]);
			if (memcmp(results, verdicts + i,
				   number * sizeof(*results)) != 0)
				peer_die(PEER_EXIT_FAILED,
					 "%s: wrong rule for a packet of %u on",
					 algorithm_words[a], i);
		}
		const struct timing trial =
			measure(context, pointers, a, opt.seconds / 2, 3);
		if (best < 0 || trial.ns < best_ns) {
			best = a;
			best_ns = trial.ns;
		}
	}
	if (best < 0)
		peer_die(PEER_EXIT_FAILED, "algorithm %s cannot run here",
			 algorithm_words[opt.algorithm]);
	const struct timing timing =
		measure(context, pointers, best, opt.seconds, opt.repeats);
	printf("%s{\"family\":\"%s\",\"rules\":%u,\"ns_per_packet\":%.2f,"
	       "\"min_ns_per_packet\":%.2f,\"algorithm\":\"%s\","
	       "\"matching_fraction\":%.3f,\"build_ms\":%.2f,"
	       "\"fingerprint\":\"%016" PRIx64 "\","
	       "\"verdicts\":\"%016" PRIx64 "\"}",
	       first ? "" : ",", family_words[family], count, timing.median_ns,
	       timing.ns, algorithm_words[best], (double)matching / opt.packets,
	       build_ms, fingerprint(rules, count, packets, opt.packets),
	       verdict_hash);
	fflush(stdout);
	rte_acl_free(context);
	free(rules);
	free(acl_rules);
	free(packets);
	free(headers);
	free(verdicts);
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
	const enum family family = (enum family)opt.family;
	if (opt.rules != 0)
		one_set(family, opt.rules, true);
	else
		for (unsigned count = 16; count <= MAX_RULES; count *= 4)
			one_set(family, count, count == 16);
	printf("]}\n");
	return 0;
}
