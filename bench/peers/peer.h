/* Small helpers that the comparison programs share. */
#ifndef PICNIC_PEER_H
#define PICNIC_PEER_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>

#define PEER_EXIT_FAILED 1
#define PEER_EXIT_USAGE 2

#define peer_die(code, ...)                                                    \
	do {                                                                   \
		fprintf(stderr, __VA_ARGS__);                                  \
		fputc('\n', stderr);                                           \
		exit(code);                                                    \
	} while (0)

/* One unsigned number within [low, high], or exit with what was expected. */
static inline uint64_t peer_number(const char *option, const char *text,
				   uint64_t low, uint64_t high)
{
	char *end = NULL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 0);
	if (errno != 0 || end == text || *end != '\0' || text[0] == '-' ||
	    value < low || value > high)
		peer_die(PEER_EXIT_USAGE,
			 "--%s: \"%s\" is not a number from %llu to %llu",
			 option, text, (unsigned long long)low,
			 (unsigned long long)high);
	return value;
}

static inline double peer_seconds(const char *option, const char *text)
{
	char *end = NULL;
	double value = strtod(text, &end);
	if (end == text || *end != '\0' || !(value >= 0.01 && value <= 3600))
		peer_die(PEER_EXIT_USAGE,
			 "--%s: \"%s\" is not a time from 0.01 to 3600 seconds",
			 option, text);
	return value;
}

/* Index of `text` in a null-terminated list of words. */
static inline int peer_word(const char *option, const char *text,
			    const char *const words[])
{
	for (int i = 0; words[i] != NULL; i++)
		if (strcmp(text, words[i]) == 0)
			return i;
	fprintf(stderr, "--%s: \"%s\" is none of", option, text);
	for (int i = 0; words[i] != NULL; i++)
		fprintf(stderr, " %s", words[i]);
	fputc('\n', stderr);
	exit(PEER_EXIT_USAGE);
}

/* xorshift64*: the same stream for the same seed on every machine. */
static inline uint64_t peer_random(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * UINT64_C(2685821657736338717);
}

static inline void peer_eal_leave(void)
{
	/* EAL creates a directory for its sockets and does not remove it. Both
	 * calls do nothing if the directory has other contents. */
	char *directory = strdup(rte_eal_get_runtime_dir());
	rte_eal_cleanup();
	if (directory == NULL)
		return;
	if (rmdir(directory) == 0) {
		char *slash = strrchr(directory, '/');
		if (slash != NULL) {
			*slash = '\0';
			(void)!rmdir(directory);
		}
	}
	free(directory);
}

/*
 * DPDK without devices, sockets or hugetlbfs: it leaves no files and needs no
 * privileges. The program maps memory that must be on large pages.
 * `cores` is a DPDK core list; `main_core` is the caller's core, one of them.
 */
static inline void peer_eal_init(const char *program, const char *cores,
				 unsigned main_core)
{
	char main_text[16], prefix[32];
	snprintf(main_text, sizeof(main_text), "%u", main_core);
	snprintf(prefix, sizeof(prefix), "picnic_peer_%ld", (long)getpid());
	const char *const arguments[] = {
		program, "--no-huge", "-m", "256", "--no-pci", "--no-telemetry",
		"--no-shconf", "--iova-mode=va", "--log-level=4",
		"--force-max-simd-bitwidth=512", "--file-prefix", prefix,
		"-l", cores, "--main-lcore", main_text,
	};
	const int count = (int)(sizeof(arguments) / sizeof(arguments[0]));
	char *copy[sizeof(arguments) / sizeof(arguments[0]) + 1] = { NULL };
	for (int i = 0; i < count; i++) {
		copy[i] = strdup(arguments[i]);
		if (copy[i] == NULL)
			peer_die(PEER_EXIT_FAILED, "out of memory");
	}
	/* EAL permutes and keeps the strings, so they are not freed. */
	if (rte_eal_init(count, copy) < 0)
		peer_die(PEER_EXIT_FAILED, "DPDK could not start: %s",
			 rte_strerror(rte_errno));
	atexit(peer_eal_leave);
}

#endif
